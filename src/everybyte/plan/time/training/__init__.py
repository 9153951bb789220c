"""The time of a training step: one layer, a pipeline stage, the traffic of data parallelism, the optimizer."""
