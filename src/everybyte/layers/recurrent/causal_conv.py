"""The short causal convolution over time that state-space and linear-attention layers run on every channel by itself."""

from __future__ import annotations

from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


def causal_conv(t: Tape, x: Value, leaf: str, kernel: int, *, bias: bool, silu: bool = True) -> Value:
    """silu(conv1d(x)): x (n, C) -> (n, C), as `causal_conv1d_fn` of transformers falls back to plain operations.

    F.conv1d pads both ends, so its result has k - 1 more steps; silu keeps it whole. The kernel of causal-conv1d keeps its input alone.
    """
    width = x.dims[-1]
    with t.scope(leaf):
        weight = t.parameter("weight", (width, Dim("1", 1), Dim("k", kernel)))
        shift = t.parameter("bias", (width,)) if bias else None
        t.cache("state", "conv", (width, Dim("k", kernel)))
        x, weight = ops.autocast(t, x), ops.autocast(t, weight)
        inputs = (x, weight) if shift is None else (x, weight, ops.autocast(t, shift))
        if t.setup.kernels.scan == "fused":
            out = t.new("causal_conv1d", x.dims, x.dtype, any(v.grad for v in inputs))
            t.step("causal_conv1d", inputs, (out,), saved=(x, weight))
            return out
        longer = Size.of(x.dims, x.dtype) + Size.of((SEQUENCES, width, Dim("k-1", kernel - 1)), x.dtype)
        conv = ops.sized(t, "conv1d", longer, Value(x.storage, x.dims, x.dtype, any(v.grad for v in inputs)))
        t.step("conv1d", inputs, (conv,), saved=(x, weight))
        cut = Value(conv.storage, x.dims, x.dtype, conv.grad)
        t.step("narrow", (conv,), (cut,), made=[Made(conv, longer)])
        return ops.unary(t, "silu", cut) if silu else cut
