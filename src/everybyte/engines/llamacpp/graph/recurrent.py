"""Recurrent layers: Mamba, Mamba 2, gated delta rule (llama.cpp models/mamba-base.cpp, delta-net-base.cpp, qwen35.cpp; llama-graph.cpp build_rs)."""

from __future__ import annotations

from math import prod

from everybyte.allocator import ggml_ops as op
from everybyte.allocator.ggml import F32, I32, Shape, Tensor
from everybyte.engines.llamacpp.graph.builder import Builder, fp32
from everybyte.layers.recurrent.delta_net import GatedDeltaNet
from everybyte.layers.recurrent.mamba1 import Mamba1
from everybyte.layers.recurrent.mamba2 import Mamba2


class States:
    """The inputs that say which states a batch reads, and the states of a layer."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.all = op.new_input(I32, b.prompt.slots)
        self.main = op.view(self.all, b.prompt.sequences)
        self.rest = op.view(self.all, b.prompt.slots - 1)

    def held(self, layer: int, size: int) -> Tensor:
        """The cache of a layer's states."""
        return op.outside(F32, size, self.b.prompt.slots, device=self.b.placement.layer(layer), weight=False)

    def begin(self, cache: Tensor) -> Tensor:
        """Clears a state: a node over the cache itself."""
        states = op.reshape(cache, *cache.ne[:2])
        zero = op.view(states, cache.ne[0])
        self.b.graph.expand(Tensor(F32, zero.ne, "scale", (zero,), view=zero))
        return states

    def finish(self, cache: Tensor, gathered: Tensor, skipped: int) -> None:
        """Copies the states that the batch does not change."""
        extra = self.b.prompt.slots - skipped
        part = op.view(gathered, cache.ne[0], extra, nb=gathered.nb)
        self.b.graph.expand(op.copy_into(part, op.view(cache, cache.ne[0], extra)))

    def read(self, cache: Tensor) -> Tensor:
        """The states of the batch's sequences, (size, sequences)."""
        states = self.begin(cache)
        gathered = op.get_rows(states, self.all)
        out = op.view(gathered, cache.ne[0], self.b.prompt.sequences, nb=gathered.nb)
        self.b.graph.expand(out)
        self.finish(cache, gathered, self.b.prompt.sequences)
        return out


def causal_conv(b: Builder, layer: int, states: States, x: Tensor, channels: int, kernel: int) -> Tensor:
    """The convolution's input (kernel - 1 + tokens, channels, sequences): old columns and new ones; its last columns are stored."""
    sequences = b.prompt.sequences
    cache = states.held(layer, (kernel - 1) * channels)
    old = op.reshape(states.read(cache), kernel - 1, channels, sequences)
    joined = op.concat(old, op.transpose(x), 0)
    last = op.view(joined, kernel - 1, channels, sequences, nb=joined.nb)
    b.graph.expand(op.copy_into(last, op.view(cache, (kernel - 1) * channels, sequences)))
    return joined


def convolved(b: Builder, layer: int, joined: Tensor, channels: int, kernel: int, bias: bool) -> Tensor:
    """act(conv(x)), (channels, tokens, sequences)."""
    made = Tensor(F32, (channels, joined.ne[0] - kernel + 1, joined.ne[2]), "ssm_conv", (joined, b.matrix("ssm_conv1d", layer, kernel, channels, form=fp32())))
    if bias:
        made = op.like("add", made, b.vector("ssm_conv1d.bias", layer, channels))
    return op.like("unary", made)


def _scan(b: Builder, layer: int, states: States, size: int, state: Shape, sources: tuple[Tensor, ...]) -> Tensor:
    """The scan's output: every token's result, then the new states, which are stored."""
    sequences = b.prompt.sequences
    cache = states.held(layer, size)
    read = states.begin(cache)
    gathered = op.get_rows(read, states.rest) if b.prompt.slots > 1 else op.get_rows(read, op.view(states.all, 0))
    x = sources[0]
    out = Tensor(F32, (prod(x.ne) + size * sequences,), "ssm_scan", (op.reshape(read, *state[:3], b.prompt.slots), *sources, states.main))
    b.graph.expand(out)
    states.finish(cache, gathered, sequences)
    b.graph.expand(op.copy_into(op.view(out, size * sequences), op.view(cache, size * sequences)))
    return out


