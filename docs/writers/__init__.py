"""What docs/generate.py writes, a module for each kind of page."""
