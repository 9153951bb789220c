"""A training step on one rank: recipe, segments, what lives from step to step, the highest instants, the allocations in program order."""
