"""Searches over many jobs: the largest value of one setting that fits, and the best layout."""
