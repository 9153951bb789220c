"""Framework `textbook`: the published equations alone, as a person computes by hand."""
