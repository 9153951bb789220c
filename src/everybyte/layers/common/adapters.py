"""Adapters on linear layers, operation by operation as peft writes them (peft 0.21 tuners/*/layer.py).

A writer gets the layer's input x (..., in) and its frozen result y (..., out) and returns the adapted result.
"""

from __future__ import annotations

from collections.abc import Callable

from everybyte.basics.dtypes import FP32, INT64
from everybyte.basics.units import ceil_div
from everybyte.layers.recording import ops
from everybyte.layers.recording.setup import Adapter
from everybyte.layers.recording.size import Dim, Dims, Size
from everybyte.layers.recording.tape import Made, Tape, Value

Writer = Callable[[Tape, Value, Value, Adapter, Dim, int], Value]


def _trained(t: Tape, leaf: str, dims: Dims, adapter: Adapter, count: int = 1) -> Value:
    return t.parameter(leaf, dims, count=count, dtype=adapter.dtype, adapter=True)


def _frozen(t: Tape, leaf: str, dims: Dims, adapter: Adapter) -> Value:
    """A buffer of the module."""
    t.buffer(leaf, dims, adapter.dtype)
    return t.given(leaf, dims, adapter.dtype)


def _input(t: Tape, x: Value, adapter: Adapter) -> Value:
    """`dropout(x.to(dtype))`."""
    return ops.dropout(t, ops.cast(t, x, adapter.dtype), adapter.dropout)


def _sum(t: Tape, y: Value, delta: Value) -> Value:
    """`(y + delta).to(y.dtype)`."""
    return ops.cast(t, ops.add(t, y, delta), y.dtype)


def _derived(t: Tape, what: str, dims: Dims, adapter: Adapter, sources: tuple[Value, ...], kept: tuple[Value, ...] = (), scratch: int = 0) -> Value:
    """A matrix worked out of trained tensors; `scratch` matrices of its size live beside it for a moment, in forward and in backward."""
    out = t.new(what, dims, adapter.dtype, True)
    beside = Size.of(dims, adapter.dtype) * scratch
    t.step(what, sources, (out, *kept), saved=kept, scratch=beside, back_scratch=beside)
    return out


