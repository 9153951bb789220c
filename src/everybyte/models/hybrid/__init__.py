"""Decoders with state-space, linear-attention or convolution layers."""
