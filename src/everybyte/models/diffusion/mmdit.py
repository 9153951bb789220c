"""Flux, Stable Diffusion 3 and CogVideoX: diffusion transformers over image (or video) and text tokens (diffusers 0.42)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from everybyte.basics.errors import Unsupported
from everybyte.layers.diffusion.cogvideo import VideoBlock, VideoStem, VideoTail
from everybyte.layers.diffusion.dit import ImageTail, JointStem
from everybyte.layers.diffusion.mmdit import DoubleBlock, JointAttention, LastDoubleBlock, SingleBlock
from everybyte.layers.heads.loss import RegressionHead
from everybyte.layers.network import Network, Run
from everybyte.layers.recording.size import JOINT_TOKENS, TOKENS, Dim
from everybyte.models.config import Config

FLUX_IMAGE, FLUX_PROMPT = 4096, 512
"""Patches of an image of 1024x1024, tokens of a prompt (pipeline_flux.py max_sequence_length)."""
SD3_PROMPT = 333
"""77 tokens of CLIP and 256 of T5 (pipeline_stable_diffusion_3.py)."""


def build(c: Config) -> Network:
    """The network of a diffusers config.json of this family. Its tokens are those of the latent image, m those of the prompt."""
    return {"FluxTransformer2DModel": _flux, "SD3Transformer2DModel": _sd3}.get(c.architecture, _cogvideo)(c)


def _flux(c: Config) -> Network:
    heads, head_dim = c.integer("num_attention_heads", default=24), c.integer("attention_head_dim", default=128)
    hidden, channels = heads * head_dim, c.integer("in_channels", default=64)
    dims = (JOINT_TOKENS, Dim("h", hidden))
    attention = JointAttention(heads, head_dim, "torch", rope=True, by_head=False)
    runs = [Run("transformer_blocks", 0, c.integer("num_layers", default=19), DoubleBlock(attention), dims)]
    single = c.integer("num_single_layers", default=38, least=0)
    if single:
        runs.append(Run("single_transformer_blocks", 0, single, SingleBlock(heads, head_dim), dims))
    stem = JointStem(
        channels,
        c.integer("joint_attention_dim", default=4096),
        c.integer("pooled_projection_dim", default=768),
        hidden,
        c.flag("guidance_embeds", default=False),
    )
    out = c.integer("out_channels", default=channels) * c.integer("patch_size", default=1) ** 2
    return replace(_network(c, hidden, tuple(runs), stem, out, channels), tokens=FLUX_IMAGE, memory_tokens=FLUX_PROMPT)


def _sd3(c: Config) -> Network:
    heads, head_dim = c.integer("num_attention_heads", default=18), c.integer("attention_head_dim", default=64)
    hidden, patch = heads * head_dim, c.integer("patch_size", default=2)
    if c.integers("dual_attention_layers"):
        raise Unsupported(f"{c.path}.dual_attention_layers", "a second attention of the image tokens (Stable Diffusion 3.5 medium) is not supported")
    if c.integer("caption_projection_dim", default=1152) != hidden:
        raise Unsupported(f"{c.path}.caption_projection_dim", f"must be the width of the blocks, {hidden}")
    kind = c.text("qk_norm", default="")
    if kind not in ("", "rms_norm"):
        raise Unsupported(f"{c.path}.qk_norm", f"{kind!r} is not supported; supported: null and rms_norm")
    attention = JointAttention(heads, head_dim, "t5" if kind else "", rope=False, by_head=True)
    last = JointAttention(heads, head_dim, "t5" if kind else "", rope=False, by_head=True, text_out=False)
    dims, layers = (JOINT_TOKENS, Dim("h", hidden)), c.integer("num_layers", default=18)
    runs = [Run("transformer_blocks", 0, layers - 1, DoubleBlock(attention), dims)] if layers > 1 else []
    runs.append(Run("transformer_blocks", layers - 1, 1, LastDoubleBlock(last), dims))
    channels = c.integer("in_channels", default=16) * patch**2
    stem = JointStem(
        channels,
        c.integer("joint_attention_dim", default=4096),
        c.integer("pooled_projection_dim", default=2048),
        hidden,
        patch=patch,
        positions=c.integer("pos_embed_max_size", default=96) ** 2,
    )
    network = _network(c, hidden, tuple(runs), stem, c.integer("out_channels", default=16) * patch**2, channels)
    return replace(network, tokens=(c.integer("sample_size", default=128) // patch) ** 2, memory_tokens=SD3_PROMPT)


def _cogvideo(c: Config) -> Network:
    """Its tokens are the patches of all latent frames."""
    for key in ("patch_size_t", "ofs_embed_dim"):
        if c.has(key):
            raise Unsupported(f"{c.path}.{key}", "CogVideoX 1.5 is not supported")
    heads, head_dim = c.integer("num_attention_heads", default=30), c.integer("attention_head_dim", default=64)
    hidden, time, patch = heads * head_dim, c.integer("time_embed_dim", default=512), c.integer("patch_size", default=2)
    rope, affine = c.flag("use_rotary_positional_embeddings", default=False), c.flag("norm_elementwise_affine", default=True)
    frames = (c.integer("sample_frames", default=49) - 1) // c.integer("temporal_compression_ratio", default=4) + 1
    patches = (c.integer("sample_height", default=60) // patch) * (c.integer("sample_width", default=90) // patch) * frames
    prompt = c.integer("max_text_seq_length", default=226)
    block = VideoBlock(heads, head_dim, time, c.flag("attention_bias", default=True), rope, affine)
    channels = c.integer("in_channels", default=16)
    stem = VideoStem(
        channels,
        patch,
        hidden,
        c.integer("text_embed_dim", default=4096),
        time,
        0 if rope else prompt + patches,
        c.flag("patch_bias", default=True),
    )
    out = c.integer("out_channels", default=16) * patch**2
    runs = (Run("transformer_blocks", 0, c.integer("num_layers", default=30), block, (JOINT_TOKENS, Dim("h", hidden))),)
    network = _network(c, hidden, runs, stem, out, channels * patch**2, VideoTail(hidden, time, out, affine))
    return replace(network, tokens=patches, memory_tokens=prompt)


def _network(c: Config, hidden: int, runs: tuple[Run, ...], stem: Any, out: int, channels: int, tail: Any = None) -> Network:
    return Network(
        c.name,
        c.architecture,
        hidden,
        0,
        runs,
        stem,
        tail or ImageTail(hidden, out),
        RegressionHead(out),
        dtype=c.dtype(),
        stem_dims=(TOKENS, Dim("C·p²", channels)),
        head_dims=(TOKENS, Dim("C·p²", out)),
    )
