"""The parts that all graphs share: weights with their devices, inputs, norms, gates, the caches."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.allocator import ggml_ops as op
from everybyte.allocator.ggml import F16, F32, I32, I64, OUTPUT, Graph, Kind, Tensor, kind
from everybyte.engines.llamacpp.graph.prompt import Placement, Prompt
from everybyte.engines.llamacpp.release import is_fork

MASK_STEP = 64
"""Rows of the mask are padded to so many tokens where it is cast (llama.cpp GGML_KQ_MASK_PAD)."""
MANY_EXPERTS = 2
"""More chosen experts than these are summed by one node in the fork (ggml_multi_add)."""


class Window(NamedTuple):
    """One of the two caches, as the graph sees it."""

    cells: int
    mask: Tensor
    key_rows: Tensor | None
    value_rows: Tensor | None
    key_turn: Tensor | None
    value_turn: Tensor | None


class Builder:
    """A graph under construction."""

    def __init__(self, prompt: Prompt, placement: Placement, hidden: int, layers: int) -> None:
        self.prompt = prompt
        self.release = prompt.release
        self.placement = placement
        self.graph = Graph()
        self.hidden = hidden
        self.layers = layers
        self.tokens = prompt.tokens
        self.full: Window | None = None
        self.slid: Window | None = None
        self.copied_states: Tensor | None = None

    @property
    def cpu(self) -> int:
        """The number of host memory."""
        return self.placement.gpus

    # -- weights --------------------------------------------------------------------------------------------------------------
    def matrix(self, name: str, layer: int, *ne: int, form: Kind | None = None) -> Tensor:
        """A weight matrix of a layer."""
        device = self.placement.tensor(name, layer)
        form = form or self.placement.kind(name, layer)
        stays = device == self.cpu and form.block > 1 and self.placement.stays(name, layer)
        return op.outside(form, *ne, device=device, stays=stays)

    def vector(self, name: str, layer: int, *ne: int) -> Tensor:
        """A norm's weight, a bias."""
        return op.outside(F32, *ne, device=self.placement.tensor(name, layer))

    def linear(self, name: str, layer: int, x: Tensor, width: int, bias: bool = False) -> Tensor:
        """x·Wᵀ, plus a bias."""
        out = op.mul_mat(self.matrix(name, layer, x.ne[0], width), x)
        return op.like("add", out, self.vector(f"{name}.bias", layer, width)) if bias else out

    # -- elementwise ----------------------------------------------------------------------------------------------------------
    def norm(self, x: Tensor, name: str, layer: int, weight: bool = True) -> Tensor:
        """RMSNorm; the fork has one node for it. Where every layer is on a GPU the norm is pinned to the device of its layer."""
        if is_fork(self.release) and weight:
            return op.like("fused_rms_norm", x, self.vector(name, layer, x.ne[0]), kind=F32)
        out = op.like("rms_norm", x)
        if not weight:
            return out
        if self.placement.whole and layer < self.layers:
            out.device = self.placement.layer(layer)
        return op.like("mul", out, self.vector(name, layer, x.ne[0]))

    def layer_norm(self, x: Tensor, name: str, layer: int, bias: bool = True) -> Tensor:
        """LayerNorm."""
        out = op.like("norm", x)
        if self.placement.whole and layer < self.layers:
            out.device = self.placement.layer(layer)
        out = op.like("mul", out, self.vector(name, layer, x.ne[0]))
        return op.like("add", out, self.vector(f"{name}.bias", layer, x.ne[0])) if bias else out

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """act(gate)·up."""
        if is_fork(self.release):
            return op.like("fused_mul_unary", gate, up)
        if self.release.has("joins_gates"):
            return Tensor(gate.kind, gate.ne, "glu", (gate, up))
        return op.like("mul", op.like("unary", gate), up)

    def tanh_capped(self, x: Tensor) -> Tensor:
        """cap·tanh(x / cap)."""
        return op.like("scale", op.like("unary", op.like("scale", x)))

    # -- inputs ---------------------------------------------------------------------------------------------------------------
    def embedding(self, vocab: int, scaled: bool) -> Tensor:
        """Token embedding on the host. Since 2026 each graph holds the other ways to fill a batch too; their inputs stay."""
        table = op.outside(self.placement.kind("token_embd", -1), self.hidden, vocab, device=self.cpu)
        x = op.get_rows(table, op.new_input(I32, self.tokens))
        if self.release.has("takes_embeddings"):
            self.graph.expand(x)
            self.graph.expand(op.new_input(F32, self.hidden, self.tokens))
        if self.release.has("mixes_embeddings"):
            self._mixed(table)
        if scaled:
            x = op.like("mul", x, op.new_input(F32, 1, self.tokens)) if self.release.has("mixes_embeddings") else op.like("scale", x)
        if self.release.has("takes_embeddings"):
            self.graph.expand(x)
        return x

    def _mixed(self, table: Tensor) -> None:
        """Token rows written into a copy of an embedding input."""
        tokens, rows = op.new_input(I32, self.tokens), op.new_input(I64, self.tokens)
        copy = op.like("dup", op.new_input(F32, self.hidden, self.tokens))
        self.graph.expand(op.set_rows(copy, op.get_rows(table, tokens), rows))

    def window(self, cells: int, heads: tuple[int, int], one: bool = False) -> Window:
        """The inputs of a cache. `heads`: widths of a key and a value head, 0 where they differ; `one`: keys only."""
        prompt, release = self.prompt, self.release
        rows = self.tokens // prompt.streams
        if release.has("narrow_mask"):
            mask = op.new_input(F16 if prompt.flash else F32, cells, rows, 1, prompt.streams)
        else:
            mask = op.new_input(F32, cells, -(-rows // MASK_STEP) * MASK_STEP, 1, prompt.streams)
            mask = op.cast(mask, F16) if prompt.flash else mask
        key_rows = value_rows = None
        if release.has("writes_rows"):
            key_rows = op.new_input(I64, self.tokens)
            value_rows = None if one else op.new_input(I64, self.tokens * (1 if prompt.flash else prompt.widest_values))
        turns: list[Tensor | None] = [None, None]
        if release.has("turns_cache") and not one:
            turns = [self._hadamard(form, size, largest) for form, size, largest in ((prompt.key, heads[0], True), (prompt.value, heads[1], False))]
        return Window(cells, mask, key_rows, value_rows, turns[0], turns[1])

    def _hadamard(self, form: Kind, head: int, largest: bool) -> Tensor | None:
        """The rotation of a packed cache: the largest power of two that divides a key head, 64 for values."""
        if form.block == 1 or head % 64:
            return None
        size = 64
        while largest and head % (2 * size) == 0:
            size *= 2
        return op.new_input(F32, size, size)

    # -- caches ---------------------------------------------------------------------------------------------------------------
    def cache(self, layer: int, width: int, cells: int, form: Kind) -> Tensor:
        """A layer's part of the cache."""
        return op.outside(form, width, cells * self.prompt.streams, device=self.placement.layer(layer), weight=False)

    def store(self, cache: Tensor, rows: Tensor | None, x: Tensor, width: int) -> None:
        """Writes a batch into the cache."""
        if rows is not None:
            self.graph.expand(op.set_rows(cache, x, rows))
        else:
            self.graph.expand(op.copy_into(x, op.view(cache, width, self.tokens)))

    # -- the end --------------------------------------------------------------------------------------------------------------
    def output(self, x: Tensor, vocab: int, capped: bool, bias: bool = False) -> None:
        """Logits."""
        x = self.linear("output", self.layers, x, vocab, bias)
        if capped:
            x = self.tanh_capped(x)
        if self.release.has("takes_embeddings"):
            x.flags |= OUTPUT
        self.graph.expand(x)


def fp32() -> Kind:
    """The format of routers and convolutions."""
    return kind("f32")
