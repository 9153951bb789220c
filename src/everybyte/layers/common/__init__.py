"""Parts that most networks share: linear layers, norms, feed-forward layers, rotary positions, residual streams, adapters."""
