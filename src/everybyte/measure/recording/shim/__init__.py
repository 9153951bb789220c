"""The module that recorded processes import at their start; the folder is put on their path."""
