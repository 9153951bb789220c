"""How things are laid out in memory, in wings; each wing says what it holds, and the import contracts in pyproject.toml say which may use which."""
