"""The blocks of torchtitan: its Llama and Qwen modules on the part of heads, widths and tokens that one rank of a tensor-parallel group has."""

from __future__ import annotations

from typing import Any

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding
from everybyte.layers.recording import ops
from everybyte.layers.recording.replay import early_stop
from everybyte.layers.recording.size import TOKENS, Axis, B, Dim, Dims, Size
from everybyte.layers.recording.tape import Step, Tape, Value

NAMES = ("wq", "wk", "wv", "wo")
FEEDFORWARD = ("w1", "w3", "w2")
STORED = frozenset({"attention", "reduce_scatter", "all_to_all"})
"""Operations beside every second matrix product whose results selective recomputing keeps (parallelize.py `_save_list`)."""


class Group(Record, frozen=True):
    """A tensor-parallel group: `size` ranks; with `sequence` each has a part of the tokens between the branches (SequenceParallel)."""

    size: int = 1
    sequence: bool = True

    @property
    def splits_tokens(self) -> bool:
        """Whether tokens are divided between the branches."""
        return self.sequence and self.size > 1

    @property
    def tokens(self) -> Dim:
        """Tokens of one rank between the branches."""
        return Dim(f"n/{self.size}", 1, (B, Axis("s", share=(1, self.size)))) if self.splits_tokens else TOKENS

    def dims(self, hidden: int) -> Dims:
        """Hidden states between the branches."""
        return (self.tokens, Dim("h", hidden))

    def gathered(self, t: Tape, x: Value) -> Value:
        """All tokens (n, h) from those of each rank (n/t, h): gathered along the first dimension, then joined along the sequence; the gradient is
        reduce-scattered (torch distributed/_functional_collectives.py all_gather_tensor)."""
        if not self.splits_tokens:
            return x
        out = t.new("all_gather", (TOKENS, *x.dims[1:]), x.dtype, x.grad)
        whole = Size.of(out.dims, out.dtype)
        t.step("all_gather", (x,), (out,), scratch=whole, back_scratch=whole)
        return out

    def scattered(self, t: Tape, x: Value) -> Value:
        """Sums of parts (n, h), of which each rank gets some tokens (n/t, h)."""
        if not self.splits_tokens:
            return x
        out = t.new("reduce_scatter", (self.tokens, *x.dims[1:]), x.dtype, x.grad)
        whole = Size.of(x.dims, x.dtype)
        t.step("reduce_scatter", (x,), (out,), scratch=whole, back_scratch=whole)
        return out


class TitanEmbedding(Record, frozen=True):
    """The token embedding by rows of the vocabulary; its result is divided by tokens."""

    table: Embedding
    group: Group

    def forward(self, t: Tape, x: Value) -> Value:
        """ids (n) -> (n/t, h)."""
        return self.group.scattered(t, self.table.forward(t, x))


class StageEnd(Record, frozen=True):
    """Where a pipeline stage hands its hidden states on: they stay until their gradient comes back (torch.distributed.pipelining stage.py
    `fwd_cache`)."""

    next_comes: bool = False
    """The rank's next stage goes on with what it was sent."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h), kept."""
        out = t.new("received", x.dims, x.dtype, x.grad) if self.next_comes else Value(x.storage, x.dims, x.dtype, x.grad)
        t.step("send", (x,), (out,), saved=(x,))
        return out


class TitanBlock(Record, frozen=True):
    """TransformerBlock: x + attention(norm(x)), then + feed_forward(norm(x))."""

    mixer: Any
    mlp: Any
    norm: Norm
    group: Group
    compiled: bool = False
    mlp_name: str = "feed_forward"
    counts_products: bool = True
    """Its matrix products are those that selective recomputing counts; products of kernels of their own (NVFP4) are not."""
    stores_attention: bool = True
    """Selective recomputing knows the attention kernel that runs."""
    rope_table: Dims = ()
    """Positions by numbers of a table that the layer keeps; empty where there is one for the model."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> (n/t, h)."""
        if self.rope_table:
            t.buffer("attention.rope.cache", self.rope_table, FP32)
        first = len(t.steps)
        with t.scope("", x):
            h = self._branch(t, x, "attention_norm", "attention", self.mixer)
            t.hold(h)
            out = self._branch(t, h, "ffn_norm", self.mlp_name, self.mlp)
        self._store(t, t.steps[first:])
        return out

    def _branch(self, t: Tape, x: Value, norm: str, name: str, layer: Any) -> Value:
        branch = self.norm.forward(t, x, norm)
        with t.scope(name, x):
            inner = self.group.gathered(t, branch)
            result = self.group.scattered(t, layer.forward(t, inner))
        return ops.add(t, x, result)

    def _store(self, t: Tape, steps: list[Step]) -> None:
        """Every second matrix product beginning with the first, attention and collectives. A compiled block keeps what backward needs alone, so not
        the last product, whose result goes into the sum."""
        products = 0
        last = early_stop(t) if self.compiled else len(steps)
        for index, step in enumerate(steps[:last]):
            chosen = step.what in STORED and (self.stores_attention or step.what != "attention")
            if step.what == "linear" and self.counts_products and not step.place.endswith("router.gate"):
                products += 1
                chosen = products % 2 == 1
            if chosen and (not self.compiled or index < last):
                t.store(*step.outputs)
