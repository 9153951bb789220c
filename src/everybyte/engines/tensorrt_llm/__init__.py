"""TensorRT-LLM: an engine with its execution context, and a share of the rest for the cache."""
