"""torchtitan: its own Llama, Qwen3 and mixture-of-experts modules, eager or compiled block by block, under FSDP2, tensor, context and pipeline parallel."""