def mamba1(b: Builder, layer: int, x: Tensor, part: Mamba1, states: States) -> Tensor:
    """out(scan(conv(x))·silu(z))."""
    sequences, inner, n = b.prompt.sequences, part.inner, b.tokens // b.prompt.sequences
    rows = op.reshape(x, b.hidden, n, sequences)
    both = op.mul_mat(b.matrix("ssm_in", layer, b.hidden, 2 * inner), rows)
    left, gate = (op.view(both, inner, n, sequences, nb=both.nb) for _ in range(2))
    joined = causal_conv(b, layer, states, left, inner, part.kernel)
    mixed = convolved(b, layer, joined, inner, part.kernel, part.conv_bias)
    parts = op.mul_mat(b.matrix("ssm_x", layer, inner, part.rank + 2 * part.state), mixed)
    dt = op.view(parts, part.rank, n, sequences, nb=parts.nb)
    steps = (4, 4 * part.state, parts.nb[1], parts.nb[2])
    left_b, left_c = (op.view(parts, part.state, 1, n, sequences, nb=steps) for _ in range(2))
    if part.norms:
        weighted = part.norms == "weighted"
        dt = b.norm(dt, "ssm_dt_norm", layer, weighted)
        left_b, left_c = b.norm(left_b, "ssm_b_norm", layer, weighted), b.norm(left_c, "ssm_c_norm", layer, weighted)
    else:
        dt = op.cont(dt)
    dt = op.like("add", op.mul_mat(b.matrix("ssm_dt", layer, part.rank, inner), dt), b.vector("ssm_dt.bias", layer, inner))
    scan_x = op.reshape(mixed, 1, inner, n, sequences)
    decay = b.vector("ssm_a", layer, part.state, inner)
    out = _scan(b, layer, states, part.state * inner, (part.state, 1, inner, 1), (scan_x, dt, decay, left_b, left_c))
    made = op.view(out, inner, n, sequences)
    made = op.like("add", made, op.like("mul", mixed, b.vector("ssm_d", layer, inner)))
    made = b.gated(op.cont(gate), made)
    made = op.mul_mat(b.matrix("ssm_out", layer, inner, b.hidden), made)
    return op.reshape(made, b.hidden, b.tokens)


