"""MiniCPM: Llama with scaled embedding, branches and last hidden states (modeling_minicpm.py of openbmb/MiniCPM-2B-sft-bf16)."""

from __future__ import annotations

from everybyte.layers.block import FinalNorm
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied
from everybyte.models.llama import Variant, llama_block


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    block = llama_block(c, Variant(scaled=True))
    return decoder(c, block, tied=tied(c, default=True), scaled=True, tail=FinalNorm(leaf=Places().norm, scaled=True))
