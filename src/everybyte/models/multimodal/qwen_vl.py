"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: images of any size, cut into patches, beside a Qwen decoder."""

from __future__ import annotations

from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP, PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Network, Run, Tower
from everybyte.layers.vision.stems import CutPatches, GridPositions, JoinedAttention, PatchMerger, Tap, cut
from everybyte.models.config import Config
from everybyte.models.multimodal.composed import with_towers
from everybyte.models.patterns import runs_of

TEXTS = {
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}
"""Architecture -> that of its decoder."""
TOWER = "model.visual"
NORMS = ("norm1", "norm2")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    vision = c.part("vision_config")
    makers = {"Qwen2VLForConditionalGeneration": _second, "Qwen2_5_VLForConditionalGeneration": _windowed}
    tower = makers.get(c.architecture, _third)(vision)
    return with_towers(c, TEXTS[c.architecture], (tower,) if c.has("vision_config") else ())


def _patch(c: Config) -> tuple[int, tuple[int, int, int], int]:
    """(channels, frames x height x width of a patch, patches of a side that are merged)."""
    side, merge = c.integer("patch_size", default=16), c.integer("spatial_merge_size", default=2)
    return c.integer("in_channels", "in_chans", default=3), (c.integer("temporal_patch_size", default=2), side, side), merge


def _second(c: Config) -> Tower:
    """Qwen2-VL: LayerNorm, quick GELU, attention over the whole image (modeling_qwen2_vl.py)."""
    hidden, heads = c.integer("embed_dim", default=1280), c.integer("num_heads", default=16)
    c.divides("num_heads", heads, hidden)
    channels, patch, merge = _patch(c)
    norm, act = Norm("layer"), c.activation("quick_gelu")
    mlp = PlainMLP(hidden, hidden * c.integer("mlp_ratio", default=4), act)
    block = Block(JoinedAttention(hidden, heads), mlp, norm, NORMS, mixer_name="attn")
    merger = PatchMerger(hidden, c.integer("hidden_size", default=3584), merge, f"{TOWER}.merger", norm, "ln_q", ("mlp.0", "mlp.2"))
    stem = CutPatches(channels, patch, hidden, f"{TOWER}.patch_embed.proj")
    return Tower("visual", 0, (Run(f"{TOWER}.blocks", 0, c.integer("depth", default=32), block),), hidden, stem, merger, cut(channels, patch))


def _windowed(c: Config) -> Tower:
    """Qwen2.5-VL: RMSNorm, gated feed-forward, attention within windows in all but some blocks (modeling_qwen2_5_vl.py)."""
    hidden, heads = c.integer("hidden_size", default=1280), c.integer("num_heads", default=16)
    c.divides("num_heads", heads, hidden)
    channels, patch, merge = _patch(c)
    norm = Norm()
    mlp = GatedMLP(hidden, c.integer("intermediate_size", default=3420), c.activation("silu"), bias=True)
    window = (c.integer("window_size", default=112) // patch[1]) ** 2
    whole = set(c.integers("fullatt_block_indexes", (7, 15, 23, 31)))
    blocks = [
        Block(JoinedAttention(hidden, heads, window=0 if index in whole else window), mlp, norm, NORMS, mixer_name="attn")
        for index in range(c.integer("depth", default=32))
    ]
    merger = PatchMerger(
        hidden,
        c.integer("out_hidden_size", default=3584),
        merge,
        f"{TOWER}.merger",
        norm,
        "ln_q",
        ("mlp.0", "mlp.2"),
        sorted_back=True,
    )
    stem = CutPatches(channels, patch, hidden, f"{TOWER}.patch_embed.proj", sorted=True)
    return Tower("visual", 0, runs_of(f"{TOWER}.blocks", blocks), hidden, stem, merger, cut(channels, patch))


def _third(c: Config) -> Tower:
    """Qwen3-VL and Qwen3.5: learned positions resampled to the image, results of some blocks carried into early layers of the decoder
    (DeepStack; modeling_qwen3_vl.py)."""
    hidden, heads = c.integer("hidden_size", default=1152), c.integer("num_heads", default=16)
    c.divides("num_heads", heads, hidden)
    channels, patch, merge = _patch(c)
    norm, out = Norm("layer"), c.integer("out_hidden_size", default=3584)
    mlp = PlainMLP(hidden, c.integer("intermediate_size", default=4304), c.activation("gelu_pytorch_tanh"), names=("linear_fc1", "linear_fc2"))
    block = Block(JoinedAttention(hidden, heads), mlp, norm, NORMS, mixer_name="attn")
    names = ("linear_fc1", "linear_fc2")
    taps = c.integers("deepstack_visual_indexes", (8, 16, 24))
    runs: list[Run] = []
    first, depth = 0, c.integer("depth", default=27)
    for number, index in enumerate(sorted(i for i in taps if i < depth)):
        runs.append(Run(f"{TOWER}.blocks", first, index + 1 - first, block))
        branch = PatchMerger(hidden, out, merge, f"{TOWER}.deepstack_merger_list.{number}", norm, "norm", names, norm_after=True)
        runs.append(Run(f"{TOWER}.deepstack_merger_list_{number}", -1, 1, Tap(branch)))
        first = index + 1
    if first < depth:
        runs.append(Run(f"{TOWER}.blocks", first, depth - first, block))
    merger = PatchMerger(hidden, out, merge, f"{TOWER}.merger", norm, "norm", names)
    positions = GridPositions(f"{TOWER}.pos_embed.weight", c.integer("num_position_embeddings", default=2304), 4)
    stem = CutPatches(channels, patch, hidden, f"{TOWER}.patch_embed.proj", bias=True, positions=positions)
    return Tower("visual", 0, tuple(runs), hidden, stem, merger, cut(channels, patch))
