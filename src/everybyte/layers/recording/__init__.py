"""The core: how a layer writes its forward pass (tape, operations, sizes) and how it is run as PyTorch would (replay)."""
