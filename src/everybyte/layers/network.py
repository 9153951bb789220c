"""A network: an embedding, runs of equal blocks, a final norm, a head; and towers beside them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import msgspec

from everybyte.basics.dtypes import BF16, DType
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import layer_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.replay import Recompute, Tally, letters, tally
from everybyte.layers.recording.setup import Packed, Setup
from everybyte.layers.recording.size import QUERIES, TOKENS, Dim, Dims
from everybyte.layers.recording.tape import Cache, Parameter, Tape, Value


class Layer(Protocol):
    """Anything that writes its forward pass on a tape. Layers are frozen and hashable."""

    def forward(self, t: Tape, x: Value) -> Value:
        """Writes the steps from x to the returned value."""
        ...


class Run(Record, frozen=True):
    """`count` equal blocks in a row, called `{prefix}.{first}` and on; `first` -1: one module called `prefix`."""

    prefix: str
    first: int
    count: int
    layer: Any
    """A Layer."""
    dims: Dims = ()
    """Shape of the hidden states that it is given, where that is not (n, h)."""

    @property
    def label(self) -> str:
        """`layers.0-31`."""
        name = self.prefix.rsplit(".", 1)[-1]
        if self.first < 0:
            return name
        return f"{name}.{self.first}" if self.count == 1 else f"{name}.{self.first}-{self.first + self.count - 1}"


class Embedding(Record, frozen=True):
    """Token embedding, with learned positions, token types, a norm or dropout behind it where the family has them."""

    vocab: int
    hidden: int
    leaf: str = "embed_tokens"
    positions: int = 0
    position_leaf: str = "embed_positions"
    positions_by_sequence: bool = False
    """Positions are looked up for every sequence (OPT), not once for all."""
    types: int = 0
    norm: str = ""
    """Name of a LayerNorm behind the sum, empty for none."""
    dropout: float = 0.0
    project_from: int = 0
    """Width of the table where it differs from the hidden size and is projected (OPT-350m, ALBERT)."""
    project_leaf: str = "project_in"
    scaled: bool = False
    """Multiplied by a constant (Gemma, Granite)."""
    tied: bool = False
    """The table is that of another embedding (encoder and decoder of T5)."""
    type_leaf: str = "token_type_embeddings"

    def forward(self, t: Tape, x: Value) -> Value:
        """ids (n) -> (n, h)."""
        hidden = Dim("h", self.hidden)
        with t.scope(self.leaf):
            out = ops.embedding(
                t, "weight", Dim("V", self.vocab), Dim("w", self.project_from) if self.project_from else hidden, tied=self.tied, shared=t.setup.shared_table
            )
        if self.project_from:
            out = linear(t, out, self.project_leaf, hidden)
        if self.scaled:
            out = ops.scale(t, out)
        if self.positions:
            rows = TOKENS if self.positions_by_sequence else QUERIES
            with t.scope(self.position_leaf):
                out = ops.add(t, out, ops.embedding(t, "weight", Dim("p", self.positions), hidden, rows))
        if self.types:
            with t.scope(self.type_leaf):
                out = ops.add(t, out, ops.embedding(t, "weight", Dim("types", self.types), hidden))
        if self.norm:
            out = layer_norm(t, out, self.norm)
        return ops.dropout(t, out, self.dropout)


class Tower(Record, frozen=True):
    """A network that runs before the main one on its own batch (vision encoder, speech encoder, text encoder of a pair)."""

    name: str
    tokens_per_item: int
    """Tokens of one item (image, clip) inside the tower; 0 where the job says (the text of an encoder: m)."""
    runs: tuple[Run, ...]
    hidden: int
    stem: Any = None
    """A Layer: what makes the tower's first hidden states."""
    tail: Any = None
    """A Layer: norms, poolers, projectors behind the blocks."""
    stem_dims: Dims = ()
    """Shape of what the stem is given (pixels, sound features); empty for ids."""


class Network(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Everything that the configuration says about the model's memory. `stem` makes the first hidden states, `tail` is the final norm.

    Two networks are equal if they are the same object, so that what is worked out for one is found again at once.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    runs: tuple[Run, ...]
    stem: Any
    tail: Any
    head: Any
    """A Layer whose result is the loss (`layers.loss`), or None."""
    tied: bool = False
    towers: tuple[Tower, ...] = ()
    dtype: DType = BF16
    """Type of the checkpoint's weights."""
    stored: Packed | None = None
    """The packed form of the checkpoint's linear layers, where its config says so."""
    max_positions: int = 0
    experts: int = 0
    top_k: int = 0
    stem_dims: Dims = ()
    """Shape of what the stem is given (pixels); empty for ids."""
    head_dims: Dims = ()
    """Shape of what the head is given, where that is not (n, h): a classifier of whole images sees one row each."""
    tail_label: str = "norm"
    """What rows call the tail."""
    tokens: int = 0
    """Tokens of an item where the network fixes them (an image of the configured size), 0 where the job says."""
    mtp: int = 0
    """Blocks of multi-token prediction: the last run, not counted as layers."""
    memory_tokens: int = 0
    """Encoder positions m where the network or its pipeline fixes them (Whisper: 1500; a prompt of CLIP: 77), 0 where the job says."""

    def memory(self, length: int) -> int:
        """Encoder positions m: those that the network fixes, else as many as the sequence has tokens where there is a text encoder, else none."""
        return self.memory_tokens or (length if any(tower.name == "encoder" for tower in self.towers) else 0)

    @property
    def layers(self) -> int:
        """Number of blocks of the main network."""
        return sum(run.count for run in self.runs) - self.mtp


class Written(Record, frozen=True):
    """A layer's steps worked out once for a setup."""

    parameters: tuple[Parameter, ...]
    caches: tuple[Cache, ...]
    tally: Tally
    out_dtype: DType
    out_grad: bool


@lru_cache(maxsize=4096)
def write(
    layer: Any,
    setup: Setup,
    dims: Dims,
    stream: DType,
    recompute: Recompute = "none",
    keep_gradients: bool = True,
    is_last: bool = False,
    grad: bool = True,
    is_batch: bool = False,
) -> Written:
    """The layer's parameters, caches and tally for hidden states of `dims` in type `stream`, which need a gradient or not; `is_batch`: for images
    that live outside the step, as token ids always do. Worked out once and kept."""
    tape = Tape(setup)
    start = tape.given("hidden states", dims, stream, grad=grad, persistent=is_batch or not dims or dims == (TOKENS,))
    start.storage.place = "input"
    out = layer.forward(tape, start)
    counted = tally(tape, start, out, recompute, keep_gradients=keep_gradients, is_last=is_last)
    return Written(tuple(tape.parameters), tuple(tape.caches), counted, out.dtype, out.grad)


class Declaration(Record, frozen=True):
    """What a layer declares: its weights and buffers, what it remembers, and the sizes behind its letters."""

    parameters: tuple[Parameter, ...]
    caches: tuple[Cache, ...]
    letters: tuple[tuple[str, int], ...]


@lru_cache(maxsize=4096)
def declare(layer: Any, setup: Setup, dims: Dims) -> Declaration:
    """The layer's declarations alone, without the course of a step: a third of the work of `write`."""
    tape = Tape(setup)
    layer.forward(tape, tape.given("hidden states", dims, BF16, persistent=dims == (TOKENS,)))
    return Declaration(tuple(tape.parameters), tuple(tape.caches), letters(tape))


def hidden_dims(hidden: int) -> Dims:
    """Hidden states (n, h)."""
    return (TOKENS, Dim("h", hidden))
