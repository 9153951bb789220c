"""DeepSpeed's ZeRO: what all stages share, stages 1 and 2 (flat partitions), stage 3 (every parameter divided), its allocations."""
