"""One file a family: what a config.json says -> a Network."""
