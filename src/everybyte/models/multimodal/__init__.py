"""Language models with image towers beside them."""
