"""What torch.profiler writes of memory: timelines by category, and chrome traces with memory events."""
