"""vLLM: paged caches by layer kind, a budget that a profiling run decides, CUDA graphs."""
