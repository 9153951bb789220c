"""torchtune: full and low-rank fine-tuning recipes for one device."""
