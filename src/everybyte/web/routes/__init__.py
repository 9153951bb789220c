"""What the server answers, by subject."""
