"""How libraries are made to take the way on fake tensors that they take on real ones."""
