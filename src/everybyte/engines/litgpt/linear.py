"""Linear layers of LitGPT: packed by bitsandbytes, with LoRA beside them, or scaled and shifted by Adapter v2."""

from __future__ import annotations

from everybyte.basics.dtypes import FP16, INT64
from everybyte.layers.recording import ops
from everybyte.layers.recording.setup import Adapter
from everybyte.layers.recording.size import Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value

LORA, PROMPT, SCALED = "lora", "adapter", "adapter-v2"
"""Kinds of adapters: finetune/lora.py, adapter.py, adapter_v2.py."""


def linear(t: Tape, x: Value, leaf: str, out: Dim, *, bias: bool, role: str) -> Value:
    """The linear layer `leaf`: x (..., in) -> (..., out). `role`: LitGPT's word for it in LoRA's settings."""
    with t.scope(leaf):
        y = base(t, x, out, bias=bias)
        adapter = t.setup.adapter
        if adapter is not None and adapter.kind == SCALED:
            return scaled(t, y)
        if adapter is not None and adapter.kind == LORA and role in adapter.targets:
            return _low_rank(t, x, y, adapter, out)
        return y


def base(t: Tape, x: Value, out: Dim, *, bias: bool) -> Value:
    """The frozen or trained product itself."""
    shift = (out,)
    if t.setup.packed is not None:
        y = packed(t, x, out)
        return ops.add_(t, y, t.parameter("bias", shift)) if bias else y
    return ops.linear(t, x, t.parameter("weight", (out, x.dims[-1])), t.parameter("bias", shift) if bias else None, out)


def packed(t: Tape, x: Value, out: Dim) -> Value:
    """bitsandbytes MatMul4Bit under Fabric's plugin (lightning/fabric/plugins/precision/bitsandbytes.py): weights are quantised from fp16, so they
    are dequantised to fp16 and copied to the type of x, in forward and again in backward."""
    weight = t.parameter("weight", (out, x.dims[-1]), packed=True)
    t.step("dequantize", (weight,), (weight,), scratch=copies(x, out))
    return reopened(t, product(t, x, weight, out, scratch=Size.of(weight.dims, x.dtype)), copies(x, out))


def copies(x: Value, out: Dim) -> Size:
    """A dequantised weight: in fp16, and in the type of x where that is another one."""
    one = Size.of((out, x.dims[-1]), x.dtype)
    return one if x.dtype == FP16 else one + Size.of((out, x.dims[-1]), FP16)


def product(t: Tape, x: Value, weight: Value, out: Dim, scratch: Size, *, piecewise: bool = False) -> Value:
    """The product itself. The autograd node of older versions holds x as an attribute, which backward does not clear."""
    y = t.new("linear", (*x.dims[:-1], out), x.dtype, x.grad)
    kept = [x] if t.setup.kernels.holds_linear_inputs else []
    t.step("matmul_4bit", (x, weight), (y,), saved=kept, scratch=scratch, back_scratch=Size.of(weight.dims, x.dtype), piecewise=piecewise)
    if kept and x.grad and t.setup.grad:
        t.linger(x)
    return y


def reopened(t: Tape, y: Value, both: Size) -> Value:
    """The same tensor; its backward begins with dequantising the weight again."""
    again = Value(y.storage, y.dims, y.dtype, y.grad)
    t.step("dequantize", (y,), (again,), made=[Made(y, None)], back_scratch=both)
    return again


def scaled(t: Tape, y: Value) -> Value:
    """`adapter_scale · (linear(x) + adapter_bias)` (litgpt/adapter_v2.py AdapterV2Linear): keeps the sum."""
    width = y.dims[-1]
    shifted = ops.add(t, y, t.parameter("adapter_bias", (width,), adapter=True))
    return ops.mul(t, t.parameter("adapter_scale", (width,), adapter=True), shifted)


def _low_rank(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim) -> Value:
    """`linear(x) + (dropout(x)·Aᵀ·Bᵀ)·scaling` (litgpt/lora.py LoRALinear)."""
    delta = ops.linear(t, reduced(t, x, adapter), t.parameter("lora_B", (out, Dim("q", adapter.rank)), adapter=True), None, out)
    return ops.add(t, y, ops.scale(t, delta))


def reduced(t: Tape, x: Value, adapter: Adapter, parts: int = 1) -> Value:
    """`dropout(x)·Aᵀ` for `parts` matrices at once."""
    rank = Dim("q" if parts == 1 else f"{parts}q", parts * adapter.rank)
    down = t.parameter("lora_A", (rank, x.dims[-1]), adapter=True)
    return ops.linear(t, ops.dropout(t, x, adapter.dropout), down, None, rank)


def joined(t: Tape, x: Value, leaf: str, widths: tuple[Dim, Dim, Dim], *, bias: bool, grouped: bool, clones: bool) -> Value:
    """The joined projection to queries, keys and values (litgpt/lora.py LoRAQKVLinear). `grouped`: fewer key than query heads; `clones`: the index
    of the chosen parts is copied in every call."""
    out = Dim("(A+2K)", sum(w.size for w in widths))
    adapter = t.setup.adapter
    if adapter is None or adapter.kind != LORA:
        return linear(t, x, leaf, out, bias=bias, role="qkv")
    chosen = [w for w, role in zip(widths, ("query", "key", "value"), strict=True) if role in adapter.targets]
    with t.scope(leaf):
        y = base(t, x, out, bias=bias)
        if not chosen:
            return y
        low = reduced(t, x, adapter, len(chosen))
        delta = _convolved(t, low, adapter, Dim("+".join(w.letter for w in chosen), sum(w.size for w in chosen)), grouped=grouped)
        if len(chosen) < len(widths):
            delta = _zero_pad(t, delta, out, clones=clones)
        return ops.add(t, y, ops.scale(t, delta))


def _convolved(t: Tape, low: Value, adapter: Adapter, width: Dim, *, grouped: bool) -> Value:
    """conv1d with one group for each chosen part; parts of unequal width are made apart and joined."""
    up = t.parameter("lora_B", (width, Dim("q", adapter.rank)), adapter=True)
    out = t.new("conv1d", (*low.dims[:-1], width), low.dtype, grad=True)
    t.step("conv1d", (low, up), (out,), saved=(low,))
    return ops.cat(t, [out], out.dims) if grouped else out


def _zero_pad(t: Tape, x: Value, width: Dim, *, clones: bool) -> Value:
    """x copied into zeros as wide as all three parts: `index_copy_` keeps its source and the index."""
    t.buffer("_lora_ind", (x.dims[-1],), INT64)
    out = t.new("index_copy", (*x.dims[:-1], width), x.dtype, x.grad)
    kept = [ops.made(t, "index", (x.dims[-1],), INT64)] if clones else []
    t.step("index_copy", (x, *kept), (out,), saved=(x, *kept))
    return out
