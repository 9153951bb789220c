"""A trace as an answer, a ledger, a snapshot, a script for the allocator."""
