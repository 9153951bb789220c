"""Attention layers and the kernels that run them."""
