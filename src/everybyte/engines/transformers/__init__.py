"""Hugging Face: Trainer and its descendants (trl, axolotl, LLaMA-Factory), and generation."""
