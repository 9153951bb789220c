"""Megatron Core's layers with the sizes of one rank, as Transformer Engine or local modules run them."""
