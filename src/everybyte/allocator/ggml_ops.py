"""ggml's operators: the shape and the strides of what each makes."""

from __future__ import annotations

from everybyte.allocator.ggml import F32, INPUT, Kind, Shape, Tensor, contiguous


def new_input(kind: Kind, *ne: int) -> Tensor:
    """What the application fills in before each run."""
    return Tensor(kind, ne, flags=INPUT)


def outside(kind: Kind, *ne: int, device: int, weight: bool = True, stays: bool = False) -> Tensor:
    """A weight, or a cache, in a buffer of its own."""
    made = Tensor(kind, ne)
    made.outside, made.is_weight, made.device, made.stays = True, weight, device, stays
    return made


def like(op: str, a: Tensor, *more: Tensor, kind: Kind | None = None) -> Tensor:
    """An operator whose result has the shape of its first source, without gaps (ggml_dup_tensor)."""
    return Tensor(kind or a.kind, a.ne, op, (a, *more))


def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    """b·aᵀ in fp32."""
    return Tensor(F32, (a.ne[1], b.ne[1], b.ne[2], b.ne[3]), "mul_mat", (a, b))


def mul_mat_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """b with the matrices of `a` that `ids` name."""
    return Tensor(F32, (a.ne[1], ids.ne[0], b.ne[2], 1), "mul_mat_id", (a, b, ids))


def view(a: Tensor, *ne: int, nb: Shape | None = None) -> Tensor:
    """A part of a tensor; without strides: one without gaps."""
    return Tensor(a.kind, ne, "view", (a,), view=a, nb=nb)


def reshape(a: Tensor, *ne: int) -> Tensor:
    """The same numbers in another shape."""
    return Tensor(a.kind, ne, "reshape", (a,), view=a)


def permute(a: Tensor, *axes: int) -> Tensor:
    """Axis i of `a` becomes axis axes[i]."""
    ne, nb = [0] * 4, [0] * 4
    for i, j in enumerate(axes):
        ne[j], nb[j] = a.ne[i], a.nb[i]
    return Tensor(a.kind, ne, "permute", (a,), view=a, nb=(nb[0], nb[1], nb[2], nb[3]))


def transpose(a: Tensor) -> Tensor:
    """The first two axes exchanged."""
    return Tensor(a.kind, (a.ne[1], a.ne[0], a.ne[2], a.ne[3]), "transpose", (a,), view=a, nb=(a.nb[1], a.nb[0], a.nb[2], a.nb[3]))


def cont(a: Tensor, *ne: int) -> Tensor:
    """A copy without gaps."""
    return Tensor(a.kind, ne or a.ne, "cont", (a,))


def cast(a: Tensor, kind: Kind) -> Tensor:
    """A copy in another format."""
    return Tensor(kind, a.ne, "cpy", (a,))


def copy_into(a: Tensor, b: Tensor) -> Tensor:
    """`a` written over `b` (ggml_cpy): a view of b."""
    return Tensor(b.kind, b.ne, "cpy", (a, b), view=b, nb=b.nb)


def concat(a: Tensor, b: Tensor, axis: int) -> Tensor:
    """`b` behind `a` along an axis."""
    ne = list(a.ne)
    ne[axis] += b.ne[axis]
    return Tensor(a.kind, ne, "concat", (a, b))


def get_rows(a: Tensor, ids: Tensor) -> Tensor:
    """The rows of `a` that `ids` name, in fp32 (whole numbers stay what they are)."""
    return Tensor(a.kind if a.kind.name == "i32" else F32, (a.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]), "get_rows", (a, ids))


def set_rows(a: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """`rows` written into `a` where `ids` say: a view of a."""
    return Tensor(a.kind, a.ne, "set_rows", (rows, ids, a), view=a, nb=a.nb)


def repeat(a: Tensor, *ne: int) -> Tensor:
    """`a` again and again up to a shape."""
    return Tensor(a.kind, ne, "repeat", (a,))


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *more: Tensor, extra: int = 0) -> Tensor:
    """Flash attention: (d_v, heads, tokens)."""
    made = Tensor(F32, (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), "flash", (q, k, v, *([mask] if mask is not None else []), *more))
    made.extra = extra
    return made


def is_contiguous(a: Tensor) -> bool:
    """Without gaps."""
    return a.nb == contiguous(a.kind, a.ne)
