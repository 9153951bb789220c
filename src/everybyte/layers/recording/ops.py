"""Single operations of PyTorch: what each makes, what autograd keeps of it (derivatives.yaml), what its backward makes.

Every function takes the tape first, then the tensors as the layer has them. Element types follow PyTorch's promotion; under autocast
the operations that PyTorch lists for it cast their inputs first.
"""

from __future__ import annotations

from collections.abc import Sequence

from everybyte.basics.dtypes import BOOL, FP32, INT64, DType
from everybyte.layers.recording.setup import SharedTable
from everybyte.layers.recording.size import TOKENS, Axis, B, Dim, Dims, Size, elements
from everybyte.layers.recording.tape import Made, Storage, Tape, Value


def promote(*values: Value) -> DType:
    """The wider of the element types."""
    return max((v.dtype for v in values), key=lambda d: (d.bits, d.name == "fp32"))


def same_count(a: Dims, b: Dims) -> bool:
    """Whether two shapes have equally many elements for every batch."""
    return elements(a) == elements(b)


def view(x: Value, dims: Dims) -> Value:
    """The same memory under another shape."""
    return Value(x.storage, dims, x.dtype, x.grad, x.source)


def detach(x: Value) -> Value:
    """The same memory outside autograd."""
    return Value(x.storage, x.dims, x.dtype, grad=False)


def made(t: Tape, what: str, dims: Dims, dtype: DType) -> Value:
    """A tensor that is made out of nothing on the tape: a mask, a table, zeros."""
    out = t.new(what, dims, dtype, False)
    t.step(what, (), (out,))
    return out


def sized(t: Tape, what: str, size: Size, like: Value, dtype: DType | None = None) -> Value:
    """A tensor whose size is a sum of products of axes; its dims are those of `like`."""
    kind = dtype or like.dtype
    return Value(Storage(size, t.path, what, like.dims, kind), like.dims, kind, like.grad and t.setup.grad and not t.silent)


def cast(t: Tape, x: Value, dtype: DType) -> Value:
    """`x.to(dtype)`: a copy, unless it has that type. Nothing is kept; the gradient is cast back."""
    if x.dtype == dtype:
        return x
    out = t.new("to", x.dims, dtype, x.grad)
    out.storage.head_major = x.storage.head_major
    t.step("to", (x,), (out,))
    return out


def autocast(t: Tape, x: Value) -> Value:
    """The input of a listed operation under autocast. Trained fp32 weights are cast once and the copy is cached to the end of forward
    (ATen/autocast_mode.cpp `cached_cast`: only leaves that require a gradient)."""
    compute = t.setup.compute
    if compute is None or x.dtype == compute or x.dtype.bits < compute.bits:
        return x
    if not (x.storage.weight and x.grad):
        return cast(t, x, compute)
    key = id(x.storage)
    if key not in t.casts:
        out = cast(t, x, compute)
        out.storage.cached = True
        t.casts[key] = out
    return t.casts[key]


def runs_wide(t: Tape) -> bool:
    """Whether autocast runs softmax, norms and losses in fp32: it does on CUDA (ATen/autocast_mode.h AT_FORALL_FP32), not on the CPU."""
    return t.setup.compute is not None and t.setup.kernels.device == "cuda"


def unary(t: Tape, what: str, x: Value, *, keeps: str = "input") -> Value:
    """An elementwise function of one tensor that keeps its input, its output or nothing."""
    out = t.new(what, x.dims, x.dtype, x.grad)
    out.storage.head_major = x.storage.head_major
    kept = {"input": (x,), "output": (out,), "nothing": ()}[keeps]
    t.step(what, (x,), (out,), saved=kept)
    return out


def mul(t: Tape, a: Value, b: Value) -> Value:
    """Product with broadcasting: keeps each factor that the other's gradient needs."""
    wide = a if _covers(a.dims, b.dims) else b
    out = t.new("mul", wide.dims, promote(a, b), a.grad or b.grad)
    kept = ([b] if a.grad else []) + ([a] if b.grad else [])
    made = [Made(v, Size.of(v.dims, v.dtype), late=v.dtype != out.dtype or not same_count(v.dims, out.dims)) for v in (a, b) if v.grad]
    products = tuple(Size.of(wide.dims, out.dtype) for m in made if m.late)
    t.step("mul", (a, b), (out,), saved=kept, made=made, back_scratch=products)
    return out


def add(t: Tape, a: Value, b: Value) -> Value:
    """Sum with broadcasting: keeps nothing and passes the gradient on without a copy where shape and type agree."""
    wide = a if _covers(a.dims, b.dims) else b
    out = t.new("add", wide.dims, promote(a, b), a.grad or b.grad)
    made = [Made(v, None if v.dtype == out.dtype and same_count(v.dims, out.dims) else Size.of(v.dims, v.dtype)) for v in (a, b)]
    t.step("add", (a, b), (out,), made=made)
    return out


