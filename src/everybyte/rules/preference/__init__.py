"""Preference and reinforcement learning: which models run in which role, and what is scored."""
