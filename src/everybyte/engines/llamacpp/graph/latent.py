"""Latent attention (MLA): of llama.cpp (models/deepseek2.cpp) and of ik_llama.cpp with its -mla and -amb (src/llama.cpp build_deepseek2)."""

from __future__ import annotations

from everybyte.allocator import ggml_ops as op
from everybyte.allocator.ggml import F16, F32, Tensor
from everybyte.engines.llamacpp.graph.attention import Shape, attend, converted
from everybyte.engines.llamacpp.graph.builder import Builder, Window
from everybyte.engines.llamacpp.release import is_fork
from everybyte.layers.attention.mla import MLA

MiB = 1 << 20
LONG = 128
"""Tokens from which on the fork expands the latent (-mla 2 and 3)."""


def latent_attention(b: Builder, layer: int, x: Tensor, part: MLA, window: Window, positions: Tensor) -> Tensor:
    """(h, n) -> (h, n)."""
    queries = _Queries(b, layer, x, part, positions)
    if is_fork(b.release):
        out = _forked(queries, window) if b.prompt.latent else _whole(queries, window)
    else:
        out = _absorbed(queries, window) if b.release.has("keeps_latent") else _whole(queries, window)
    return op.mul_mat(b.matrix("attn_output", layer, part.heads * part.v_dim, b.hidden), out)


class _Queries:
    """The projections of a layer: queries in two parts, the latent, the part of the keys that is turned."""

    def __init__(self, b: Builder, layer: int, x: Tensor, part: MLA, positions: Tensor) -> None:
        self.b, self.layer, self.part, self.positions = b, layer, part, positions
        heads, width, n = part.heads, part.nope + part.rope, b.tokens
        if part.q_rank:
            low = b.norm(b.linear("attn_q_a", layer, x, part.q_rank), "attn_q_a_norm", layer)
            whole = b.linear("attn_q_b", layer, low, heads * width)
        else:
            whole = b.linear("attn_q", layer, x, heads * width)
        steps = (4, 4 * width, 4 * width * heads, 4 * width * heads * n)
        self.whole = whole
        self.straight = op.view(whole, part.nope, heads, n, nb=steps)
        self.raw = op.view(whole, part.rope, heads, n, nb=steps)
        both = b.linear("attn_kv_a_mqa", layer, x, part.kv_rank + part.rope)
        row = 4 * (part.kv_rank + part.rope)
        self.key_turned = self.turn(op.view(both, part.rope, 1, n, nb=(4, row, row, row * n)))
        self.latent = b.norm(op.view(both, part.kv_rank, n, nb=(4, row, row * n, row * n)), "attn_kv_a_norm", layer)

    def turn(self, x: Tensor) -> Tensor:
        """Rotary positions."""
        return Tensor(F32, x.ne, "rope", (x, self.positions))

    @property
    def shape(self) -> Shape:
        """Of attention over all keys and values."""
        part = self.part
        return Shape(part.heads, part.heads, part.nope + part.rope, part.v_dim)


def _whole(q: _Queries, window: Window) -> Tensor:
    """All keys and values are made and stored."""
    b, part, n = q.b, q.part, q.b.tokens
    turned = None if b.release.has("takes_embeddings") else q.turn(q.raw)
    both = b.linear("attn_kv_b", q.layer, q.latent, part.heads * (part.nope + part.v_dim))
    step = 4 * (part.nope + part.v_dim)
    strides = (4, step, step * part.heads, step * part.heads * n)
    straight = op.view(both, part.nope, part.heads, n, nb=strides)
    values = op.cont(op.view(both, part.v_dim, part.heads, n, nb=strides))
    if not b.release.has("takes_embeddings"):
        values = op.view(values, part.v_dim * part.heads, n)
    if turned is None:
        queries = Tensor(F32, (part.nope + part.rope, part.heads, n), "rope", (op.reshape(q.whole, part.nope + part.rope, part.heads, n), q.positions))
    else:
        queries = op.concat(q.straight, turned, 0)
    keys = op.concat(straight, op.repeat(q.key_turned, part.rope, part.heads, n), 0)
    return attend(b, q.layer, queries, keys, values, q.shape, window)


