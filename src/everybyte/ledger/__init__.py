"""The ledger: every byte with a name, a cause, a place, a time and a source; and the answer that carries it."""
