"""State-space and linear-attention layers, and the short convolutions before them."""
