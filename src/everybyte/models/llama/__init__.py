"""Dense decoders in Llama's line: gated feed-forward layers, rotary positions, mostly RMSNorm."""
