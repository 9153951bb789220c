"""model.py of nanoGPT: GPT-2 with one joined projection, SDPA, a plain GELU, biases everywhere or nowhere, and a head tied to the embedding."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from everybyte.basics.errors import Unsupported
from everybyte.basics.record import Record
from everybyte.layers.attention.grouped import Attention, Projections, Scores
from everybyte.layers.blocks.transformer import Block, FinalNorm
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head, cross_entropy
from everybyte.layers.network import Embedding, Network, Run
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value

RATE = 0.1
"""A rate above zero marks where dropout stands; the setting `dropout` says how high it is."""


class Output(Record, frozen=True):
    """The head and the loss: `logits, loss = model(X, Y)`. The loop's variable holds the logits, and those of the micro-batch before until the
    call returns."""

    head: Head

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> the loss."""
        dtype = t.setup.compute or x.dtype
        before = ops.made(t, "logits of the micro-batch before", (*x.dims[:-1], Dim("V", self.head.vocab)), dtype)
        with t.scope("loss", x, before):
            logits = self.head.logits(t, x)
            t.linger(logits)
            return cross_entropy(t, logits)


@lru_cache(maxsize=64)
def rendition(network: Network) -> Network:
    """nanoGPT's form of a GPT-2. Raises Unsupported for any other network."""
    stem = network.stem
    if not isinstance(stem, Embedding) or not stem.positions or not network.tied:
        raise Unsupported("model", "nanoGPT is a GPT-2: learned positions and a head tied to the embedding; this model is another one")
    bias = _bias(network.runs[0].layer)
    norm = Norm("layer", bias=bias)
    runs = tuple(Run("transformer.h", run.first, run.count, _block(run.layer, norm, bias=bias)) for run in network.runs)
    table = Embedding(
        network.vocab,
        network.hidden,
        "transformer.wte",
        positions=stem.positions,
        position_leaf="transformer.wpe",
        dropout=RATE,
    )
    head = Head(network.hidden, network.vocab, tied=True, upcast=False)
    return Network(
        network.name,
        "nanogpt",
        network.hidden,
        network.vocab,
        runs,
        table,
        FinalNorm(norm, "transformer.ln_f"),
        Output(head),
        tied=True,
        dtype=network.dtype,
        max_positions=network.max_positions,
    )


def _bias(layer: object) -> bool:
    if not isinstance(layer, Block) or not isinstance(layer.mixer, Attention) or not isinstance(layer.mlp, PlainMLP):
        raise Unsupported("model", f"a block of the kind {type(layer).__name__} is not nanoGPT's: attention, then one plain feed-forward layer")
    mixer = layer.mixer
    if mixer.rotary is not None or mixer.kv_heads != mixer.heads or mixer.qk_norm.over:
        raise Unsupported("model", "nanoGPT's attention has no rotary positions, no grouped heads and no norms of queries and keys")
    return mixer.projections.qkv_bias


def _block(layer: Block, norm: Norm, *, bias: bool) -> Block:
    attention: Attention = layer.mixer
    mixer = Attention(
        attention.hidden,
        attention.heads,
        attention.heads,
        attention.head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias, fused="c_attn", split=True, names=("", "", "", "c_proj")),
        rotary=None,
        scores=Scores(wide_softmax=False),
        dropout=RATE,
        out_dropout=RATE,
    )
    mlp = replace(layer.mlp, activation="gelu", bias=bias, names=("c_fc", "c_proj"), dropout=RATE)
    return Block(mixer, mlp, norm, ("ln_1", "ln_2"), mixer_name="attn")
