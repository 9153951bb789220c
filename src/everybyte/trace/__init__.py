"""Runs real PyTorch code on fake tensors and records every allocation."""
