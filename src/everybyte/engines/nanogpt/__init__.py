"""nanoGPT: GPT-2 in one file, trained by one loop (github.com/karpathy/nanoGPT, model.py and train.py at 3adf61e1)."""
