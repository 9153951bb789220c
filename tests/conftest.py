"""Shared by all tests. Its place puts this folder on the import path, so that tests can import the helpers beside it."""
