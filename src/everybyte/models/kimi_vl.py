"""Kimi K2.5 and Kimi-VL: the MoonViT image tower beside a DeepSeek-V3 decoder (transformers modeling_kimi_k25.py; Kimi-VL's own modeling_kimi_vl.py has
the same tower with joined projections)."""

from __future__ import annotations

from everybyte.basics.errors import Unsupported
from everybyte.layers.block import Block, Norm
from everybyte.layers.mlp import PlainMLP
from everybyte.layers.network import Network, Run, Tower
from everybyte.layers.vision import CutPatches, GridPositions, JoinedAttention, PatchMerger, cut
from everybyte.models.config import Config
from everybyte.models.multimodal import with_towers

PLACE = "vision_tower"
NORM = Norm("layer")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    text = c.part("text_config")
    vision = c.part("vision_config")
    tower = _tower(vision, text.integer("hidden_size"), joined=c.architecture == "KimiVLForConditionalGeneration")
    return with_towers(c, "DeepseekV3ForCausalLM", (tower,) if c.has("vision_config") else ())


def _tower(c: Config, out: int, *, joined: bool) -> Tower:
    """Fields are called `vt_...` in the published configs of K2.5, and plainly elsewhere."""
    if c.text("norm_type", default="layernorm") != "layernorm" or c.has("qkv_hidden_size"):
        raise Unsupported(f"{c.path}.norm_type", "the image tower of Kimi K3 (RMSNorm, attention of another width) is not supported")
    hidden = c.integer("vt_hidden_size", "hidden_size", default=1152)
    heads = c.integer("vt_num_attention_heads", "num_attention_heads", default=16)
    c.divides("num_attention_heads", heads, hidden)
    side = c.integer("patch_size", default=14)
    merge = (c.integers("merge_kernel_size") or (2, 2))[0]
    mlp = PlainMLP(hidden, c.integer("vt_intermediate_size", "intermediate_size", default=4304), c.activation("gelu_pytorch_tanh"), names=("fc0", "fc1"))
    attention = JoinedAttention(hidden, heads, joined="wqkv", out="wo")
    block = Block(attention, mlp, NORM, ("norm0", "norm1"), mixer_name="attn")
    rows = c.integer("init_pos_emb_height", default=64) * c.integer("init_pos_emb_width", default=64)
    positions = GridPositions(f"{PLACE}.patch_embed.pos_emb.weight", rows, 16, bag=True)
    stem = CutPatches(3, (side, side), hidden, f"{PLACE}.patch_embed.proj", bias=True, positions=positions)
    place, names = ("multi_modal_projector", ("linear_1", "linear_2")) if joined else ("mm_projector", ("proj.0", "proj.2"))
    merger = PatchMerger(
        hidden, out, merge, place, NORM, "pre_norm", names,
        final_norm=f"{PLACE}.encoder.final_layernorm", wide_copy=not joined,
    )  # fmt: skip
    runs = (Run(f"{PLACE}.encoder.blocks", 0, c.integer("vt_num_hidden_layers", "num_hidden_layers", default=27), block),)
    return Tower("vision", 0, runs, hidden, stem, merger, cut(3, (side, side)))
