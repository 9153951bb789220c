"""T5, Flan-T5 and mT5: an encoder, and a decoder that reads it by cross-attention. Encoder and decoder share the embedding. The head of the first T5 is the
embedding too; T5 1.1, Flan-T5, T0 and mT5 have a head of their own (`tie_word_embeddings: false`), which their checkpoints hold."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.blocks.t5 import T5Block, T5FeedForward, T5Tail
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Embedding, Network, Run, Tower
from everybyte.models.config import ACTIVATIONS, Config

NAMES = ("q", "k", "v", "o")
NO_BIAS = (False, False, False, False)


def build(c: Config) -> Network:
    """The network of a config.json of this family; `T5EncoderModel` is the encoder alone."""
    hidden, vocab = c.integer("d_model"), c.integer("vocab_size")
    dropout = c.number("dropout_rate", default=0.1)
    layers = c.integer("num_layers")
    tied = c.flag("tie_word_embeddings", default=c.model_type != "mt5")
    encoder = _runs(c, "encoder.block", layers, dropout, decoder=False)
    tail = T5Tail("encoder.final_layer_norm", dropout)
    if c.architecture in ("T5EncoderModel", "MT5EncoderModel"):
        stem = Embedding(vocab, hidden, "shared", dropout=dropout)
        return Network(c.name, c.model_type, hidden, vocab, encoder, stem, tail, None, dtype=c.dtype())
    tower = Tower("encoder", 0, encoder, hidden, Embedding(vocab, hidden, "shared", dropout=dropout, tied=True), tail)
    head = None
    if c.architecture.endswith("ForConditionalGeneration"):
        head = Head(hidden, vocab, tied=tied, upcast=False)
    scaled = tied and head is not None
    return Network(
        c.name,
        c.model_type,
        hidden,
        vocab,
        _runs(c, "decoder.block", c.integer("num_decoder_layers", default=layers), dropout, decoder=True),
        Embedding(vocab, hidden, "shared", dropout=dropout),
        T5Tail("decoder.final_layer_norm", dropout, scaled),
        head,
        tied=tied and head is not None,
        towers=(tower,),
        dtype=c.dtype(),
    )


def _runs(c: Config, prefix: str, layers: int, dropout: float, *, decoder: bool) -> tuple[Run, ...]:
    """The first block holds the table of relative positions, which all others share."""
    hidden = c.integer("d_model")
    heads, head_dim = c.integer("num_heads"), c.integer("d_kv", default=64)
    buckets = c.integer("relative_attention_num_buckets", default=32)
    activation, gated = _activation(c)
    mlp = T5FeedForward(hidden, c.integer("d_ff"), activation, gated, dropout)

    def block(bias: str) -> T5Block:
        attention = MultiHead(
            hidden,
            heads,
            head_dim,
            NAMES,
            NO_BIAS,
            cached=decoder,
            wide=False,
            dropout=dropout,
            bias=bias,
            buckets=buckets if bias == "own" else 0,
        )
        cross = MultiHead(hidden, heads, head_dim, NAMES, NO_BIAS, hidden, cached=True, wide=False, dropout=dropout, bias=bias)
        return T5Block(attention, cross if decoder else None, mlp, dropout)

    first = Run(prefix, 0, 1, block("own"))
    return (first, Run(prefix, 1, layers - 1, block("shared"))) if layers > 1 else (first,)


def _activation(c: Config) -> tuple[str, bool]:
    """(activation, gated) out of `feed_forward_proj`: `relu`, `gated-gelu` (which means gelu_new), `gated-silu` ..."""
    default = "gated-gelu" if c.model_type == "mt5" else "relu"
    value = c.text("feed_forward_proj", default=default)
    kind, _, name = value.rpartition("-")
    name = "gelu_new" if value == "gated-gelu" else name
    if kind not in ("", "gated") or name not in ACTIVATIONS:
        raise BadInput(f"{c.path}.feed_forward_proj", f"must be an activation function or gated-ACTIVATION, not {value!r}")
    return ACTIVATIONS[name], kind == "gated"