def low_rank(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """`result + B(A(dropout(x)))·scale` (lora/layer.py Linear.forward)."""
    rank = Dim("q", adapter.rank)
    down = _trained(t, "lora_A.weight", (rank, x.dims[-1]), adapter, count)
    up = _trained(t, "lora_B.weight", (out, rank), adapter, count)
    if t.setup.kernels.lora == "fused":
        return _fused_low_rank(t, x, y, adapter, (down, up), rank)
    low = ops.linear(t, _input(t, x, adapter), down, None, rank)
    return _sum(t, y, ops.scale(t, ops.linear(t, low, up, None, out)))


def stacked_low_rank(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """Several LoRA pairs on one layer, each for some of the tokens (prime-rl layers/lora/multi_linear.py MultiLoRALinear): their matrices are
    stacked anew in every call, grouped products, and a factor for each token."""
    rank, runs = Dim("q", adapter.rank), adapter.option("runs", 1)
    pairs = (("lora_A", Dim("R·q", runs * rank.size), x.dims[-1]), ("lora_B", Dim(f"R·{out.letter}", runs * out.size), rank))
    stacks = []
    for leaf, rows, columns in pairs:
        weight = t.parameter(leaf, (rows, columns), count=count, dtype=adapter.dtype, adapter=True)
        stack = t.new("stack", weight.dims, weight.dtype, weight.grad)
        t.step("stack", (weight,), (stack,))
        stacks.append(stack)
    t.hold(*stacks)
    low = _product_of_stack(t, x, stacks[0], rank)
    delta = _product_of_stack(t, low, stacks[1], out)
    factor = t.new("scaling", (x.dims[0],), x.dtype, False)
    t.step("repeat_interleave", (), (factor,))
    scaled = t.new("mul", delta.dims, delta.dtype, delta.grad)
    t.step("mul", (delta, factor), (scaled,), saved=(factor,))
    return ops.add(t, y, scaled)


def _product_of_stack(t: Tape, x: Value, stack: Value, out: Dim) -> Value:
    y = t.new("grouped_mm", (*x.dims[:-1], out), x.dtype, True)
    t.step("grouped_mm", (x, stack), (y,), saved=(stack, x))
    return y


def _fused_low_rank(t: Tape, x: Value, y: Value, adapter: Adapter, pair: tuple[Value, Value], rank: Dim) -> Value:
    """One autograd function for base and adapter: keeps x, and its dropped copy if there is dropout; A and B run in the type of x."""
    down, up = pair
    dropped = t.new("dropped input", x.dims, x.dtype, False) if adapter.dropout else x
    made = [Made(x, Size.of(x.dims, x.dtype)), Made(y, None), *(Made(w, Size.of(w.dims, w.dtype)) for w in pair)]
    result = Value(y.storage, y.dims, y.dtype, grad=t.setup.grad)
    t.step(
        "lora",
        (x, y, down, up, dropped),
        (result,) if dropped is x else (result, dropped),
        saved=(x, dropped),
        made=made,
        scratch=Size.of((*x.dims[:-1], rank), x.dtype),
        back_scratch=Size.of((*x.dims[:-1], rank), x.dtype),
    )
    return result


def dora(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """`(m/‖W+BA‖ - 1)·base + m/‖W+BA‖·B(A(x))·scale` (lora/dora.py). The norm is worked out of dense fp32 copies that are dropped at once; with
    dropout the base runs again on the dropped input, through an fp32 copy of its weight that is kept."""
    rank, width = Dim("q", adapter.rank), x.dims[-1]
    down = _trained(t, "lora_A.weight", (rank, width), adapter, count)
    up = _trained(t, "lora_B.weight", (out, rank), adapter, count)
    magnitude = _trained(t, "lora_magnitude_vector.weight", (out,), adapter, count)
    dropped = _input(t, x, adapter)
    norm = t.new("weight norm", (out,), adapter.dtype, False)
    dense = Size.of((out, width), adapter.dtype)
    t.step("norm", (), (norm,), scratch=dense * 3 + Size.of((width, width), adapter.dtype))
    scale = t.new("magnitude scale", (out,), adapter.dtype, True)
    t.step("div", (magnitude, norm), (scale,), saved=(norm,))
    base = y
    if adapter.dropout:
        weight = t.new("dense weight", (out, width), adapter.dtype, False)
        t.step("to", (), (weight,))
        base = ops.linear(t, dropped, weight, None, out)
    low = ops.linear(t, ops.linear(t, dropped, down, None, rank), up, None, out)
    first = ops.mul(t, ops.unary(t, "sub", scale, keeps="nothing"), base)
    second = ops.scale(t, ops.mul(t, scale, low))
    return _sum(t, y, ops.add(t, first, second))


def adalora(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """`result += dropout(x)·(A·E)ᵀ·Bᵀ·scale / ranknum` (adalora/layer.py SVDLinear): A·E is kept, and the dividend where peft lets ranknum ask
    for a gradient."""
    rank, one = Dim("q", adapter.rank), Dim("1", 1)
    down = _trained(t, "lora_A", (rank, x.dims[-1]), adapter, count)
    singular = _trained(t, "lora_E", (rank, one), adapter, count)
    up = _trained(t, "lora_B", (out, rank), adapter, count)
    asks = bool(adapter.option("ranknum", 1))
    number = _trained(t, "ranknum", (one,), adapter, count) if asks else _frozen(t, "ranknum", (one,), adapter)
    low = ops.linear(t, _input(t, x, adapter), ops.mul(t, down, singular), None, rank)
    scaled = ops.scale(t, ops.linear(t, low, up, None, out))
    divisor = ops.unary(t, "add", number, keeps="nothing")
    if not divisor.storage.persistent and not asks:
        divisor.grad = False
    delta = t.new("div", scaled.dims, scaled.dtype, True)
    t.step("div", (scaled, divisor), (delta,), saved=(divisor, scaled) if asks else (divisor,))
    return ops.add_(t, y, delta)


def ia3_input(t: Tape, x: Value, adapter: Adapter) -> Value:
    """(IA)³ on a feed-forward layer: its input in fp32 is multiplied by a learned vector (ia3/layer.py)."""
    wide = ops.cast(t, x, adapter.dtype)
    vector = ops.scale(t, _trained(t, "ia3_l", (Dim("1", 1), x.dims[-1]), adapter))
    return ops.cast(t, ops.mul(t, wide, vector), x.dtype)


def ia3(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """(IA)³ elsewhere: the result is multiplied by a learned vector and kept."""
    vector = ops.scale(t, _trained(t, "ia3_l", (out, Dim("1", 1)), adapter, count))
    return ops.cast(t, ops.mul(t, y, vector), y.dtype)


def _dense(t: Tape, x: Value, y: Value, adapter: Adapter, delta: Value, out: Dim) -> Value:
    """`y + F.linear(x.to(dtype), delta)`: keeps the input's copy and the dense matrix."""
    return _sum(t, y, ops.linear(t, ops.cast(t, x, adapter.dtype), delta, None, out))


def loha(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """(w1a·w1b)⊙(w2a·w2b) (loha/layer.py HadaWeight)."""
    rank, width = Dim("q", adapter.rank), x.dims[-1]
    shapes = {"hada_w1_a": (out, rank), "hada_w1_b": (rank, width), "hada_w2_a": (out, rank), "hada_w2_b": (rank, width)}
    pieces = tuple(_trained(t, leaf, dims, adapter, count) for leaf, dims in shapes.items())
    scale = t.new("scale", (), FP32, False)
    return _dense(t, x, y, adapter, _derived(t, "hadamard", (out, width), adapter, pieces, (scale,), scratch=2), out)


def factorization(size: int, factor: int) -> tuple[int, int]:
    """Two factors of a size, the first at most `factor` and as near to it, or to the root, as can be (lokr/layer.py)."""
    if factor > 0 and size % factor == 0:
        return factor, size // factor
    limit = size if factor == -1 else factor
    m, n = 1, size
    while m < n:
        larger = next(k for k in range(m + 1, size + 1) if size % k == 0)
        if larger + size // larger > m + n or larger > limit:
            break
        m, n = larger, size // larger
    return min(m, n), max(m, n)


def lokr(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """The Kronecker product of a small matrix and one of low rank (lokr/layer.py)."""
    rank, width = Dim("q", adapter.rank), x.dims[-1]
    factor = adapter.option("decompose_factor", -1)
    outs, ins = factorization(out.size, factor), factorization(width.size, factor)
    sources, kept = [], []
    for leaf, rows, cols, whole in (
        ("lokr_w1", outs[0], ins[0], not (adapter.option("decompose_both", 0) and adapter.rank < max(outs[0], ins[0]) / 2)),
        ("lokr_w2", outs[1], ins[1], adapter.rank >= max(outs[1], ins[1]) / 2),
    ):
        dims = (Dim(f"{leaf[5:]}_o", rows), Dim(f"{leaf[5:]}_i", cols))
        if whole:
            sources.append(_trained(t, leaf, dims, adapter, count))
            continue
        pair = _trained(t, f"{leaf}_a", (dims[0], rank), adapter, count), _trained(t, f"{leaf}_b", (rank, dims[1]), adapter, count)
        product = _derived(t, leaf, dims, adapter, pair)
        sources.append(product)
        kept.append(product)
    delta = t.new("kron", (out, width), adapter.dtype, True)
    t.step("kron", sources, (delta,), saved=kept)
    return _dense(t, x, y, adapter, delta, out)


def vera(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """`λ_b·(B·(λ_d·(A·x)))` with A and B frozen and shared by all layers (vera/layer.py): keeps what the vectors are multiplied with."""
    rank = Dim("q", adapter.rank)
    long = _trained(t, "vera_lambda_b", (out,), adapter, count)
    short = _trained(t, "vera_lambda_d", (rank,), adapter, count)
    down = t.given("vera_A", (rank, x.dims[-1]), adapter.dtype)
    up = t.given("vera_B", (out, rank), adapter.dtype)
    low = ops.mul(t, short, ops.linear(t, _input(t, x, adapter), down, None, rank))
    return _sum(t, y, ops.mul(t, long, ops.linear(t, low, up, None, out)))


def miss(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """The input's parts of r numbers are summed and multiplied by one block r·out (miss/layer.py): keeps the sums alone."""
    rank = Dim("q", adapter.rank)
    block = _trained(t, "miss_block", (rank, out), adapter, count)
    wide = _input(t, x, adapter)
    sums = t.new("sum", (*x.dims[:-1], rank), adapter.dtype, wide.grad)
    t.step("sum", (wide,), (sums,))
    return _sum(t, y, ops.linear(t, sums, block, None, out))


def fourierft(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """A sparse spectrum, its inverse transform and the real part of that (fourierft/layer.py): keeps the places and the dense matrix."""
    number = Dim("n_f", adapter.option("n_frequency", 1000))
    spectrum = _trained(t, "fourierft_spectrum", (number,), adapter, count)
    places = t.new("places", (Dim("2", 2), number), INT64, False)
    # the dense spectrum, a complex matrix twice its size, and its real part
    delta = _derived(t, "ifft2", (out, x.dims[-1]), adapter, (spectrum,), (places,), scratch=3)
    return _dense(t, x, y, adapter, delta, out)


def tinylora(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """`B·R·A·x` with R a sum of u fixed r·r matrices and A, B frozen singular vectors (tinylora/layer.py)."""
    rank, number = Dim("q", adapter.rank), Dim("u", adapter.option("u", 64))
    vector = _trained(t, "tinylora_v", (number,), adapter, count)
    down = _frozen(t, "tinylora_A", (rank, x.dims[-1]), adapter)
    up = _frozen(t, "tinylora_B", (out, rank), adapter)
    _frozen(t, "tinylora_P", (number, rank, rank), adapter)
    turn = _derived(t, "einsum", (rank, rank), adapter, (vector,))
    low = ops.linear(t, ops.linear(t, _input(t, x, adapter), down, None, rank), turn, None, rank)
    return _sum(t, y, ops.linear(t, low, up, None, out))


def vblora(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """LoRA whose A and B are put together out of a shared bank of vectors: each piece is a mixture of the best `topk` (vblora/layer.py)."""
    rank, width = Dim("q", adapter.rank), x.dims[-1]
    bank, length = Dim("n_v", adapter.option("num_vectors", 256)), adapter.option("vector_length", 256)
    ins, outs = Dim("in/l", ceil_div(width.size, length)), Dim("out/l", ceil_div(out.size, length))
    down = _from_bank(t, "vblora_logits_A", (rank, ins, bank), (rank, width), adapter, count)
    up = _from_bank(t, "vblora_logits_B", (outs, rank, bank), (out, rank), adapter, count)
    low = ops.linear(t, ops.cast(t, x, adapter.dtype), down, None, rank)
    return _sum(t, y, ops.linear(t, low, up, None, out))


def _from_bank(t: Tape, leaf: str, dims: Dims, matrix: Dims, adapter: Adapter, count: int) -> Value:
    """Keeps the places and weights of the best vectors, and the vectors."""
    logits = _trained(t, leaf, dims, adapter, count)
    best = Dim("topk", adapter.option("topk", 2))
    chosen = (*dims[:-1], best)
    places, weights = t.new("places", chosen, INT64, False), t.new("softmax", chosen, adapter.dtype, False)
    vectors = t.new("vectors", (*matrix, best), adapter.dtype, False)
    return _derived(t, "sum", matrix, adapter, (logits,), (places, weights, vectors), scratch=2)


def randlora(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """Random bases shared by all layers, scaled by learned diagonals on the shorter side (randlora/layer.py)."""
    width = x.dims[-1]
    short = min(out, width, key=lambda d: d.size)
    bases = Dim("n_b", ceil_div(short.size, adapter.rank))
    joined = Dim("n_b·q", bases.size * adapter.rank)
    scales = _trained(t, "randlora_lambda", (Dim("q", adapter.rank), bases), adapter, count)
    diagonals = _trained(t, "randlora_gamma", (bases, short), adapter, count)
    scaled = _derived(t, "scaled bases", (joined, short), adapter, (scales, diagonals), scratch=1)
    other = t.given("randlora_B", (max(out, width, key=lambda d: d.size), joined), adapter.dtype)
    first, second = (scaled, other) if short is width else (other, scaled)
    low = ops.linear(t, _input(t, x, adapter), first, None, joined)
    return _sum(t, y, ops.scale(t, ops.linear(t, low, second, None, out)))


def osf(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """The lowest singular vectors are trained beside their frozen first values; the longer side's others are kept to project gradients
    (osf/layer.py). The rank is that of the trained part."""
    width = x.dims[-1]
    rank = Dim("q", min(adapter.rank, width.size, out.size) if adapter.rank else ceil_div(min(width.size, out.size), 2))
    rest = Dim("p-q", min(width.size, out.size) - rank.size)
    shapes = {"U_low": (out, rank), "S_low": (rank,), "V_low": (rank, width)}
    trained = {leaf: _trained(t, leaf, dims, adapter, count) for leaf, dims in shapes.items()}
    for leaf, dims in shapes.items():
        _frozen(t, f"{leaf}_init", dims, adapter)
    if rest.size and out.size != width.size:
        _frozen(t, "U_high" if out.size > width.size else "V_high", (max(out, width, key=lambda d: d.size), rest), adapter)
    both = Dim("2q", 2 * rank.size)
    scaled = ops.mul(t, trained["U_low"], trained["S_low"])
    left = _derived(t, "cat", (out, both), adapter, (scaled,), scratch=1)
    right = _derived(t, "cat", (both, width), adapter, (trained["V_low"],))
    low = ops.linear(t, ops.cast(t, x, adapter.dtype), right, None, both)
    delta = ops.linear(t, low, left, None, out)
    return ops.add(t, y, ops.cast(t, delta, x.dtype))


def shira(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """Sparse trained numbers are added to a copy of the weight (shira/layer.py): keeps that copy, the input and the places."""
    width = x.dims[-1]
    number = Dim("q·(in+out)", adapter.rank * (width.size + out.size))
    values = _trained(t, "shira_weight", (number,), adapter, count)
    places = t.new("places", (Dim("2", 2), number), INT64, False)
    weight = t.new("weight copy", (out, width), t.setup.weights, True)
    t.step("add_", (values,), (weight, places), saved=(places,))
    return ops.linear(t, x, weight, None, out)


SIZES: dict[str, Callable[[Adapter, int, int], list[tuple[str, tuple[int, ...]]]]] = {
    "oft": lambda a, i, o: [("oft_R.weight", (i // (b := _block(a, "oft_block_size", i)), b * (b - 1) // 2))],
    "boft": lambda a, i, o: [("boft_R", (a.option("boft_n_butterfly_factor", 1), i // (b := _block(a, "boft_block_size", i)), b, b)), ("boft_s", (o, 1))],
    "hra": lambda a, i, o: [("hra_u", (i, a.rank))],
    "c3a": lambda a, i, o: [("c3a_kernel", (o // (b := a.option("block_size", 256)), i // b, b))],
    "road": lambda a, i, o: [("road_theta", (o // 2,)), ("road_alpha", (o // 2,))],
    "delora": lambda a, i, o: [("delora_A", (a.rank, i)), ("delora_B", (o, a.rank)), ("delora_lambda", (1,))],
    "gralora": lambda a, i, o: [("gralora_A", (k := a.option("gralora_k", 2), i // k, a.rank)), ("gralora_B", (k, a.rank, o // k))],
    "waveft": lambda a, i, o: [("waveft_spectrum", (a.option("n_frequency", 2592),))],
}
"""Kinds whose parameters are known exactly and whose activations are taken for granted: shapes of their tensors for a layer in -> out."""


def _block(adapter: Adapter, key: str, width: int) -> int:
    """Size of a block: given, or the width over the number of blocks (the rank)."""
    given = adapter.option(key, 0)
    return given or max(width // max(adapter.rank, 1), 1)


def assumed(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """A kind of SIZES: taken to keep a copy of its input and its own result in the adapter's type."""
    sources = tuple(
        _trained(t, leaf, tuple(Dim(f"{leaf}_{index}", size) for index, size in enumerate(sizes)), adapter, count)
        for leaf, sizes in SIZES[adapter.kind](adapter, x.dims[-1].size, out.size)
    )
    wide = ops.cast(t, x, adapter.dtype)
    delta = t.new(adapter.kind, (*x.dims[:-1], out), adapter.dtype, True)
    t.step(adapter.kind, (wide, *sources), (delta,), saved=(wide, delta))
    return _sum(t, y, delta)


WRITERS: dict[str, Writer] = {
    **dict.fromkeys(("lora", "rslora", "qlora"), low_rank),
    "multi-lora": stacked_low_rank,
    "dora": dora,
    "adalora": adalora,
    "ia3": ia3,
    "loha": loha,
    "lokr": lokr,
    "vera": vera,
    "miss": miss,
    "bone": miss,
    "fourierft": fourierft,
    "tinylora": tinylora,
    "vblora": vblora,
    "randlora": randlora,
    "osf": osf,
    "shira": shira,
    **dict.fromkeys(SIZES, assumed),
}
"""Adapter kinds on linear layers."""
