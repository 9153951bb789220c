"""Allocators that are replayed, not fitted."""
