"""How weights, gradients and optimizer states are divided among data-parallel ranks: DDP, FSDP 1 and 2, ZeRO, and what goes to host memory."""
