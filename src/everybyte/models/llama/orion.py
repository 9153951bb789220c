"""Orion: Llama with LayerNorm (modeling_orion.py of OrionStarAI/Orion-14B-Base)."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, tied
from everybyte.models.llama.llama import llama_block


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    norm = Norm("layer")
    return decoder(c, replace(llama_block(c), norm=norm), tied=tied(c, default=False), norm=norm)
