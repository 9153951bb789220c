"""Feed-forward layers and experts (llama-graph.cpp build_ffn, build_moe_ffn; ik_llama.cpp llm_build_ffn, llm_build_moe_ffn)."""

from __future__ import annotations

from typing import Any

from everybyte.allocator import ggml_ops as op
from everybyte.allocator.ggml import F32, I32, Tensor
from everybyte.engines.llamacpp.graph.builder import MANY_EXPERTS, Builder, fp32
from everybyte.engines.llamacpp.release import is_fork
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts
from everybyte.layers.experts.router import Router


def feed_forward(b: Builder, layer: int, x: Tensor, part: Any) -> Tensor:
    """A dense layer or experts. Raises KeyError for a kind that has no graph here."""
    if isinstance(part, MoE):
        return experts(b, layer, x, part)
    if isinstance(part, PlainMLP):
        return plain(b, layer, x, part)
    return dense(b, layer, x, part.ffn, fused=bool(getattr(part, "fused_gate", "")), bias=part.bias)


def plain(b: Builder, layer: int, x: Tensor, part: PlainMLP) -> Tensor:
    """down(act(up(x)))."""
    inner = op.like("unary", b.linear("ffn_up", layer, x, part.ffn, part.bias))
    if part.activation == "relu2":
        inner = op.like("sqr", inner)
    return b.linear("ffn_down", layer, inner, part.hidden, part.bias)


def dense(b: Builder, layer: int, x: Tensor, ffn: int, *, fused: bool = False, bias: bool = False, suffix: str = "") -> Tensor:
    """down(act(gate(x))·up(x)); `fused`: gate and up are one matrix."""
    if fused and not suffix:
        inner = _halves(b, b.linear("ffn_up", layer, x, 2 * ffn, bias), ffn)
    else:
        up, gate = (b.linear(f"{name}{suffix}", layer, x, ffn, bias) for name in ("ffn_up", "ffn_gate"))
        inner = b.gated(gate, up)
    return b.linear(f"ffn_down{suffix}", layer, inner, b.hidden, bias)


def _halves(b: Builder, both: Tensor, ffn: int) -> Tensor:
    """The product of the halves of a joined projection; before b5787 each half is copied first (LLM_FFN_SWIGLU)."""
    rows = both.ne[1]
    if is_fork(b.release) or b.release.has("joins_gates"):
        return Tensor(F32, (ffn, rows), "glu", (both,))
    first, second = (op.cont(op.view(both, ffn, rows, nb=(both.nb[0], both.nb[1], both.nb[1] * rows, both.nb[1] * rows))) for _ in range(2))
    return op.like("mul", op.like("unary", first), second)


def experts(b: Builder, layer: int, x: Tensor, part: MoE) -> Tensor:
    """Routed experts, plus the shared one."""
    out = routed(b, layer, x, part.router, part.experts)
    if part.shared is None:
        return out
    shared = dense(b, layer, x, part.shared.ffn, suffix="_shexp")
    if part.shared_gate:
        gate = op.mul_mat(b.matrix("ffn_gate_inp_shexp", layer, b.hidden, 1, form=fp32()), x)
        shared = op.like("mul", shared, op.like("unary", gate))
    return op.like("add", out, shared)


def routed(b: Builder, layer: int, x: Tensor, router: Router, part: Experts, logits: Tensor | None = None) -> Tensor:
    """Σ weight·expert(x) over the chosen experts."""
    tokens, used, biased = x.ne[1], part.top_k, part.bias
    weights, ids = _choose(b, layer, x, router, tokens, logits)
    rows = op.reshape(x, b.hidden, 1, tokens)
    up, gate = (b.matrix(f"ffn_{name}_exps", layer, b.hidden, part.ffn, part.count) for name in ("up", "gate"))
    down = b.matrix("ffn_down_exps", layer, part.ffn, b.hidden, part.count)
    if is_fork(b.release) and b.prompt.joins_experts and part.gate is not None:
        inner = Tensor(F32, (part.ffn, used, tokens), "moe_up_gate", (up, gate, rows, ids))
    else:
        inner = _biased(b, layer, "ffn_up_exps", op.mul_mat_id(up, rows, ids), ids, biased)
        if part.gate is not None:
            inner = b.gated(_biased(b, layer, "ffn_gate_exps", op.mul_mat_id(gate, rows, ids), ids, biased), inner)
        else:
            inner = op.like("unary", inner)
            inner = op.like("sqr", inner) if part.activation == "relu2" else inner
    out = op.like("mul", _biased(b, layer, "ffn_down_exps", op.mul_mat_id(down, inner, ids), ids, biased), weights)
    return _sum(b, out, used, tokens)


def _biased(b: Builder, layer: int, name: str, x: Tensor, ids: Tensor, biased: bool) -> Tensor:
    return op.like("add_id", x, b.vector(f"{name}.bias", layer, x.ne[0]), ids) if biased else x


def _choose(b: Builder, layer: int, x: Tensor, router: Router, tokens: int, logits: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights (1, used, tokens) and numbers (used, tokens) of the chosen experts."""
    count, used = router.experts, router.top_k
    late = router.score == "chosen-softmax"
    if logits is None:
        logits = op.mul_mat(b.matrix("ffn_gate_inp", layer, b.hidden, count, form=fp32()), x)
        if router.bias:
            logits = op.like("add", logits, b.vector("ffn_gate_inp.bias", layer, count))
    scores = logits if late else op.like("unary", logits) if router.score.startswith("sigmoid") else op.like("soft_max", logits)
    chooses = op.like("add", scores, b.vector("exp_probs_b", layer, count)) if router.correction else scores
    order = Tensor(I32, chooses.ne, "argsort", (chooses,))
    ids = op.view(order, used, tokens, nb=(4, order.nb[1], order.nb[1] * tokens, order.nb[1] * tokens))
    weights = op.get_rows(op.reshape(scores, 1, count, tokens), ids)
    if late:
        weights = op.reshape(op.like("soft_max", op.reshape(weights, used, tokens)), 1, used, tokens)
    elif router.normalize:
        flat = op.reshape(weights, used, tokens)
        total = Tensor(F32, (1, tokens), "sum_rows", (flat,))
        if b.release.has("takes_embeddings"):
            total = op.like("clamp", total)
        weights = op.reshape(op.like("div", flat, total), 1, used, tokens)
    if router.scaled:
        weights = op.like("scale", weights)
    if b.release.has("takes_embeddings"):
        b.graph.expand(weights)
    return weights, ids


def _sum(b: Builder, out: Tensor, used: int, tokens: int) -> Tensor:
    """The experts' results of each token added up, one after the other."""
    late = b.release.has("takes_embeddings")
    if late:
        b.graph.expand(out)
    step = out.nb[2]
    parts = [op.view(out, b.hidden, tokens, nb=(4, step, step * tokens, step * tokens)) for _ in range(used)]
    if late:
        for part in parts:
            b.graph.expand(part)
    if is_fork(b.release) and used > MANY_EXPERTS:
        return Tensor(F32, (b.hidden, tokens), "multi_add", (parts[0],))
    total = parts[0]
    for part in parts[1:]:
        total = op.like("add", total, part)
        if late:
            b.graph.expand(total)
    return op.cont(total) if used == 1 else total
