"""A training step on one rank: recipe, segments, what lives from step to step, the program of allocations and frees, and its readings."""
