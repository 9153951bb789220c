"""How attributes of modules are replaced for a while, and acted on when they are imported."""
