"""Programs of many GPUs in one process: process groups, replicas, pipelines, sharded wrappers."""
