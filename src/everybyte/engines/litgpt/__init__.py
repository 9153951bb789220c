"""LitGPT: its own model files, LoRA on joined projections, adapters, Lightning Fabric's precision plugins, a chunked cross entropy."""
