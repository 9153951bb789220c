"""Readers of training frameworks. Each is a table of keys and the few rules that a table cannot say."""
