"""Text Generation Inference: a warm-up batch, and all of the rest for the cache."""
