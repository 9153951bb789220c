"""Decoders with mixtures of experts."""
