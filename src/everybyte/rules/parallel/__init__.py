"""The mesh of a job and its pipeline: axes, stages, schedules, micro-batches in flight."""
