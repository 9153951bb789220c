"""A plain PyTorch loop over a model as Hugging Face writes it."""
