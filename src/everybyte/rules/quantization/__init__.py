"""Bytes of weights in packed formats."""
