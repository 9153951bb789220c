"""MLX: weights and a growing cache in memory that the CPU uses too."""
