"""Encoders without a cache (llama.cpp models/bert.cpp, llama-graph.cpp build_attn_inp_no_cache)."""

from __future__ import annotations

from everybyte.allocator import ggml_ops as op
from everybyte.allocator.ggml import F16, F32, Tensor
from everybyte.engines.llamacpp.graph.builder import MASK_STEP, Builder
from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.blocks.encoder import PostNormBlock


def encoder_mask(b: Builder) -> Tensor:
    """Which tokens see which."""
    if b.release.has("narrow_mask"):
        return op.new_input(F16 if b.prompt.flash else F32, b.tokens, b.tokens)
    mask = op.new_input(F32, b.tokens, -(-b.tokens // MASK_STEP) * MASK_STEP)
    return op.cast(mask, F16) if b.prompt.flash else mask


def encoder_block(b: Builder, layer: int, block: PostNormBlock, x: Tensor, mask: Tensor, outputs: Tensor | None) -> Tensor:
    """norm(x + attention(x)), then norm(x + mlp(x)); `outputs`: the rows that go on from here."""
    y = b.linear("attn_output", layer, _attention(b, layer, block.attention, x, mask), b.hidden, bias=True)
    if outputs is not None:
        y, x = op.get_rows(y, outputs), op.get_rows(x, outputs)
    middle = b.layer_norm(op.like("add", y, x), "attn_output_norm", layer)
    inner = op.like("unary", b.linear("ffn_up", layer, middle, block.ffn, bias=True))
    y = b.linear("ffn_down", layer, inner, b.hidden, bias=True)
    return b.layer_norm(op.like("add", y, middle), "layer_output_norm", layer)


def _attention(b: Builder, layer: int, part: MultiHead, x: Tensor, mask: Tensor) -> Tensor:
    heads, width, n = part.heads, part.head_dim, b.tokens
    q, k, v = (op.reshape(b.linear(name, layer, x, heads * width, bias=True), width, heads, n) for name in ("attn_q", "attn_k", "attn_v"))
    if b.release.has("puts_qkv_first"):
        for tensor in (q, k, v):
            b.graph.expand(tensor)
    if b.release.has("writes_rows"):
        q = op.view(q, width, heads, n, 1)
    q, k = op.permute(q, 0, 2, 1, 3), op.permute(k, 0, 2, 1, 3)
    if b.prompt.flash:
        k, v = op.cast(k, F16), op.cast(op.permute(v, 0, 2, 1, 3), F16)
        out = op.reshape(op.flash(q, k, v, mask), heads * width, n)
    else:
        scores = op.like("soft_max", Tensor(F32, (n, n, heads), "mul_mat", (k, q)), mask)
        values = op.cont(op.transpose(op.permute(v, 0, 2, 1, 3)))
        out = Tensor(F32, (width, n, heads), "mul_mat", (values, scores))
        out = op.cont(op.permute(out, 0, 2, 1, 3), heads * width, n)
    return b.graph.expand(out)
