"""Units, number formats, citations, origins and errors: what every other room may use, importing nothing of the package."""
