"""Adapters in front of the first block (peft 0.21 tuners/prompt_tuning, p_tuning, prefix_tuning, cpt), and tensors that adapters of all layers share."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.layers.recording import ops
from everybyte.layers.recording.setup import Adapter
from everybyte.layers.recording.size import B, Dim, Dims
from everybyte.layers.recording.tape import Tape, Value

PROMPTS = ("prompt", "p-tuning", "multitask-prompt", "cpt")
"""Kinds that put virtual tokens before the sequence."""
VIRTUAL_TOKENS = 20
"""Where the job names no number."""


def virtual_tokens(adapter: Adapter) -> int:
    """Tokens that a prompt or prefix adds to every sequence."""
    return adapter.option("num_virtual_tokens", VIRTUAL_TOKENS) if adapter.kind in (*PROMPTS, "prefix") else 0


class AdaptedStem(Record, frozen=True):
    """A network's stem with what its adapters have once for all layers."""

    stem: Any
    adapter: Adapter
    hidden: int
    cache_width: int
    """L·2·K: numbers of all layers' keys and values of one token."""
    widest: tuple[int, int, int]
    """Largest input, output and shorter side of the adapted layers."""

    def forward(self, t: Tape, x: Value) -> Value:
        """ids (n) -> (n, h)."""
        out: Value = self.stem.forward(t, x)
        with t.scope("prompt_encoder" if virtual_tokens(self.adapter) else ""):
            if self.adapter.kind in PROMPTS:
                return self._prompted(t, out)
            if self.adapter.kind == "prefix":
                self._prefix(t)
            self._shared(t)
        return out

    def _trained(self, t: Tape, leaf: str, *sizes: tuple[str, int]) -> Value:
        return t.parameter(leaf, tuple(Dim(letter, size) for letter, size in sizes), dtype=self.adapter.dtype, adapter=True)

    def _prompted(self, t: Tape, embedded: Value) -> Value:
        """Virtual tokens in the type of the embedding, joined with it. The batch counts them among its tokens."""
        number, width = ("v", virtual_tokens(self.adapter)), ("h", self.hidden)
        table = self._trained(t, "delta_embedding.weight" if self.adapter.kind == "cpt" else "embedding.weight", number, width)
        if self.adapter.kind == "p-tuning":
            table = self._encoded(t, table)
        if self.adapter.kind == "multitask-prompt":
            tasks = ("tasks", self.adapter.option("num_tasks", 1))
            self._trained(t, "prefix_task_cols", tasks, number, ("ranks", self.adapter.option("num_ranks", 1)))
            self._trained(t, "prefix_task_rows", tasks, ("ranks", self.adapter.option("num_ranks", 1)), width)
        if self.adapter.kind == "cpt":
            t.buffer("embedding.weight", (Dim(*number), Dim(*width)), t.setup.weights)
        repeated = t.new("repeat", (Dim("b·v", number[1], (B,)), embedded.dims[-1]), self.adapter.dtype, True)
        t.step("repeat", (table,), (repeated,))
        return ops.cat(t, (ops.cast(t, repeated, embedded.dtype), embedded), embedded.dims)

    def _encoded(self, t: Tape, table: Value) -> Value:
        """P-tuning's three linear layers over the virtual tokens (p_tuning/model.py, MLP)."""
        middle = ("h_e", self.adapter.option("encoder_hidden_size", self.hidden))
        for index, out in enumerate((middle, middle, ("h", self.hidden))):
            weight = self._trained(t, f"mlp_head.{2 * index}.weight", out, (table.dims[-1].letter, table.dims[-1].size))
            table = ops.linear(t, table, weight, self._trained(t, f"mlp_head.{2 * index}.bias", out), Dim(*out))
            if index < 2:
                table = ops.unary(t, "relu", table, keeps="output")
        return table

    def _prefix(self, t: Tape) -> None:
        """Keys and values of the virtual tokens for all layers, in the type of the base through backward."""
        number = virtual_tokens(self.adapter)
        width = Dim("L·2K", self.cache_width)
        table = self._trained(t, "embedding.weight", ("v", number), (width.letter, width.size))
        repeated = t.new("repeat", (Dim("b·v", number, (B,)), width), self.adapter.dtype, True)
        t.step("repeat", (table,), (repeated,))
        t.pin(ops.cast(t, repeated, t.setup.weights))

    def _shared(self, t: Tape) -> None:
        """Tensors that the adapters of all layers read."""
        inputs, outputs, short = self.widest
        rank = Dim("q", self.adapter.rank)
        frozen: dict[str, dict[str, Dims]] = {
            "vera": {"vera_A": (rank, Dim("in", inputs)), "vera_B": (Dim("out", outputs), rank)},
            "randlora": {
                "randlora_A": (rank, Dim("1", 1), Dim("short", short)),
                "randlora_B": (Dim("long", max(inputs, outputs)), Dim("n_b", -(-short // max(rank.size, 1))), rank),
            },
        }
        for leaf, dims in frozen.get(self.adapter.kind, {}).items():
            t.buffer(leaf, dims, self.adapter.dtype)
        if self.adapter.kind == "vblora":
            sizes = ("n_v", self.adapter.option("num_vectors", 256)), ("l", self.adapter.option("vector_length", 256))
            self._trained(t, "vblora_vector_bank", *sizes)


def prefixed(t: Tape, x: Value, width: Dim, joined: Dim) -> Value:
    """Keys or values behind those of the virtual tokens: (n, K) -> (b·(s + v), K)."""
    adapter = t.setup.adapter
    if adapter is None or adapter.kind != "prefix":
        return x
    before = t.from_outside("prefix", (Dim("b·v", virtual_tokens(adapter), (B,)), width), x.dtype)
    return ops.cat(t, (before, x), (joined, width))