def add_(t: Tape, a: Value, b: Value) -> Value:
    """Sum written into `a`."""
    out = Value(a.storage, a.dims, a.dtype, (a.grad or b.grad) and t.setup.grad)
    made = [Made(v, None if v.dtype == out.dtype and same_count(v.dims, out.dims) else Size.of(v.dims, v.dtype)) for v in (a, b)]
    t.step("add_", (a, b), (out,), made=made)
    return out


def scale(t: Tape, x: Value) -> Value:
    """Product with a number: a new tensor, nothing kept."""
    return unary(t, "mul", x, keeps="nothing")


def scale_(t: Tape, x: Value) -> Value:
    """Product with a number, written over x; the gradient is a new tensor."""
    out = Value(x.storage, x.dims, x.dtype, x.grad)
    t.step("mul_", (x,), (out,))
    return out


def power(t: Tape, x: Value) -> Value:
    """`x.pow(2)`: keeps x; its backward also makes x¹ and 2·x¹ (FunctionsManual.cpp pow_backward)."""
    out = t.new("pow", x.dims, x.dtype, x.grad)
    t.step("pow", (x,), (out,), saved=(x,), back_scratch=Size.of(x.dims, x.dtype) * 2)
    return out


def mean(t: Tape, x: Value, dims: Dims) -> Value:
    """Mean over the last dimension; its backward broadcasts a view."""
    out = t.new("mean", dims, x.dtype, x.grad)
    t.step("mean", (x,), (out,))
    return out


def matmul(t: Tape, a: Value, b: Value, dims: Dims) -> Value:
    """Batched product of two activations: keeps each factor that the other's gradient needs."""
    a, b = autocast(t, a), autocast(t, b)
    out = t.new("matmul", dims, a.dtype, a.grad or b.grad)
    t.step("matmul", (a, b), (out,), saved=([b] if a.grad else []) + ([a] if b.grad else []))
    return out


def linear(t: Tape, x: Value, weight: Value, bias: Value | None, out: Dim) -> Value:
    """`F.linear`: keeps x if the weight is trained and the weight (no new memory, or its cast copy) if x needs a gradient.

    It is a product of rows of tokens with the transposed weight, and so both gradients come as views of what the products of backward made.
    """
    x, weight = autocast(t, x), autocast(t, weight)
    bias = None if bias is None else autocast(t, bias)
    inputs = (x, weight) if bias is None else (x, weight, bias)
    y = t.new("linear", (*x.dims[:-1], out), x.dtype, any(v.grad for v in inputs))
    made = [Made(v, Size.of(v.dims, v.dtype), view=v is not bias) for v in inputs]
    t.step("linear", inputs, (y,), saved=([weight] if x.grad else []) + ([x] if weight.grad else []), made=made)
    return y


def softmax(t: Tape, x: Value, dtype: DType | None = None) -> Value:
    """Softmax, in `dtype` if given (the input is converted first, but for fp16 to fp32 on CUDA); keeps its result."""
    target = dtype or (FP32 if runs_wide(t) else x.dtype)
    if x.dtype != target and not (x.dtype.name == "fp16" and t.setup.kernels.device == "cuda"):
        x = cast(t, x, target)
    out = t.new("softmax", x.dims, target, x.grad)
    t.step("softmax", (x,), (out,), saved=(out,))
    return out


def dropout(t: Tape, x: Value, rate: float) -> Value:
    """Dropout: CUDA keeps a mask of one byte an element, the CPU one in the type of x. A rate of 0 does nothing."""
    if t.setup.rate(rate) == 0 or not t.setup.grad:
        return x
    on_cpu = t.setup.kernels.device == "cpu"
    out = t.new("dropout", x.dims, x.dtype, x.grad)
    mask = t.new("dropout mask", x.dims, x.dtype if on_cpu else BOOL, False)
    t.step("dropout", (x,), (out, mask), saved=(mask,))
    return out


def layer_norm(t: Tape, x: Value, weight: Value | None, bias: Value | None) -> Value:
    """LayerNorm: keeps its input, mean and reciprocal deviation of each row (fp32 on CUDA). Autocast runs it in fp32 on CUDA; a `narrow` one casts its input
    and weights to the compute type and leaves autocast (llm-foundry layers/norm.py LPLayerNorm)."""
    if t.setup.kernels.norm == "narrow":
        x = autocast(t, x)
        weight, bias = (None if v is None else autocast(t, v) for v in (weight, bias))
    elif runs_wide(t):
        x = cast(t, x, FP32)
    rows = x.dims[:-1]
    mixed = weight is not None and weight.dtype != x.dtype
    stats = x.dtype if t.setup.kernels.device == "cpu" and not mixed else FP32
    inputs = tuple(v for v in (x, weight, bias) if v is not None)
    out = t.new("layer_norm", x.dims, x.dtype, any(v.grad for v in inputs))
    moments = [t.new(what, rows, stats, False) for what in ("mean", "rstd")]
    t.step("layer_norm", inputs, (out, *moments), saved=(x, *moments))
    return out


