"""The fake GPU: what torch.cuda says, which kernels run and what they allocate, streams, compiled code, the disk."""
