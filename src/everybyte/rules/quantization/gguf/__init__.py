"""GGUF files: the tensors, their types by quantisation name, the tokenizer, the size of the file."""
