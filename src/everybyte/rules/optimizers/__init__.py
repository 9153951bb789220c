"""What optimizers keep for each parameter and need while they step, and the names people give them."""
