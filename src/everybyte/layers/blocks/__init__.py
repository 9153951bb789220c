"""Blocks: attention, feed-forward layers and norms put together as families do it."""
