"""Gemma 1, 2 and 3 (text): norms that multiply by 1 + weight in fp32, scaled embeddings, norms around the branches, windows in most layers."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Scores
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, layer_count, tied, window
from everybyte.models.patterns import sliding_layers

NORM = Norm("rms", "gemma")
DEFAULTS_3 = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
}
"""Gemma3TextConfig: published multimodal configurations leave out what equals it."""


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    return text(c)


def text(c: Config, places: Places = Places()) -> Network:  # noqa: B008 - a constant
    """A Gemma decoder, alone or as the language part of a multimodal model."""
    third = c.architecture.startswith("Gemma3") or c.model_type == "gemma3_text"
    if third:
        c = c.with_defaults(DEFAULTS_3)
    later = third or c.architecture.startswith("Gemma2") or c.model_type == "gemma2"
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        qk_norm=QkNorm(over="head", style="gemma") if third else QkNorm(),
        scores=Scores(softcap=later and _softcap(c, "attn_logit_softcapping", 0.0 if third else 50.0)),
        dropout=c.number("attention_dropout"),
    )
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation("gelu_pytorch_tanh"))
    if later:
        names = ("input_layernorm", "pre_feedforward_layernorm")
        block = Block(attention, mlp, NORM, names, post=("post_attention_layernorm", "post_feedforward_layernorm"))
    else:
        block = Block(attention, mlp, NORM)
    tie = tied(c, default=True)
    head = Head(hidden, c.integer("vocab_size"), tie, places.head, softcap=later and _softcap(c, "final_logit_softcapping", 0.0 if third else 30.0))
    slides = sliding_layers(c, layer_count(c), period=_period(c, third) if later else 0)
    local = replace(block, mixer=replace(attention, window=window(c, 4096)))
    layers = [local if slide else block for slide in slides]
    return decoder(c, tied=tie, norm=NORM, layers=layers, scaled=True, places=places, head=head)


def _period(c: Config, third: bool) -> int:
    """Of so many layers the last sees all tokens."""
    return c.integer("sliding_window_pattern", "_sliding_window_pattern", default=6 if third else 2)


def _softcap(c: Config, key: str, default: float) -> bool:
    """Whether logits are bent by tanh; null means not."""
    return bool(c.number(key) if key in c.fields else default)
