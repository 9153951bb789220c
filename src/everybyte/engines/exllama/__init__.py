"""ExLlamaV2 and ExLlamaV3: weights in EXL2 or EXL3, a cache of a stated number of tokens."""
