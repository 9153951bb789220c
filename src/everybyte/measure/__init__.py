"""Measured memory: records of real runs, and how far predictions are from them."""
