"""Adaptive layer norms: scale, shift and gate of every channel come from the time step (and a pooled prompt)."""

from __future__ import annotations

from everybyte.basics.dtypes import FP16
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import layer_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import JOINT_TOKENS, MEMORY_TOKENS, SEQUENCES, TOKENS, Dim
from everybyte.layers.recording.tape import Made, Tape, Value

EMBEDDERS = ("time_embedding.linear_1", "time_embedding.linear_2", "timestep_embedder.linear_1", "timestep_embedder.linear_2")
"""Linear layers that make temb (diffusers embeddings.py TimestepEmbedding)."""


def condition(t: Tape, hidden: int, like: Value) -> Value:
    """temb (b, h): what the time step and the prompt ask of all blocks. It needs a gradient where its own embedding is trained; if not, products with what
    comes from it keep nothing of the other factor."""
    adapter = t.setup.adapter
    adapted = adapter is not None and any(adapter.covers(place) for place in EMBEDDERS)
    return t.from_outside("temb", (SEQUENCES, Dim("h", hidden)), like.dtype, grad=bool(t.setup.trainable) or adapted)


def modulation(t: Tape, temb: Value, leaf: str, hidden: int, parts: int) -> list[Value]:
    """linear(silu(temb)) cut into `parts` pieces (b, h)."""
    with t.scope(leaf):
        wide = linear(t, ops.unary(t, "silu", temb), "linear", Dim(f"{parts}h", parts * hidden), bias=True)
        return ops.split(t, wide, [(SEQUENCES, Dim("h", hidden))] * parts)


def modulated(t: Tape, normed: Value, scale: Value, shift: Value) -> Value:
    """`normed·(1 + scale) + shift`."""
    return ops.add(t, ops.mul(t, normed, ops.unary(t, "add", scale, keeps="nothing")), shift)


def plain_norm(t: Tape, x: Value) -> Value:
    """LayerNorm without weights."""
    return layer_norm(t, x, "norm", affine=False)


def gated(t: Tape, x: Value, gate: Value, branch: Value) -> Value:
    """`x + gate·branch`."""
    return ops.add(t, x, ops.mul(t, gate, branch))


def clipped(t: Tape, x: Value) -> Value:
    """Overflow of fp16 is cut off; clip keeps its input."""
    return ops.unary(t, "clip", x) if x.dtype == FP16 else x


def streams(t: Tape, x: Value, hidden: int) -> tuple[Value, Value]:
    """The image tokens (n, h) and the text tokens (m, h) that one block hands to the next: two tensors, counted as halves of one storage."""
    width = Dim("h", hidden)
    image = Value(x.storage, (TOKENS, width), x.dtype, x.grad)
    text = Value(x.storage, (MEMORY_TOKENS, width), x.dtype, x.grad)
    t.step("streams", (x,), (image, text), made=[Made(x, None)])
    return image, text


def together(t: Tape, image: tuple[Value, Value], text: tuple[Value, Value], hidden: int) -> Value:
    """Both streams as (j, h): each the sum of its pair, the last step of a block."""
    width = Dim("h", hidden)
    whole = t.new("streams", (JOINT_TOKENS, width), image[0].dtype, image[0].grad or text[0].grad)
    ends = []
    for (left, right), dims in ((image, (TOKENS, width)), (text, (MEMORY_TOKENS, width))):
        end = Value(whole.storage, dims, whole.dtype, left.grad or right.grad)
        t.step("add", (left, right), (end,), made=[Made(left, None), Made(right, None)])
        ends.append(end)
    t.step("streams", ends, (whole,), made=[Made(end, None) for end in ends])
    return whole
