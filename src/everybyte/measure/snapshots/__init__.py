"""Memory snapshots of PyTorch: read without running anything in them, and analysed by category, line, fragmentation and growth."""
