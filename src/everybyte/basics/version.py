"""The version of the package: the build reads it here (pyproject.toml)."""

__version__ = "0.1.0"
