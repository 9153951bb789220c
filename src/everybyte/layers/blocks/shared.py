"""A transformer block whose weights several layers of a network share, each with small adapters of its own, before a Mamba layer (modeling_zamba2.py)."""

from __future__ import annotations

from collections.abc import Sequence

from everybyte.basics.record import Record
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.attention.kernels import Heads
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value
from everybyte.layers.recurrent.mamba2 import Mamba2

NORM = Norm()


class Users(Record, frozen=True):
    """Which layers use one set of shared weights, by their numbers among the layers with a shared block."""

    own: int
    """The layer that is written."""
    others: tuple[int, ...] = ()
    """Those whose adapters stand beside the first user's; empty in all users but the first."""
    rank: int = 0
    """Width inside an adapter."""

    @property
    def borrows(self) -> bool:
        """The weights are declared by the first user."""
        return not self.others

    def adapt(self, t: Tape, x: Value, leaf: str, out: Dim) -> Value:
        """The layer's own adapter, two products: x (n, in) -> (n, out). The first user declares everybody's."""
        with t.scope(f"{leaf}.{self.own}"):
            result = linear(t, linear(t, x, "0", Dim("r", self.rank)), "1", out)
        for other in self.others:
            if other != self.own:
                t.parameter(f"{leaf}.{other}.0.weight", (Dim("r", self.rank), x.dims[-1]))
                t.parameter(f"{leaf}.{other}.1.weight", (out, Dim("r", self.rank)))
        return result


class AdaptedAttention(Attention, frozen=True):
    """Attention whose three projections each get an adapter's result added."""

    users: Users = Users(0)

    def _project(self, t: Tape, x: Value, sizes: Heads) -> tuple[Value, Value, Value]:
        plain = super()._project(t, x, sizes)
        q, k, v = (ops.add(t, y, self.users.adapt(t, x, f"linear_{name}_adapter_list", y.dims[-1])) for name, y in zip("qkv", plain, strict=True))
        return q, k, v


class AdaptedMLP(Record, frozen=True):
    """down(act(gate)·up), gate and up halves of one projection plus an adapter's result."""

    hidden: int
    ffn: int
    users: Users
    activation: str = "gelu"
    bias: bool = False

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        both = Dim("2f", 2 * self.ffn)
        joined = linear(t, x, "gate_up_proj", both, bias=self.bias)
        joined = ops.add(t, joined, self.users.adapt(t, x, "gate_up_proj_adapter_list", both))
        gate, up = ops.split(t, joined, [(*x.dims[:-1], Dim("f", self.ffn))] * 2)
        return linear(t, ops.mul(t, activate(t, gate, self.activation), up), "down_proj", Dim("h", self.hidden), bias=self.bias)


class SharedBlock(Record, frozen=True):
    """x + mamba(norm(x + linear(mlp(norm(attention(norm([x, embedding]))))))): the shared block reads the token embedding beside x."""

    attention: Attention
    mlp: AdaptedMLP
    mamba: Mamba2

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        with t.scope("shared_transformer", x), t.borrowed(self.mlp.users.borrows):
            side = self._shared(t, x)
        side = linear(t, side, "linear", x.dims[-1])
        with t.scope("mamba_decoder", x, side):
            branch = NORM.forward(t, ops.add(t, x, side), "input_layernorm")
            with t.scope("mamba", branch):
                branch = self.mamba.forward(t, branch)
            return ops.add(t, x, branch)

    def _shared(self, t: Tape, x: Value) -> Value:
        rows, width = x.dims
        embedding = t.from_outside("embedding", x.dims, x.dtype)
        joined = ops.cat(t, [x, embedding], (rows, Dim(f"2{width.letter}", 2 * width.size)))
        branch = NORM.forward(t, joined, "input_layernorm")
        with t.scope("self_attn", branch):
            branch = self.attention.forward(t, branch)
        branch = NORM.forward(t, branch, "pre_ff_layernorm")
        with t.scope("feed_forward", branch):
            return self.mlp.forward(t, branch)


class CopiedEmbedding(Record, frozen=True):
    """A token embedding and a copy of its result, which the model holds for its shared blocks to the end of forward."""

    embedding: Embedding

    def forward(self, t: Tape, x: Value) -> Value:
        """ids (n) -> (n, h)."""
        out = self.embedding.forward(t, x)
        t.until_end(ops.contiguous(t, out))
        return out


def users_of(count: int, sets: int, rank: int) -> Sequence[Users]:
    """Who uses which of `sets` sets of weights, of `count` layers in turn: the first of each set declares it."""
    return [Users(index, tuple(range(index, count, sets)) if index < sets else (), rank) for index in range(count)]
