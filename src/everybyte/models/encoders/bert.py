"""BERT, RoBERTa and DistilBERT: encoders with a norm behind each branch."""

from __future__ import annotations

from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.blocks.encoder import MaskedHead, Pooler, PostNormBlock
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Embedding, Network, Run
from everybyte.models.config import Config

SELF = ("self.query", "self.key", "self.value", "")


def build(c: Config) -> Network:
    """The network of a config.json of this family: with the masked-language head, or the bare model with its pooler."""
    if c.architecture.startswith("DistilBert"):
        return _distilbert(c)
    root = "roberta" if c.architecture.startswith("Roberta") else "bert"
    hidden, vocab = c.integer("hidden_size"), c.integer("vocab_size")
    dropout = c.number("hidden_dropout_prob", default=0.1)
    heads, _, head_dim = c.heads(hidden)
    act = c.activation("gelu")
    attention = MultiHead(hidden, heads, head_dim, SELF, wide=False, dropout=c.number("attention_probs_dropout_prob", default=0.1))
    block = PostNormBlock(attention, c.integer("intermediate_size"), act, dropout)
    masked = c.architecture.endswith("ForMaskedLM")
    prefix = f"{root}." if masked else ""
    tied = c.flag("tie_word_embeddings", default=True)
    names = ("lm_head.dense", "lm_head.layer_norm") if root == "roberta" else ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm")
    leaf = "lm_head" if root == "roberta" else "cls.predictions"
    return Network(
        c.name,
        c.model_type,
        hidden,
        vocab,
        (Run(f"{prefix}encoder.layer", 0, c.integer("num_hidden_layers"), block),),
        _embedding(c, f"{prefix}embeddings", dropout, hidden, c.integer("type_vocab_size", default=2, least=0)),
        MaskedHead(hidden, act, *names) if masked else Pooler(hidden, hidden),
        Head(hidden, vocab, tied, leaf, bias=True, upcast=False) if masked else None,
        tied and masked,
        dtype=c.dtype(),
        max_positions=c.integer("max_position_embeddings", default=512),
    )


def _embedding(c: Config, place: str, dropout: float, hidden: int, types: int) -> Embedding:
    positions = c.integer("max_position_embeddings", default=512)
    return Embedding(
        c.integer("vocab_size"),
        hidden,
        f"{place}.word_embeddings",
        positions,
        f"{place}.position_embeddings",
        positions_by_sequence=c.architecture.startswith("Roberta"),
        types=types,
        type_leaf=f"{place}.token_type_embeddings",
        norm=f"{place}.LayerNorm",
        dropout=dropout,
    )


def _distilbert(c: Config) -> Network:
    """DistilBERT: half of BERT's layers, no token types, no pooler (modeling_distilbert.py)."""
    hidden, vocab = c.integer("dim", default=768), c.integer("vocab_size", default=30522)
    dropout = c.number("dropout", default=0.1)
    heads = c.integer("n_heads", default=12)
    act = c.activation("gelu", "activation")
    names = ("q_lin", "k_lin", "v_lin", "out_lin")
    attention = MultiHead(hidden, heads, hidden // heads, names, wide=False, dropout=c.number("attention_dropout", default=0.1))
    block = PostNormBlock(
        attention,
        c.integer("hidden_dim", default=3072),
        act,
        dropout,
        attention_out="",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        norm="output_layer_norm",
        attention_dropout=False,
    )
    masked = c.architecture.endswith("ForMaskedLM")
    prefix = "distilbert." if masked else ""
    return Network(
        c.name,
        c.model_type,
        hidden,
        vocab,
        (Run(f"{prefix}transformer.layer", 0, c.integer("n_layers", default=6), block),),
        _embedding(c, f"{prefix}embeddings", dropout, hidden, 0),
        MaskedHead(hidden, act, "vocab_transform", "vocab_layer_norm") if masked else None,
        Head(hidden, vocab, tied=True, leaf="vocab_projector", bias=True, upcast=False) if masked else None,
        masked,
        dtype=c.dtype(),
        max_positions=c.integer("max_position_embeddings", default=512),
    )
