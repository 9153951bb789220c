"""Nemotron-H and Nemotron 3: a pattern of Mamba-2, attention, feed-forward and expert blocks, one mixer a block (modeling_nemotron_h.py)."""

from __future__ import annotations

from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.blocks.mixer import MixerBlock
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.layers.recurrent.mamba2 import Mamba2
from everybyte.models.config import ACTIVATIONS, Config
from everybyte.models.decoder import Places, decoder, expert_counts, tied

PLACES = Places("model.embeddings", "model.layers", "model.norm_f")
NORM = Norm(style="cast")
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of `hybrid_override_pattern`."""
WORDS = {"linear_attention": "mamba", "full_attention": "attention", **{word: word for word in LETTERS.values()}}
"""Words of `layers_block_type` and `layer_types`."""
NAMES = ("up_proj", "down_proj")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    pattern = _pattern(c)
    mixers: dict[str, Any] = {kind: MAKERS[kind](c) for kind in set(pattern)}
    layers = [MixerBlock(mixers[kind], NORM) for kind in pattern]
    experts = expert_counts(c) if "moe" in mixers else (0, 0)
    return decoder(c, layers=layers, tied=tied(c, default=False), norm=NORM, places=PLACES, experts=experts)


def _pattern(c: Config) -> list[str]:
    """The kind of every block."""
    text = c.fields.get("hybrid_override_pattern")
    if isinstance(text, str):
        kinds, known, key = [LETTERS.get(letter) for letter in text], LETTERS, "hybrid_override_pattern"
    else:
        key = "layers_block_type" if c.has("layers_block_type") else "layer_types"
        kinds, known = [WORDS.get(word) for word in c.texts(key)], WORDS
    if not kinds or None in kinds:
        raise BadInput(f"{c.path}.{key}", f"must name the kind of every block; known: {', '.join(known)}")
    return [kind for kind in kinds if kind]


def _mamba(c: Config) -> Mamba2:
    bias = c.flag("use_bias", default=False)
    return Mamba2(
        c.integer("hidden_size"),
        c.integer("mamba_num_heads"),
        c.integer("mamba_head_dim"),
        c.integer("n_groups", "mamba_n_groups", default=8),
        c.integer("ssm_state_size", default=128),
        c.integer("conv_kernel", "mamba_d_conv", default=4),
        c.integer("chunk_size", "mamba_chunk_size", default=128),
        bias=bias,
        conv_bias=c.flag("use_conv_bias", default=True),
        out_bias=bias,
    )


def _attention(c: Config) -> Attention:
    hidden = c.integer("hidden_size")
    heads, kv_heads, _ = c.heads(hidden)
    head_dim = c.integer("head_dim", "attention_head_dim", default=128)
    return Attention(hidden, heads, kv_heads, head_dim, rotary=None, dropout=c.number("attention_dropout"))


def _activation(c: Config) -> str:
    name = c.text("mlp_hidden_act", default="relu2")
    if name not in ACTIVATIONS:
        raise BadInput(f"{c.path}.mlp_hidden_act", f"unknown activation function {name!r}; known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def _mlp(c: Config) -> PlainMLP:
    return PlainMLP(c.integer("hidden_size"), c.integer("intermediate_size"), _activation(c), bias=c.flag("mlp_bias", default=False), names=NAMES)


def _moe(c: Config) -> MoE:
    hidden, (experts, top_k) = c.integer("hidden_size"), expert_counts(c)
    latent = c.integer("moe_latent_size", default=0, least=0)
    normalize = c.flag("norm_topk_prob", default=True)
    router = Router(experts, top_k, score="sigmoid", wide=True, normalize="epsilon" if normalize else "", scaled=True, correction="e_score_correction_bias")
    routed = Experts(latent or hidden, c.integer("moe_intermediate_size"), experts, top_k, None, _activation(c))
    shared = PlainMLP(hidden, c.integer("moe_shared_expert_intermediate_size"), _activation(c), bias=c.flag("mlp_bias", default=False), names=NAMES)
    return MoE(hidden, router, routed, shared, latent=("fc1_latent_proj", "fc2_latent_proj") if latent else ("", ""))


MAKERS = {"mamba": _mamba, "attention": _attention, "mlp": _mlp, "moe": _moe}
"""What makes the mixer of each kind."""
