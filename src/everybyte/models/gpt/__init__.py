"""Decoders in GPT's line: LayerNorm, plain feed-forward layers, joined projections, learned or ALiBi positions."""
