"""Attention over a cache of keys and values (llama-graph.cpp build_attn, build_attn_mha; ik_llama.cpp llm_build_kv)."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.allocator import ggml_ops as op
from everybyte.allocator.ggml import F32, Kind, Tensor
from everybyte.engines.llamacpp.graph.builder import Builder, Window


class Shape(NamedTuple):
    """Heads of queries and of keys, and the widths of a key and a value head."""

    heads: int
    kv_heads: int
    key: int
    value: int


def turned(x: Tensor, turn: Tensor | None) -> Tensor:
    """x times a Hadamard matrix, block by block."""
    if turn is None:
        return x
    size = turn.ne[0]
    rows = x.ne[0] * x.ne[1] * x.ne[2] * x.ne[3] // size
    flat = op.reshape(x if op.is_contiguous(x) else op.cont(x), size, rows)
    return op.reshape(op.mul_mat(turn, flat), *x.ne)


def attend(
    b: Builder,
    layer: int,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    shape: Shape,
    window: Window,
    *,
    capped: bool = False,
    sinks: Tensor | None = None,
    windowed: bool = False,
) -> Tensor:
    """softmax(q·kᵀ)·v over the cache, (heads·value width, tokens). q, k, v: (width, heads, tokens). Without k and v: those of an earlier layer.

    `windowed`: the model has windows, whose order of nodes is another.
    """
    release, prompt = b.release, b.prompt
    q = turned(q, window.key_turn)
    k = turned(k, window.key_turn) if k is not None else None
    v = turned(v, window.value_turn) if v is not None else None
    order = (q, k, v) if not release.has("takes_embeddings") or windowed else (q, v, k)
    for tensor in order:
        if tensor is not None:
            b.graph.expand(tensor)
    keys, values = _write(b, layer, k, v, shape, window)
    if release.has("writes_rows"):
        each = b.tokens // prompt.streams
        q = op.view(q, shape.key, shape.heads, each, prompt.streams, nb=(q.nb[0], q.nb[1], q.nb[2], q.nb[2] * each))
    queries = op.permute(q, 0, 2, 1, 3)
    read = op.view(keys, shape.key, window.cells, shape.kv_heads, prompt.streams)
    if prompt.flash:
        out = op.flash(
            queries,
            read,
            op.view(values, shape.value, window.cells, shape.kv_heads, prompt.streams),
            window.mask,
            *([sinks] if sinks is not None else []),
            extra=converted(b, shape, window.cells),
        )
        out = op.reshape(out, shape.value * shape.heads, b.tokens)
    else:
        out = _by_scores(b, queries, read, values, shape, window, capped, sinks)
    b.graph.expand(out)
    return turned(out, window.value_turn)


def _write(b: Builder, layer: int, k: Tensor | None, v: Tensor | None, shape: Shape, window: Window) -> tuple[Tensor, Tensor]:
    """Stores keys and values; without flash attention values are stored transposed."""
    widths = shape.key * shape.kv_heads, shape.value * shape.kv_heads
    keys = b.cache(layer, widths[0], window.cells, b.prompt.key)
    wide = b.prompt.widest_values if window.value_rows is not None and not b.prompt.flash else widths[1]
    values = b.cache(layer, wide, window.cells, b.prompt.value)
    if k is not None:
        b.store(keys, window.key_rows, op.view(k, widths[0], b.tokens) if window.key_rows is not None else k, widths[0])
    if v is None:
        return keys, values
    if b.prompt.flash:
        b.store(values, window.value_rows, op.view(v, widths[1], b.tokens) if window.value_rows is not None else v, widths[1])
    elif window.value_rows is not None:
        whole = v if op.is_contiguous(v) else op.cont(v, widths[1], b.tokens)
        if wide > widths[1]:
            whole = Tensor(F32, (wide, b.tokens), "pad", (op.reshape(whole, widths[1], b.tokens),))
        singles = op.reshape(whole, 1, wide * b.tokens)
        b.graph.expand(op.set_rows(op.reshape(values, 1, wide * window.cells * b.prompt.streams), singles, window.value_rows))
    else:
        flat = v if v.ne[0] == widths[1] else op.reshape(v, widths[1], b.tokens)
        b.graph.expand(op.copy_into(op.permute(flat, 1, 0, 2, 3), op.view(values, b.tokens, widths[1])))
    return keys, values


def _by_scores(b: Builder, queries: Tensor, keys: Tensor, values: Tensor, shape: Shape, window: Window, capped: bool, sinks: Tensor | None) -> Tensor:
    """Scores of all cells, softmax, product with the values."""
    scores = Tensor(F32, (window.cells, queries.ne[1], shape.heads, b.prompt.streams), "mul_mat", (keys, queries))
    if capped:
        scores = b.tanh_capped(scores)
    scores = op.like("soft_max", scores, window.mask, *([sinks] if sinks is not None else []))
    read = op.view(values, window.cells, shape.value, shape.kv_heads, b.prompt.streams)
    out = Tensor(F32, (shape.value, queries.ne[1], shape.heads, b.prompt.streams), "mul_mat", (read, scores))
    return op.cont(op.permute(out, 0, 2, 1, 3), shape.value * shape.heads, b.tokens)


def converted(b: Builder, shape: Shape, cells: int, values: bool = True) -> int:
    """Bytes of the fp16 copies of a packed cache that CUDA's flash attention makes behind its result; it reads fp16 as it is."""
    if not b.release.has("converts_cache") or not b.placement.gpus:
        return 0
    each = 2 * cells * b.prompt.streams * shape.kv_heads
    return each * (_packed(b.prompt.key) * shape.key + (values and _packed(b.prompt.value)) * shape.value)


def _packed(form: Kind) -> bool:
    return form.name != "f16"
