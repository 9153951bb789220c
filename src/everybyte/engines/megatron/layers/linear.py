"""Linear layers, norms and sums as Transformer Engine and Megatron Core run them on one rank of a tensor-parallel group.

Column-parallel layers hold a part of the outputs, row-parallel ones a part of the inputs. With sequence parallelism the tokens between layers are
divided too: a column-parallel layer gathers them, a row-parallel one scatters its sums, and backward does the same the other way round.
"""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP8, FP32
from everybyte.engines.megatron.sizes import Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording.size import TOKENS, ZERO, Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


def weight_gradients(style: Style, *values: Value | None) -> list[Made]:
    """Gradients of weights that become tensors of their own: none where the product adds them into the main gradients."""
    return [] if style.wgrad_fused else own_gradients(*values)


def own_gradients(*values: Value | None) -> list[Made]:
    """Gradients of weights (norms, biases, tables) that no product adds up; a hook adds each to the main gradients and drops it."""
    return [Made(v, Size.of(v.dims, v.dtype)) for v in values if v is not None]


OFFLOAD = "offload"
"""The step that copies what an operation keeps to host memory."""


def kept(t: Tape, style: Style, module: str, *values: Value) -> tuple[Value, ...]:
    """What an operation of a module keeps on the device: nothing where all that the module keeps waits in host memory. A tensor that two operations
    keep is copied twice (pipeline_parallel/fine_grained_activation_offload.py tensor_push)."""
    if not style.parks(module):
        return values
    t.step(OFFLOAD, values, ())
    return ()


def offloaded(t: Tape, x: Value, style: Style, module: str) -> Value:
    """The input of a module that runs again, which would be kept; where it waits in host memory, what stands for it there."""
    if not style.parks(module):
        return x
    away = t.from_outside("in host memory", x.dims, x.dtype)
    t.step(OFFLOAD, (x,), (away,), made=[Made(x, None)])
    return away


def offloaded_size(t: Tape) -> Size:
    """Bytes that the operations on a tape have in host memory."""
    return Size.total(Size.of(v.dims, v.dtype) for step in t.steps if step.what == OFFLOAD for v in step.inputs)


def column(t: Tape, x: Value, leaf: str, out: Dim, split: Split, style: Style, *, bias: bool, module: str = "") -> Value:
    """x (n/t, in) or (n, in) -> (n, out): this rank's outputs for all tokens.

    Autograd keeps the divided input and gathers it again for the weight's gradient (module/linear.py, tensor_parallel/layers.py); local layers
    gather into the global memory buffer, Transformer Engine into tensors of its own.
    """
    with t.scope(leaf, x):
        weight = t.parameter("weight", (out, x.dims[-1]))
        shift = t.parameter("bias", (out,)) if bias else None
        y = t.new("linear", (TOKENS, out), x.dtype, x.grad or weight.grad)
        whole = Size.of((TOKENS, x.dims[-1]), x.dtype) if split.sp else ZERO
        t.step(
            "linear",
            tuple(v for v in (x, weight, shift) if v is not None),
            (y,),
            saved=kept(t, style, module, input_kept(t, x, style)),
            scratch=whole if style.te else ZERO,
            back_scratch=whole * 2 if style.te else whole,
            made=[Made(x, Size.of(x.dims, x.dtype)), *weight_gradients(style, weight), *own_gradients(shift)],
        )
        return y


def row(t: Tape, x: Value, leaf: str, out: Dim, split: Split, style: Style, *, bias: bool, module: str = "") -> tuple[Value, Value | None]:
    """x (n, in/t) -> (n/t, out) or (n, out), summed over the group, and the bias, which the caller adds."""
    with t.scope(leaf, x):
        weight = t.parameter("weight", (out, x.dims[-1]))
        shift = t.parameter("bias", (out,)) if bias else None
        y = t.new("linear", (split.tokens, out), x.dtype, x.grad or weight.grad)
        whole = Size.of((TOKENS, out), x.dtype) if split.sp else ZERO
        t.step(
            "linear",
            (x, weight),
            (y,),
            saved=kept(t, style, module, input_kept(t, x, style)),
            scratch=whole,
            back_scratch=whole,
            made=[Made(x, Size.of(x.dims, x.dtype)), *weight_gradients(style, weight)],
        )
        return y, shift


def duplicated(t: Tape, x: Value, leaf: str, out: Dim, style: Style, *, bias: bool = False, module: str = "") -> Value:
    """x (..., in) -> (..., out): every rank of the group holds the whole weight."""
    with t.scope(leaf, x):
        weight = t.parameter("weight", (out, x.dims[-1]))
        shift = t.parameter("bias", (out,)) if bias else None
        y = t.new("linear", (*x.dims[:-1], out), x.dtype, x.grad or weight.grad)
        inputs = tuple(v for v in (x, weight, shift) if v is not None)
        made = [Made(x, Size.of(x.dims, x.dtype)), *weight_gradients(style, weight), *own_gradients(shift)]
        t.step("linear", inputs, (y,), saved=kept(t, style, module, input_kept(t, x, style)), made=made)
        return y


def input_kept(t: Tape, x: Value, style: Style) -> Value:
    """What a product keeps of its input: itself, or in fp8 the one-byte copy that it multiplies."""
    if not style.fp8:
        return x
    small = t.new("fp8 input", x.dims, FP8, False)
    t.step("quantize", (x,), (small,))
    return small


def norm(t: Tape, x: Value, leaf: str, kind: str, style: Style, *, dims: tuple[Dim, ...] = (), module: str = "") -> Value:
    """LayerNorm or RMSNorm as one kernel: keeps its input and fp32 statistics of each row. `dims`: shape of the rows where it is not that of x."""
    shape = dims or x.dims
    with t.scope(leaf, x):
        weights = [t.parameter(name, (shape[-1],)) for name in (("weight", "bias") if kind == "layer" else ("weight",))]
        out = t.new("norm", x.dims, x.dtype, True)
        moments = [t.new(name, shape[:-1], FP32, False) for name in (("mean", "rstd") if kind == "layer" else ("rstd",))]
        made = [Made(x, Size.of(x.dims, x.dtype)), *own_gradients(*weights)]
        t.step("norm", (x, *weights), (out, *moments), saved=(*kept(t, style, module, x), *moments), made=made)
        return out


def add_dropped(t: Tape, x: Value, bias: Value | None, residual: Value, style: Style) -> Value:
    """residual + dropout(x + bias) in one kernel (fusions/fused_bias_dropout.py): keeps a mask of one byte an element."""
    out = t.new("bias_dropout_add", x.dims, x.dtype, True)
    made = [Made(residual, None), Made(x, Size.of(x.dims, x.dtype) if style.dropout else None), *own_gradients(bias)]
    inputs = tuple(v for v in (x, bias, residual) if v is not None)
    if not style.dropout:
        t.step("bias_dropout_add", inputs, (out,), made=made)
        return out
    mask = t.new("dropout mask", x.dims, BOOL, False)
    t.step("bias_dropout_add", inputs, (out, mask), saved=(mask,), made=made)
    return out
