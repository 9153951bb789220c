"""A grid of jobs or traces: every combination of settings is answered, on the cores of a machine or on a cluster, and each answer is a row of one table."""
