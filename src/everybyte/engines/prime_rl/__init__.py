"""Accounts for prime-rl's trainers."""
