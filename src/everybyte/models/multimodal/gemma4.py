"""Gemma 4: sliding and full attention of different shapes, keys that are also values, experts beside the dense layer, inputs of each layer's own;
an image tower or, in the unified models, an embedder in its place (transformers modeling_gemma4.py, modeling_gemma4_unified.py)."""

from __future__ import annotations

from collections.abc import Mapping

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.layers.blocks.gemma4 import NORM, Gemma4Attention, Gemma4Block, Gemma4Experts, Gemma4Stem
from everybyte.layers.blocks.transformer import FinalNorm
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Network, Run, Tower
from everybyte.layers.recording.size import TOKENS, Dim
from everybyte.layers.vision.gemma4 import Gemma4Patches, Gemma4Pooler, UnifiedPatches, UnifiedSound
from everybyte.layers.vision.stems import cut
from everybyte.models.config import Config
from everybyte.models.patterns import runs_of, sliding_layers

PERIOD = 6
"""Every sixth layer attends to all tokens where `layer_types` is silent."""
NAMES = ("gate_proj.linear", "up_proj.linear", "down_proj.linear")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    text = c.part("text_config")
    whole = text is not c
    place = "model.language_model" if whole else "model"
    hidden, vocab = text.integer("hidden_size"), text.integer("vocab_size", default=262144)
    blocks = _blocks(text)
    own, experts = _own_width(text), blocks[0].experts
    stem = Gemma4Stem(vocab, hidden, place, own, len(blocks), text.integer("vocab_size_per_layer_input", default=262144))
    tied = c.flag("tie_word_embeddings", default=text.flag("tie_word_embeddings", default=True))
    return Network(
        c.name,
        c.model_type,
        hidden,
        vocab,
        runs_of(f"{place}.layers", blocks),
        stem,
        FinalNorm(NORM, f"{place}.norm"),
        Head(hidden, vocab, tied, softcap=text.has("final_logit_softcapping")),
        tied,
        towers=_towers(c, hidden) if whole else (),
        dtype=text.dtype() if text.has("dtype") or text.has("torch_dtype") else c.dtype(),
        max_positions=text.integer("max_position_embeddings", default=131072),
        experts=experts.experts.count if experts else 0,
        top_k=experts.experts.top_k if experts else 0,
    )


def _own_width(c: Config) -> int:
    """Width of the inputs of each layer's own: 256 by default, but none in the models whose values are their keys (they say so, or are silent)."""
    return c.integer("hidden_size_per_layer_input", default=0 if c.flag("attention_k_eq_v", default=False) else 256, least=0)


def _blocks(c: Config) -> list[Gemma4Block]:
    hidden, layers = c.integer("hidden_size"), c.integer("num_hidden_layers")
    sliding = sliding_layers(c, layers, period=PERIOD)
    sliding[-1] = False
    shared = c.integer("num_kv_shared_layers", default=0, least=0)
    if shared > layers:
        raise BadInput(f"{c.path}.num_kv_shared_layers", f"must be at most num_hidden_layers ({layers}), not {shared}")
    ffn, act, own = c.integer("intermediate_size"), c.activation("gelu_pytorch_tanh"), _own_width(c)
    experts = _experts(c, hidden)
    double = c.flag("use_double_wide_mlp", default=False)
    return [
        Gemma4Block(
            _attention(c, hidden, slides, index >= layers - shared),
            GatedMLP(hidden, ffn * (2 if double and index >= layers - shared else 1), act),
            experts,
            own,
            act,
        )
        for index, slides in enumerate(sliding)
    ]


def _attention(c: Config, hidden: int, slides: bool, reads_earlier: bool) -> Gemma4Attention:
    heads, kv_heads = c.integer("num_attention_heads", default=8), c.integer("num_key_value_heads", default=4)
    head_dim, one = c.integer("head_dim", default=256), c.flag("attention_k_eq_v", default=False)
    if not slides:
        head_dim = c.integer("global_head_dim", default=512)
        kv_heads = c.integer("num_global_key_value_heads", default=kv_heads) if one or c.model_type.startswith("gemma4_unified") else kv_heads
    if heads % kv_heads:
        raise BadInput(f"{c.path}.num_key_value_heads", f"must divide num_attention_heads: {kv_heads} does not divide {heads}")
    return Gemma4Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        window=c.integer("sliding_window", default=512) if slides else 0,
        one_projection=one and not slides,
        reads_earlier=reads_earlier,
        bias=c.flag("attention_bias", default=False),
        dropout=c.number("attention_dropout"),
    )


def _experts(c: Config, hidden: int) -> Gemma4Experts | None:
    if not c.flag("enable_moe_block", default=False):
        return None
    gate = Gate(c.activation("gelu_pytorch_tanh"))
    return Gemma4Experts(hidden, Experts(hidden, c.integer("moe_intermediate_size"), c.integer("num_experts"), c.integer("top_k_experts"), gate))


def _towers(c: Config, hidden: int) -> tuple[Tower, ...]:
    if c.architecture.startswith("Gemma4Unified"):
        return _unified(c, hidden)
    if isinstance(c.fields.get("audio_config"), Mapping):
        raise Unsupported(f"{c.path}.audio_config", "the sound encoder of Gemma 4 is not supported; set audio_config to null to leave it out")
    return (_vision(c.part("vision_config"), hidden),) if c.has("vision_config") else ()


def _vision(c: Config, out: int) -> Tower:
    """A tower with the decoder's norms; every projection holds a linear layer that may be clipped."""
    if c.flag("use_clipped_linears", default=False):
        raise Unsupported(f"{c.path}.use_clipped_linears", "true: clipped linear layers are not supported")
    place = "model.vision_tower"
    hidden = c.integer("hidden_size", default=768)
    heads, kv_heads, head_dim = c.heads(hidden)
    pixels = 3 * c.integer("patch_size", default=16) ** 2
    attention = Gemma4Attention(hidden, heads, kv_heads, head_dim, dropout=c.number("attention_dropout"), cached=False, inner=".linear")
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation("gelu_pytorch_tanh"), names=NAMES)
    block = Gemma4Block(attention, mlp, scaled=False)
    stem = Gemma4Patches(pixels, hidden, c.integer("position_embedding_size", default=10240), f"{place}.patch_embedder")
    area = c.integer("pooling_kernel_size", default=3) ** 2
    pooler = Gemma4Pooler(hidden, out, area, c.flag("standardize", default=False), place, "model.embed_vision")
    runs = (Run(f"{place}.encoder.layers", 0, c.integer("num_hidden_layers"), block),)
    return Tower("vision", 0, runs, hidden, stem, pooler, (TOKENS, Dim("C·p²", pixels)))


def _unified(c: Config, out: int) -> tuple[Tower, ...]:
    towers = []
    if c.has("vision_config"):
        v = c.part("vision_config")
        side, width = v.integer("patch_size", default=16) * v.integer("pooling_kernel_size", default=3), v.integer("mm_embed_dim", default=3840)
        stem = UnifiedPatches(3 * side**2, width, v.integer("mm_posemb_size", default=1120), out, "model.embed_vision")
        towers.append(Tower("vision", 0, (), out, stem, None, cut(3, (side, side))))
    if c.has("audio_config"):
        frame = c.part("audio_config").integer("audio_embed_dim", default=640)
        towers.append(Tower("sound", 0, (), out, UnifiedSound(frame, out, "model.embed_audio"), None, (TOKENS, Dim("frame", frame))))
    return tuple(towers)
