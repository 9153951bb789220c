"""Megatron-LM and what is built on Megatron Core (NeMo, Megatron-Bridge): transformer layers of Transformer Engine or local ones, distributed optimizer."""
