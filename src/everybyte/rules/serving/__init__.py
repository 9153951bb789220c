"""What serving engines have in common: caches, pages, pools, prefill, decoding, slots for adapters."""
