"""Which layout: every legal way to spread a training job over a cluster, ranked by time, checked for memory from the front."""