def embedding(t: Tape, leaf: str, vocab: Dim, hidden: Dim, tokens: Dim = TOKENS, *, tied: bool = False, shared: SharedTable = "") -> Value:
    """Rows of a table: keeps the ids; the gradient of the table is dense. `shared`: as in Setup."""
    table = t.parameter(leaf, (vocab, hidden), tied=tied, dtype=t.setup.outer_weights)
    table.storage.shared_table = shared
    ids = t.given("ids", (tokens,), INT64)
    out = t.new("embedding", (tokens, hidden), table.dtype, table.grad)
    t.step("embedding", (table, ids), (out,), saved=(ids,))
    return out


def split(t: Tape, x: Value, parts: Sequence[Dims]) -> list[Value]:
    """Views of parts of x, made by one call; its backward joins the parts' gradients in one new tensor."""
    outs = [Value(x.storage, dims, x.dtype, x.grad) for dims in parts]
    t.step("split", (x,), outs)
    return outs


def narrow(t: Tape, x: Value, dims: Dims) -> Value:
    """A view of a part of x (indexing by a range); its backward makes zeros of the whole."""
    out = Value(x.storage, dims, x.dtype, x.grad)
    t.step("narrow", (x,), (out,))
    return out


def clamp_(t: Tape, x: Value) -> Value:
    """Clamped in place: autograd keeps a copy of what x was."""
    before = t.new("before clamp", x.dims, x.dtype, False)
    out = Value(x.storage, x.dims, x.dtype, x.grad)
    t.step("clamp_", (x,), (out, before), saved=(before,))
    return out


def gather(t: Tape, x: Value) -> Value:
    """Indexing by a list: a copy that keeps its one index; backward adds into zeros of what was indexed."""
    out = t.new("index", x.dims, x.dtype, x.grad)
    index = t.new("index", (Dim("1", 1),), INT64, False)
    t.step("index", (x,), (out, index), saved=(index,))
    return out


def cat(t: Tape, parts: Sequence[Value], dims: Dims) -> Value:
    """A new tensor of joined parts; their gradients are views of its gradient."""
    out = t.new("cat", dims, promote(*parts), any(p.grad for p in parts))
    t.step("cat", parts, (out,), made=[Made(p, None) for p in parts])
    return out


def contiguous(t: Tape, x: Value) -> Value:
    """A copy in memory order; the gradient passes as it is."""
    out = t.new("copy", x.dims, x.dtype, x.grad)
    t.step("copy", (x,), (out,), made=[Made(x, None)])
    return out


def expand(t: Tape, x: Value, dims: Dims) -> Value:
    """A broadcast view; its backward sums over what was repeated."""
    out = Value(x.storage, dims, x.dtype, x.grad)
    t.step("expand", (x,), (out,), made=[Made(x, Size.of(x.dims, x.dtype))])
    return out


def repeat(t: Tape, x: Value, dims: Dims) -> Value:
    """A broadcast made dense (repeat_kv); its backward sums over the copies."""
    out = t.new("repeat", dims, x.dtype, x.grad)
    out.storage.head_major = True
    t.step("repeat", (x,), (out,))
    return out


def _covers(a: Dims, b: Dims) -> bool:
    """Whether shape a is at least as large as b in every axis product."""
    (count_a, axes_a), (count_b, axes_b) = elements(a), elements(b)
    return (len(axes_a), count_a) >= (len(axes_b), count_b)


def join(t: Tape, *new: Value) -> tuple[Value, ...]:
    """Keys, values or latents of a training pass in a cache that was empty, where the loop leaves it on: `torch.cat` copies them, heads one after
    another, and the cache holds the copies (transformers from 4.56, cache_utils.py DynamicLayer.update)."""
    life = t.setup.kernels.past
    if life == "none" or not t.setup.grad:
        return new
    with t.scope("", *new):
        joined = tuple(cat(t, (x,), x.dims) for x in new)
    for copy in joined:
        copy.storage.head_major = True
        if life == "backward":
            t.linger(copy)
        else:
            t.until_end(copy)
    return joined


def remember(t: Tape, name: str, x: Value, *, window: int = 0) -> Value:
    """Puts keys, values or latents of the new tokens x (n, w) into the layer's cache and gives back what attention reads.

    A dynamic cache joins the past and the new tokens in a new tensor each time (transformers cache_utils.py DynamicLayer.update): in prefill
    that is a copy of x, in decoding the whole past exists twice for a moment. The cache itself is counted beside the step.
    """
    t.cache("kv", name, x.dims[1:], window=window)
    if t.setup.cache == "none":
        return join(t, x)[0]
    if t.setup.cache == "prefill":
        out = t.given(name, x.dims, x.dtype)
        t.step("cache", (x,), (out,))
        return out
    span = Dim("t", 1, (B, Axis("t", window)))
    out = t.given(name, (span, *x.dims[1:]), x.dtype)
    t.step("cache", (x,), (out,), scratch=Size.of(out.dims, out.dtype))
    return out
