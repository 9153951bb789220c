"""DeciLM and Llama-Nemotron (NAS): Llama whose layers differ: other widths, fewer key heads, a linear layer instead of a branch, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everybyte.basics.errors import BadInput
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.linear import linear
from everybyte.layers.network import Network
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, layer_count, tied
from everybyte.models.llama.llama import llama_block


class LinearBranch(Record, frozen=True):
    """One square linear layer in the place of a branch."""

    hidden: int
    leaf: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        return linear(t, x, self.leaf, Dim("h", self.hidden))


def build(c: Config) -> Network:
    """The network of a config.json of this family (modeling_decilm.py of nvidia/Llama-3_3-Nemotron-Super-49B-v1, of Deci/DeciLM-7B)."""
    count = layer_count(c)
    listed = c.integers("num_key_value_heads_per_layer")
    if listed:
        parts = [{"attention": {"n_heads_in_group": c.integer("num_attention_heads") // max(kv, 1)}} for kv in listed]
    else:
        found = c.fields.get("block_configs")
        parts = found if isinstance(found, list) else []
    if len(parts) != count or not all(isinstance(part, Mapping) for part in parts):
        raise BadInput(f"{c.path}.block_configs", f"must describe every layer: {len(parts)} entries for {count} layers")
    base = llama_block(c.with_defaults({"intermediate_size": 1}))
    layers = [_block(Config(part, f"{c.path}.block_configs[{index}]", c.name), c, base) for index, part in enumerate(parts)]
    return decoder(c, tied=tied(c, default=False), layers=layers)


def _block(part: Config, c: Config, base: Block) -> Block:
    """The block of one layer."""
    return replace(base, mixer=_mixer(part.part("attention"), base), mlp=_mlp(part.part("ffn"), c, base))


def _mixer(part: Config, base: Block) -> Any:
    if part.flag("no_op", default=False):
        return None
    if part.flag("replace_with_linear", default=False):
        return LinearBranch(base.mixer.hidden, "linear_attn")
    group = part.integer("n_heads_in_group", default=1)
    return replace(base.mixer, kv_heads=max(base.mixer.heads // group, 1), window=part.integer("window_length", default=0, least=0))


def _mlp(part: Config, c: Config, base: Block) -> Any:
    hidden = base.mlp.hidden
    if part.flag("no_op", default=False):
        return None
    if part.flag("replace_with_linear", default=False):
        return LinearBranch(hidden, "linear_mlp")
    if not part.has("ffn_mult"):
        return replace(base.mlp, ffn=c.integer("intermediate_size"))
    # _ffn_mult_to_intermediate_size: two thirds of twice the multiple, up to a multiple of 256
    return replace(base.mlp, ffn=256 * ceil_div(int(2 * part.number("ffn_mult") * hidden / 3), 256))
