"""Watching a program: storages that are born and freed, modules, steps, and the timeline that follows."""
