"""Convolution networks: convolutions, their norms and pools on maps of pixels (n, C)."""

from __future__ import annotations

from math import prod

from everybyte.basics.dtypes import FP32, INT64
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, ZERO, B, Dim, S, Size
from everybyte.layers.recording.tape import Tape, Value


def pixels(down: int, up: int = 1) -> Dim:
    """Pixels of a map whose sides are 1/`down` of those of the input (or `up` times as long): exact where `down` divides the sides."""
    share = (up * up, down * down)
    return Dim("n", 1, (B, S)) if share == (1, 1) else Dim(f"n/{down * down}" if up == 1 else f"{up * up}n", 1, (B, S._replace(share=share)))


def conv(
    t: Tape, x: Value, leaf: str, out: int, kernel: tuple[int, ...], to: Dim | None = None, *, bias: bool = True, groups: int = 1, channels: int = 0
) -> Value:
    """A convolution: x (n, C) -> (`to`, out); `channels` where x is not written as (n, C).

    Its backward is one function, so autograd keeps x and the weight whenever any gradient is asked for (derivatives.yaml convolution makes no
    test of which). Autocast casts x and the weight.
    """
    with t.scope(leaf):
        width = Dim("C", out)
        inside = Dim("C", (channels or x.dims[-1].size) // groups)
        weight = ops.autocast(t, t.parameter("weight", (width, inside, Dim("k", prod(kernel)))))
        shift = t.parameter("bias", (width,)) if bias else None
        x = ops.autocast(t, x)
        inputs = (x, weight) if shift is None else (x, weight, ops.autocast(t, shift))
        y = t.new("conv", (to or x.dims[0], width), x.dtype, any(v.grad for v in inputs))
        copies = _pixel_order(t, x, y)
        t.step("conv", inputs, (y,), saved=(x, weight), scratch=copies, back_scratch=copies)
        return y


def _pixel_order(t: Tape, x: Value, y: Value) -> Size:
    """Workspace of a 16-bit convolution on CUDA: cuDNN's tensor-core kernels want maps pixel by pixel, and turn input and result around in it.

    Runs of FLUX show it at the peak, in the decoder of the autoencoder: 2.15 GB more for each image of 1024x1024, where the tensors alone are 1.34 GB
    and the two copies 0.81 GB (truth group diffusion-infer).
    """
    half = t.setup.kernels.device == "cuda" and x.dtype.bits == 16
    return Size.of(x.dims, x.dtype) + Size.of(y.dims, y.dtype) if half else ZERO


def group_norm(t: Tape, x: Value, leaf: str, groups: int, *, affine: bool = True) -> Value:
    """GroupNorm: keeps its input, mean and reciprocal deviation of each group (fp32 on CUDA). Autocast runs it in fp32."""
    with t.scope(leaf):
        weight = t.parameter("weight", (x.dims[-1],), dtype=t.setup.norm_weights) if affine else None
        shift = t.parameter("bias", (x.dims[-1],), dtype=t.setup.norm_weights) if affine else None
        if ops.runs_wide(t):
            x = ops.cast(t, x, FP32)
        inputs = tuple(v for v in (x, weight, shift) if v is not None)
        mixed = weight is not None and weight.dtype != x.dtype
        stats = x.dtype if t.setup.kernels.device == "cpu" and not mixed else FP32
        out = t.new("group_norm", x.dims, x.dtype, any(v.grad for v in inputs))
        moments = [t.new(what, (SEQUENCES, Dim("groups", groups)), stats, False) for what in ("mean", "rstd")]
        t.step("group_norm", inputs, (out, *moments), saved=(x, *moments))
        return out


def batch_norm(t: Tape, x: Value, leaf: str) -> Value:
    """BatchNorm in training: keeps its input, mean and reciprocal deviation of each channel (fp32 on CUDA); running averages are buffers."""
    with t.scope(leaf):
        width = (x.dims[-1],)
        weight = t.parameter("weight", width, dtype=t.setup.norm_weights)
        shift = t.parameter("bias", width, dtype=t.setup.norm_weights)
        for name in ("running_mean", "running_var"):
            t.buffer(name, width, t.setup.norm_weights or t.setup.weights)
        t.buffer("num_batches_tracked", (), INT64)
        out = t.new("batch_norm", x.dims, x.dtype, any(v.grad for v in (x, weight, shift)))
        stats = weight.dtype if t.setup.kernels.device == "cpu" else FP32
        moments = [t.new(what, width, stats, False) for what in ("mean", "rstd")]
        t.step("batch_norm", (x, weight, shift), (out, *moments), saved=(x, *moments))
        return out


def frozen_batch_norm(t: Tape, x: Value, leaf: str) -> Value:
    """A BatchNorm that is never trained: x·scale + shift from buffers (detectron2 FrozenBatchNorm2d). Where x needs a gradient it is one product
    and one sum and keeps nothing but the scale; where not, one kernel."""
    with t.scope(leaf):
        for name in ("weight", "bias", "running_mean", "running_var"):
            t.buffer(name, (x.dims[-1],), t.setup.weights)
        return ops.unary(t, "add", ops.scale(t, x), keeps="nothing") if x.grad else ops.unary(t, "batch_norm", x, keeps="nothing")


def relu_(t: Tape, x: Value) -> Value:
    """ReLU written over its input: keeps the result, which is the same memory."""
    out = Value(x.storage, x.dims, x.dtype, x.grad)
    t.step("relu_", (x,), (out,), saved=(out,))
    return out


def after_relu(x: Value) -> Value:
    """What a block is given where the block before ends in ReLU in place: that one keeps its result, which is this very tensor."""
    x.storage.kept_before = x.grad
    return x


def max_pool(t: Tape, x: Value, to: Dim) -> Value:
    """Max pooling: keeps its input and an int64 index for each result."""
    out = t.new("max_pool", (to, x.dims[-1]), x.dtype, x.grad)
    places = t.new("indices", (to, x.dims[-1]), INT64, False)
    t.step("max_pool", (x,), (out, places), saved=(x, places))
    return out


def resized(t: Tape, what: str, x: Value, to: Dim) -> Value:
    """Nearest-neighbour upsampling or a strided view made dense: nothing is kept."""
    out = t.new(what, (to, x.dims[-1]), x.dtype, x.grad)
    t.step(what, (x,), (out,))
    return out


def average(t: Tape, x: Value) -> Value:
    """Adaptive average pooling to one pixel, as its mean over the pixels: (n, C) -> (b, C); nothing is kept."""
    out = t.new("mean", (SEQUENCES, x.dims[-1]), x.dtype, x.grad)
    t.step("mean", (x,), (out,), made=None)
    return out


def mean_squared(t: Tape, x: Value) -> Value:
    """`F.mse_loss(x.float(), target.float())`: keeps both; its backward makes the gradient of x."""
    wide = ops.cast(t, x, FP32)
    target = t.new("target", x.dims, FP32, False)
    t.step("target", (), (target,))
    out = t.new("loss", (), FP32, x.grad)
    t.step("mse_loss", (wide, target), (out,), saved=(wide, target), scratch=Size.of(x.dims, FP32))
    return out
