"""Two sides of a comparison, whatever files they come from, and the rows in which they differ, each with its reason."""
