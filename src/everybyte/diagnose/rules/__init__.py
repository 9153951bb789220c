"""One rule a file: what in the evidence speaks for a cause, how strongly, and why."""
