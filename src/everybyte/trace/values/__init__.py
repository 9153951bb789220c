"""What a program reads from tensors that have no values."""