def mamba2(b: Builder, layer: int, x: Tensor, part: Mamba2, states: States) -> Tensor:
    """out(norm(scan(conv(x, B, C), dt)·silu(z)))."""
    sequences, n = b.prompt.sequences, b.tokens // b.prompt.sequences
    inner = part.heads * part.head_dim
    channels = inner + 2 * part.groups * part.state
    both = op.mul_mat(b.matrix("ssm_in", layer, b.hidden, inner + channels + part.heads), x)
    both = op.reshape(both, both.ne[0], n, sequences)
    head = 4 * part.head_dim
    gate = op.view(both, part.head_dim, part.heads, n, sequences, nb=(4, head, both.nb[1], both.nb[2]))
    mixed_in = op.view(both, channels, n, sequences, nb=both.nb)
    dt = op.view(both, part.heads, n, sequences, nb=both.nb)
    joined = causal_conv(b, layer, states, mixed_in, channels, part.kernel)
    mixed = convolved(b, layer, joined, channels, part.kernel, part.conv_bias)
    scan_x = op.view(mixed, part.head_dim, part.heads, n, sequences, nb=(4, head, mixed.nb[1], mixed.nb[2]))
    steps = (4, 4 * part.state, mixed.nb[1], mixed.nb[2])
    left_b, left_c = (op.view(mixed, part.state, part.groups, n, sequences, nb=steps) for _ in range(2))
    dt = op.like("add", op.cont(dt), b.vector("ssm_dt.bias", layer, part.heads))
    size = part.state * inner
    out = _scan(b, layer, states, size, (part.state, part.head_dim, part.heads, 1), (scan_x, dt, b.vector("ssm_a", layer, 1, part.heads), left_b, left_c))
    made = op.view(out, part.head_dim, part.heads, n, sequences)
    made = op.like("add", made, op.like("mul", scan_x, b.vector("ssm_d", layer, 1, part.heads)))
    made = b.gated(op.cont(gate), made)
    if part.norm:
        made = b.norm(op.reshape(made, inner // part.groups, part.groups, n, sequences), "ssm_norm", layer)
    made = op.reshape(made, inner, b.tokens)
    return op.mul_mat(b.matrix("ssm_out", layer, inner, b.hidden), made)


def delta_net(b: Builder, layer: int, x: Tensor, part: GatedDeltaNet, states: States) -> Tensor:
    """out(norm(delta(conv(q, k, v), g, β))·silu(z)), with the fused node of the delta rule."""
    sequences, n = b.prompt.sequences, b.tokens // b.prompt.sequences
    keys, values = part.key_heads * part.key_dim, part.value_heads * part.value_dim
    channels = 2 * keys + values
    mixed_in = op.reshape(op.mul_mat(b.matrix("attn_qkv", layer, b.hidden, channels), x), channels, n, sequences)
    z = op.mul_mat(b.matrix("attn_gate", layer, b.hidden, values), x)
    beta, alpha = _beta_and_alpha(b, layer, x, part)
    alpha = op.like("unary", op.like("add", alpha, b.vector("ssm_dt", layer, part.value_heads)))
    decay = op.reshape(op.like("mul", alpha, b.vector("ssm_a", layer, part.value_heads)), 1, part.value_heads, n, sequences)
    joined = causal_conv(b, layer, states, mixed_in, channels, part.kernel)
    cache = states.held(layer, part.value_dim * part.value_dim * part.value_heads)
    state = op.reshape(states.read(cache), part.value_dim, part.value_dim, part.value_heads, sequences)
    mixed = convolved(b, layer, joined, channels, part.kernel, bias=False)
    row = 4 * channels
    q, k = (op.view(mixed, part.key_dim, part.key_heads, n, sequences, nb=(4, 4 * part.key_dim, row, row * n)) for _ in range(2))
    v = op.view(mixed, part.value_dim, part.value_heads, n, sequences, nb=(4, 4 * part.value_dim, row, row * n))
    q, k = (op.like("scale", op.like("rms_norm", t)) for t in (q, k))
    made = _delta_rule(b, part, (q, k, v, decay, beta, state), cache)
    normal = b.norm(made, "ssm_norm", layer)
    gate = op.like("unary", op.reshape(z, part.value_dim, part.value_heads, n, sequences))
    out = op.reshape(op.like("mul", normal, gate), values, n, sequences)
    return op.reshape(op.mul_mat(b.matrix("ssm_out", layer, values, b.hidden), out), b.hidden, b.tokens)


def _beta_and_alpha(b: Builder, layer: int, x: Tensor, part: GatedDeltaNet) -> tuple[Tensor, Tensor]:
    """From two projections (Qwen 3.5), or from one whose parts are copied out (Qwen3-Next)."""
    sequences, n, heads = b.prompt.sequences, b.tokens // b.prompt.sequences, part.value_heads
    if part.joined:
        both = op.mul_mat(b.matrix("ssm_ba", layer, b.hidden, 2 * heads), x)
        each = heads // part.key_heads
        both = op.reshape(both, 2 * each, part.key_heads, n, sequences)
        left, right = (op.view(both, each, part.key_heads, n, sequences, nb=both.nb) for _ in range(2))
        return op.reshape(op.like("unary", op.cont(left)), 1, heads, n, sequences), op.cont(right, heads, n, sequences)
    beta = op.reshape(op.mul_mat(b.matrix("ssm_beta", layer, b.hidden, heads), x), 1, heads, n, sequences)
    return op.like("unary", beta), op.reshape(op.mul_mat(b.matrix("ssm_alpha", layer, b.hidden, heads), x), heads, n, sequences)


def _delta_rule(b: Builder, part: GatedDeltaNet, sources: tuple[Tensor, ...], cache: Tensor) -> Tensor:
    """One node whose result holds every token's output and, behind it, the new states."""
    v = sources[2]
    size, heads, n, sequences = v.ne
    result = Tensor(F32, (size * heads, n * sequences + size * sequences), "gated_delta_net", sources)
    out = op.view(result, size, heads, n, sequences, nb=(4, 4 * size, 4 * size * heads, 4 * size * heads * n))
    new = op.view(result, size, size, heads, sequences)
    b.graph.expand(op.copy_into(new, op.view(cache, cache.ne[0], sequences)))
    return out
