"""Accounts for xtuner: FSDP2 with every end of the network as a unit of its own."""
