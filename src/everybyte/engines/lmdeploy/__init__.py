"""LMDeploy: TurboMind and the PyTorch engine, which give a share of free memory to the cache."""
