"""MiniCPM: Llama with scaled embedding, branches and last hidden states, dense or with Mixtral's experts
(modeling_minicpm.py of openbmb/MiniCPM-2B-sft-bf16)."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.layers.blocks.transformer import FinalNorm
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, expert_counts, tied
from everybyte.models.llama.llama import Variant, llama_block


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    block = llama_block(c, Variant(scaled=True))
    counts = (0, 0)
    if c.has("num_experts"):
        hidden, counts = c.integer("hidden_size"), expert_counts(c)
        routed = Experts(hidden, c.integer("intermediate_size"), *counts, Gate(c.activation()), names=("w1", "w3", "w2"))
        block = replace(block, mlp=MoE(hidden, Router(*counts), routed))
    return decoder(c, block, tied=tied(c, default=True), scaled=True, tail=FinalNorm(leaf=Places().norm, scaled=True), experts=counts)