def _absorbed(q: _Queries, window: Window) -> Tensor:
    """llama.cpp: queries are multiplied into the space of the latent, of which one head is stored."""
    b, part, n = q.b, q.part, q.b.tokens
    width = part.kv_rank + part.rope
    late = b.release.has("takes_embeddings")
    turned = q.turn(q.raw)
    into = op.mul_mat(b.matrix("attn_k_b", q.layer, part.nope, part.kv_rank, part.heads), op.permute(q.straight, 0, 2, 1, 3))
    into = op.permute(into, 0, 2, 1, 3)
    latent = op.reshape(q.latent, part.kv_rank, 1, n)
    queries = op.concat(into, turned, 0) if late else op.concat(turned, into, 0)
    keys = op.concat(latent, q.key_turned, 0) if late else op.concat(q.key_turned, latent, 0)
    for tensor in (queries, latent, keys) if late else (queries, keys, latent):
        b.graph.expand(tensor)
    streams = b.prompt.streams
    cache = b.cache(q.layer, width, window.cells, b.prompt.key)
    b.store(cache, window.key_rows, op.view(keys, width, n) if window.key_rows is not None else keys, width)
    if not b.release.has("stores_latent_once"):
        _store_values(q, latent, window)
    if b.release.has("writes_rows"):
        queries = op.view(queries, width, part.heads, n // streams, streams)
    asked = op.permute(queries, 0, 2, 1, 3)
    read = op.view(cache, width, window.cells, 1, streams)
    values = op.view(cache, part.kv_rank, window.cells, 1, streams)
    out_of = b.matrix("attn_v_b", q.layer, part.kv_rank, part.v_dim, part.heads)
    if b.prompt.flash:
        extra = converted(b, Shape(part.heads, 1, width, part.kv_rank), window.cells, values=False)
        out = op.mul_mat(out_of, op.permute(op.flash(asked, read, values, window.mask, extra=extra), 0, 2, 1, 3))
        out = op.permute(out, 0, 2, 1, 3)
        out = op.reshape(op.cont(out), part.v_dim * part.heads, n) if b.release.has("writes_rows") else op.cont(out, part.v_dim * part.heads, n)
    else:
        scores = Tensor(F32, (window.cells, n // streams, part.heads, streams), "mul_mat", (read, asked))
        scores = op.like("soft_max", scores, window.mask)
        straight = op.cont(op.transpose(values))
        out = op.mul_mat(out_of, Tensor(F32, (part.kv_rank, n // streams, part.heads, streams), "mul_mat", (straight, scores)))
        out = op.cont(op.permute(out, 0, 2, 1, 3), part.v_dim * part.heads, n)
    return b.graph.expand(out)


def _store_values(q: _Queries, latent: Tensor, window: Window) -> None:
    """Builds between b5145 and the end of 2025 store the latent once more as values."""
    b, rank = q.b, q.part.kv_rank
    cache = b.cache(q.layer, rank, window.cells, b.prompt.value)
    if window.value_rows is not None:
        b.store(cache, window.value_rows, op.view(latent, rank, b.tokens), rank)
    elif b.prompt.flash:
        b.store(cache, None, latent, rank)
    else:
        b.graph.expand(op.copy_into(op.permute(op.reshape(latent, rank, b.tokens), 1, 0, 2, 3), op.view(cache, b.tokens, rank)))


# -- the fork -----------------------------------------------------------------------------------------------------------------


def _forked(q: _Queries, window: Window) -> Tensor:
    """ik_llama.cpp with -mla 1, 2 or 3."""
    b, part, n = q.b, q.part, q.b.tokens
    rank, rope, mode = part.kv_rank, part.rope, b.prompt.latent
    turned = q.turn(q.raw)
    cache = b.cache(q.layer, rank + rope, window.cells, b.prompt.key)
    transposed = None
    if mode == 1 and not b.prompt.flash:
        transposed = b.cache(q.layer, rank, window.cells, b.prompt.key)
        b.graph.expand(op.copy_into(op.permute(q.latent, 1, 0, 2, 3), op.view(transposed, n, rank)))
    late = b.release.has("turned_first")
    row = op.permute(q.key_turned, 0, 2, 1, 3), q.latent
    stored = Tensor(F32, (rank + rope, n), "concat", row if late else row[::-1])
    b.graph.expand(op.copy_into(stored, op.view(cache, rank + rope, n)))
    read = op.view(cache, rank + rope, window.cells)
    if mode > 1 and b.prompt.flash and n >= LONG:
        return b.graph.expand(_expanded(q, turned, cache, window))
    into = op.mul_mat(b.matrix("attn_k_b", q.layer, part.nope, rank, part.heads), op.permute(q.straight, 0, 2, 1, 3))
    queries = Tensor(F32, (rank + rope, n, part.heads), "concat", (op.permute(turned, 0, 2, 1, 3), into))
    if b.prompt.flash and mode in (1, 3):
        out = op.permute(Tensor(F32, (rank, part.heads, n), "flash", (queries, read, op.view(cache, rank, window.cells), window.mask)), 0, 2, 1, 3)
    else:
        if transposed is None:
            values = Tensor(cache.kind, (window.cells, rank), "cont", (op.view(cache, window.cells, rank),))
        else:
            values = op.view(transposed, window.cells, rank)
        out = _fork_scores(q, queries, read, values, window)
    out = op.cont(op.permute(op.mul_mat(b.matrix("attn_v_b", q.layer, rank, part.v_dim, part.heads), out), 0, 2, 1, 3))
    return b.graph.expand(op.view(out, part.v_dim * part.heads, n))


def _fork_scores(q: _Queries, queries: Tensor, keys: Tensor, values: Tensor, window: Window) -> Tensor:
    """Scores of all heads at once, or of as many as -amb allows."""
    b, part, n = q.b, q.part, q.b.tokens
    rank, cells, most = part.kv_rank, window.cells, b.prompt.most_scores
    size = cells * n * part.heads * 4 // MiB
    if most <= 0 or most >= size:
        if n < LONG:
            scores = Tensor(F32, (cells, part.heads, n), "mul_mat", (keys, op.permute(queries, 0, 2, 1, 3)))
            scores = op.cont(op.permute(scores, 0, 2, 1, 3))
        else:
            scores = Tensor(F32, (cells, n, part.heads), "mul_mat", (keys, queries))
        return Tensor(F32, (rank, n, part.heads), "mul_mat", (values, op.like("soft_max", scores, window.mask)))
    steps = min(-(-size // most), part.heads)
    each = -(-part.heads // steps)
    out: Tensor | None = None
    for first in range(0, part.heads, each):
        count = min(each, part.heads - first)
        scores = Tensor(F32, (cells, n, count), "mul_mat", (keys, op.view(queries, part.kv_rank + part.rope, n, count)))
        made = Tensor(F32, (rank, n, count), "mul_mat", (values, op.like("soft_max", scores, window.mask)))
        out = made if out is None else op.concat(out, made, 2)
        b.graph.expand(out)
    assert out is not None
    return out


def _heads_at_once(q: _Queries, cells: int) -> int:
    """Heads whose expanded keys and values fit into -amb."""
    part, most = q.part, q.b.prompt.most_scores
    size, heads = part.heads * (part.nope + part.v_dim) * cells * 4 // MiB, part.heads
    while most > 0 and heads % 2 == 0 and size > most:
        heads, size = heads // 2, size // 2
    return heads


def _expanded(q: _Queries, turned: Tensor, cache: Tensor, window: Window) -> Tensor:
    """Keys and values are made from the stored latent, some heads at a time; flash attention runs over them."""
    b, part, n, cells = q.b, q.part, q.b.tokens, window.cells
    heads, width, step = _heads_at_once(q, cells), part.nope + part.rope, 4 * (part.nope + part.v_dim)
    form = F16 if b.placement.gpus else cache.kind
    matrix = b.matrix("attn_kv_b", q.layer, part.kv_rank, part.heads * (part.nope + part.v_dim))
    latent = op.view(cache, part.kv_rank, cells, nb=cache.nb)
    keys_turned = op.view(cache, part.rope, cells, 1, nb=cache.nb)
    repeated = Tensor(form, (part.rope, cells, heads), "repeat", (keys_turned if cache.kind is form else op.cast(keys_turned, F16),))
    late = b.release.has("turned_first")
    queries = op.permute(op.concat(turned, q.straight, 0) if late else op.concat(q.straight, turned, 0), 0, 2, 1, 3)
    b.graph.expand(queries)
    out: Tensor | None = None
    for _ in range(part.heads // heads):
        both = op.mul_mat(op.view(matrix, part.kv_rank, (part.nope + part.v_dim) * heads), latent)
        strides = (4, step * heads, step, step * heads * cells)
        values = op.cast(op.view(both, part.v_dim, cells, heads, nb=strides), form)
        straight = op.cast(op.view(both, part.nope, cells, heads, nb=strides), form)
        b.graph.expand(straight)
        b.graph.expand(values)
        keys = Tensor(form, (width, cells, heads), "concat", (repeated, straight) if late else (straight, repeated))
        b.graph.expand(keys)
        made = Tensor(F32, (part.v_dim, heads, n), "flash", (op.view(queries, width, n, heads, nb=queries.nb), keys, values, window.mask))
        made = op.reshape(made, part.v_dim * heads, n)
        out = made if out is None else op.concat(out, made, 0)
    assert out is not None
    return out
