"""Feed-forward layers."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value

KEEPS = {"silu": "input", "gelu": "input", "gelu_tanh": "input", "quick_gelu": "input", "relu": "output"}
"""What autograd keeps of an activation function that is one kernel (derivatives.yaml)."""


def activate(t: Tape, x: Value, function: str) -> Value:
    """An activation function. `gelu_new` and `gelu_fast` are written out of several operations; `relu2` is relu, then its square."""
    with t.scope("", x):
        return _activate(t, x, function)


def _activate(t: Tape, x: Value, function: str) -> Value:
    if function == "gelu_new":
        return _gelu_new(t, x)
    if function == "gelu_fast":
        return _gelu_fast(t, x)
    if function == "gelu_bloom":
        return _gelu_bloom(t, x)
    if function == "xielu":
        return _xielu(t, x)
    if function == "relu2":
        return ops.power(t, ops.unary(t, "relu", x, keeps="output"))
    if function == "quick_gelu":
        return ops.mul(t, x, ops.unary(t, "sigmoid", ops.scale(t, x), keeps="output"))
    return ops.unary(t, function, x, keeps=KEEPS[function])


def _gelu_new(t: Tape, x: Value) -> Value:
    """0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), operation by operation: keeps x, the half of x, tanh and 1 + tanh.

    CUDA's autocast computes powers in fp32 (ATen/autocast_mode.h AT_FORALL_FP32), and what a power is added to or multiplied with becomes fp32 too.
    """
    autocasts = t.setup.compute is not None and t.setup.kernels.device == "cuda"
    cube = ops.power(t, ops.cast(t, x, FP32) if autocasts else x)
    inner = ops.scale(t, ops.add(t, x, ops.scale(t, cube)))
    tanh = ops.unary(t, "tanh", inner, keeps="output")
    half = ops.scale(t, x)
    return ops.mul(t, half, ops.unary(t, "add", tanh, keeps="nothing"))


def _gelu_fast(t: Tape, x: Value) -> Value:
    """0.5·x·(1 + tanh(x·√(2/π)·(1 + 0.044715·x·x))), operation by operation (FastGELUActivation)."""
    inner = ops.unary(t, "add", ops.mul(t, ops.scale(t, x), x), keeps="nothing")
    tanh = ops.unary(t, "tanh", ops.mul(t, ops.scale(t, x), inner), keeps="output")
    return ops.mul(t, ops.scale(t, x), ops.unary(t, "add", tanh, keeps="nothing"))


def _gelu_bloom(t: Tape, x: Value) -> Value:
    """One autograd function that keeps its input and works both ways out of plain products (modeling_bloom.py GeLUFunction)."""
    out = t.new("gelu", x.dims, x.dtype, x.grad)
    one = Size.of(x.dims, x.dtype)
    t.step("gelu", (x,), (out,), saved=(x,), scratch=one * 3, back_scratch=one * 4)
    return out


def _xielu(t: Tape, x: Value) -> Value:
    """Where x > 0: α_p·x² + β·x, elsewhere (expm1(min(x, ε)) - x)·α_n + β·x; α_p and α_n are learned (activations.py XIELUActivation)."""
    with t.scope("act_fn"):
        up, down = (t.parameter(leaf, (Dim("1", 1),)) for leaf in ("alpha_p", "alpha_n"))
        right = ops.add(t, ops.mul(t, ops.mul(t, up, x), x), ops.scale(t, x))
        below = ops.unary(t, "expm1", ops.unary(t, "min", x), keeps="output")
        left = ops.add(t, ops.mul(t, ops.add(t, below, x), down), ops.scale(t, x))
        out = t.new("where", x.dims, x.dtype, right.grad)
        condition = t.new("x > 0", x.dims, BOOL, False)
        t.step("where", (right, left), (out, condition), saved=(condition,))
        return out


class GatedMLP(Record, frozen=True):
    """down(act(gate(x))·up(x)), as Llama writes it; `fused_gate` names one projection that makes gate and up."""

    hidden: int
    ffn: int
    activation: str = "silu"
    bias: bool = False
    fused_gate: str = ""
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    letter: str = "f"
    dropout: float = 0.0

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        down = linear(t, self._product(t, x), self.names[2], Dim("h", self.hidden), bias=self.bias)
        return ops.dropout(t, down, self.dropout)

    def _product(self, t: Tape, x: Value) -> Value:
        width = Dim(self.letter, self.ffn)
        if self.fused_gate:
            joined = linear(t, x, self.fused_gate, Dim(f"2{self.letter}", 2 * self.ffn), bias=self.bias)
            gate, up = ops.split(t, joined, [(*x.dims[:-1], width)] * 2)
            return ops.mul(t, up, activate(t, gate, self.activation))
        gate = linear(t, x, self.names[0], width, bias=self.bias)
        if t.setup.kernels.mlp == "fused":
            return fused_glu(t, gate, linear(t, x, self.names[1], width, bias=self.bias))
        act = activate(t, gate, self.activation)
        return ops.mul(t, act, linear(t, x, self.names[1], width, bias=self.bias))


def fused_glu(t: Tape, gate: Value, up: Value) -> Value:
    """act(gate)·up in one kernel: keeps gate and up, and its backward writes their gradients over them
    (Liger-Kernel ops/swiglu.py, geglu.py)."""
    out = t.new("glu", gate.dims, gate.dtype, gate.grad or up.grad)
    t.step("glu", (gate, up), (out,), saved=(gate, up), made=[Made(v, None, into=v.storage) for v in (gate, up)])
    return out


class PlainMLP(Record, frozen=True):
    """down(act(up(x))) with optional biases and dropout behind it."""

    hidden: int
    ffn: int
    activation: str = "gelu"
    bias: bool = True
    names: tuple[str, str] = ("fc1", "fc2")
    dropout: float = 0.0
    bias_apart: bool = False
    """Biases are added on their own (Falcon)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        up = linear(t, x, self.names[0], Dim("f", self.ffn), bias=self.bias, apart=self.bias_apart)
        down = linear(t, activate(t, up, self.activation), self.names[1], Dim("h", self.hidden), bias=self.bias, apart=self.bias_apart)
        return ops.dropout(t, down, self.dropout)
