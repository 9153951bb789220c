"""YAML, JSON and TOML as trees in which every key has a line."""
