"""DeepSpeed's engine with a Hugging Face model."""
