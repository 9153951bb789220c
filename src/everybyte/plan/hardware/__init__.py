"""Which accelerators and cloud instances hold a job, how many are needed, and at what price; what a machine that somebody has can do.

`holding` finds the fewest GPUs of one kind, `offers` the cheapest instances with so many, `survey` does both for the whole catalogue, `machine` reads
machines that people have (also with unequal cards), `tiers` says what such a machine can train and serve, `owned` compares buying with renting.
"""
