"""Kimi-VL, Kimi K2.5 and Kimi K3: the MoonViT image tower beside the decoder (transformers modeling_kimi_k25.py; Kimi-VL's modeling_kimi_vl.py;
Kimi K3's tower as engines restate it: no biases, RMSNorm, attention of another width, a norm behind the merger)."""

from __future__ import annotations

from everybyte.basics.errors import Unsupported
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Network, Run, Tower
from everybyte.layers.vision.stems import CutPatches, GridPositions, JoinedAttention, PatchMerger, cut
from everybyte.models.config import Config
from everybyte.models.multimodal.composed import with_towers

PLACE = "vision_tower"
TEXTS = {"KimiK3ForConditionalGeneration": "KimiK3ForCausalLM"}
"""Architecture -> that of its decoder, where it is not DeepSeek-V3's."""


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    out = c.part("text_config").integer("hidden_size")
    tower = (_tower(c.part("vision_config"), out, c.architecture),) if c.has("vision_config") else ()
    return with_towers(c, TEXTS.get(c.architecture, "DeepseekV3ForCausalLM"), tower)


def _tower(c: Config, out: int, architecture: str) -> Tower:
    """Fields are called `vt_...` in the published configs of K2.5 and K3, and plainly elsewhere."""
    third = architecture == "KimiK3ForConditionalGeneration"
    for key, known in (("mlp_type", "mlp2"), ("merge_type", "sd2_tpool"), ("pos_emb_type", "divided_fixed")):
        if c.text(key, default=known) != known:
            raise Unsupported(f"{c.path}.{key}", f"{c.fields[key]!r} is not supported, only {known}")
    hidden = c.integer("vt_hidden_size", "hidden_size", default=1152)
    heads = c.integer("vt_num_attention_heads", "num_attention_heads", default=16)
    width = c.integer("qkv_hidden_size", default=hidden)
    c.divides("vt_num_attention_heads" if c.has("vt_num_attention_heads") else "num_attention_heads", heads, width)
    side, bias = c.integer("patch_size", default=14), c.flag("linear_bias", default=not third)
    norm = Norm(style="torch") if c.text("norm_type", default="rmsnorm" if third else "layernorm") == "rmsnorm" else Norm("layer")
    act = c.activation("gelu_pytorch_tanh", "activation_func", "hidden_act")
    mlp = PlainMLP(hidden, c.integer("vt_intermediate_size", "intermediate_size", default=4304), act, bias=bias, names=("fc0", "fc1"))
    attention = JoinedAttention(hidden, heads, joined="wqkv", out="wo", width=width, bias=c.flag("attn_bias", default=not third))
    block = Block(attention, mlp, norm, ("norm0", "norm1"), mixer_name="attn")
    rows = c.integer("init_pos_emb_height", default=64) * c.integer("init_pos_emb_width", default=64)
    positions = GridPositions(f"{PLACE}.patch_embed.pos_emb.weight", rows, 4 if third else 16, bag=not third)
    stem = CutPatches(3, (side, side), hidden, f"{PLACE}.patch_embed.proj", bias=c.flag("patch_embed_proj_bias", default=not third), positions=positions)
    runs = (Run(f"{PLACE}.encoder.blocks", 0, c.integer("vt_num_hidden_layers", "num_hidden_layers", default=27), block),)
    return Tower("vision", 0, runs, hidden, stem, _merger(c, hidden, out, architecture, norm), cut(3, (side, side)))


def _merger(c: Config, hidden: int, out: int, architecture: str, norm: Norm) -> PatchMerger:
    merge, last = (c.integers("merge_kernel_size") or (2, 2))[0], f"{PLACE}.encoder.final_layernorm"
    if architecture == "KimiVLForConditionalGeneration":
        return PatchMerger(hidden, out, merge, "multi_modal_projector", norm, "pre_norm", ("linear_1", "linear_2"), final_norm=last)
    names = ("proj.0", "proj.2")
    if architecture == "KimiK3ForConditionalGeneration":
        return PatchMerger(hidden, out, merge, "mm_projector", norm, "", names, final_norm=last, post_norm="post_norm", bias=False)
    return PatchMerger(hidden, out, merge, "mm_projector", norm, "pre_norm", names, final_norm=last, wide_copy=True)
