"""From the last hidden states to log-probabilities of given tokens: what preference and reinforcement learning need in place of a cross entropy.

The forms are those of trl (read in 0.24, 0.29, 1.4, 1.13, 1.16) and ms-swift (swift/rlhf_trainers at 3602360). `Kernels.scored` says which share of
a sequence's tokens the head runs on (logits_to_keep), `Kernels.rows` how many sequences there are: logits are worked off one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Axis, B, Dim, Dims, S, Size, U, tile_tokens
from everybyte.layers.recording.tape import Made, Tape, Value


class Head(Protocol):
    """What is asked of a language model's head here: its product, and the sizes of its weight (V, h)."""

    @property
    def leaf(self) -> str: ...  # noqa: D102
    @property
    def vocab(self) -> int: ...  # noqa: D102
    @property
    def tied(self) -> bool: ...  # noqa: D102
    def logits(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> logits (n, V)."""


Form = Literal["rolled", "sliced", "copied", "scaled", "pinned"]
"""What happens to the logits before they are scored: nothing, for labels are rolled (trl's DPO until 0.28, ms-swift); the last position is cut off as
a view (KTO, CPO, ORPO); that part is copied, and both live until the loss is returned (trl's DPO from 0.29 to 1.13); it is divided by the
temperature, which makes a new tensor (GRPO, RLOO); logits of all tokens live through backward and those of the answer are divided in place (PPO)."""
COLUMNS = 32768
"""_CHUNKED_LOGPROB_CHUNK_SIZE: columns of the vocabulary whose logits exist at a time in trl's fused head."""


def kept_tokens(t: Tape) -> Dim:
    """Tokens that the head runs on."""
    used, every = t.setup.kernels.scored
    return Dim("n_c", 1, (B, _axis(t, used)[1])) if used != every else Dim("n", 1, (B, S))


def _axis(t: Tape, used: int) -> tuple[str, Axis]:
    every = t.setup.kernels.scored[1]
    return ("s", S) if used == every else ("s_c", Axis("s", 0, (used, every)))


def _labelled(t: Tape) -> tuple[str, Axis]:
    """Positions of a sequence that have a label, where the last is cut off."""
    used, every = t.setup.kernels.scored
    return ("(s-1)", U) if used == every else _axis(t, used - 1)


def log_probs(t: Tape, head: Head, x: Value, *, form: Form, entropy: Callable[[Tape, Value], Value] | None = None) -> Value:
    """x (n, h) -> a loss on the log-probability of each token; with `entropy` a cross entropy of the chosen half beside it (CPO, ORPO)."""
    with t.scope("loss", x):
        logits = _logits(t, head, x, kept_tokens(t) if form != "pinned" else Dim("n", 1, (B, S)))
        if form == "pinned":
            t.pin(logits)
        elif form != "scaled":
            t.hold(logits)
        answer = (Dim("n_c", 1, (B, _labelled(t)[1])), logits.dims[1])
        if form == "pinned":
            logits = _divided(t, logits, answer)
        cut = logits if form == "rolled" else ops.narrow(t, logits, answer)
        if form == "copied":
            t.until_end(logits)
            cut = ops.contiguous(t, cut)
            t.until_end(cut)
        if form == "scaled":
            cut = ops.scale(t, cut)
            t.hold(cut)
        letter, axis = _axis(t, t.setup.kernels.scored[0]) if form == "rolled" else _labelled(t)
        scores = selective(t, cut, Dim(letter, 1, (axis,)))
        return scores if entropy is None else _joined(t, scores, entropy(t, _chosen(t, cut)))


def _logits(t: Tape, head: Head, x: Value, tokens: Dim) -> Value:
    """The head on `tokens`. Under autocast accelerate turns a model's outputs into fp32 (utils/operations.py convert_outputs_to_fp32)."""
    if tokens.letter != "n":
        part = ops.narrow(t, x, (tokens, *x.dims[1:]))
        x = part if t.setup.single else ops.contiguous(t, part)
    logits = head.logits(t, x)
    return logits if t.setup.compute is None else ops.cast(t, logits, FP32)


def _divided(t: Tape, logits: Value, part: Dims) -> Value:
    """A part of the logits divided in place. Backward copies the gradient of the whole, and that of the part twice (torch/csrc/autograd/functions/
    tensor.cpp CopySlices)."""
    out = Value(logits.storage, logits.dims, logits.dtype, logits.grad)
    t.step("copy slices", (logits,), (out,), back_scratch=Size.of(part, logits.dtype) * 2)
    return out


def selective(t: Tape, logits: Value, row: Dim) -> Value:
    """trl's selective_log_softmax (trainer/utils.py). In 16 bit: log_softmax of one sequence after the other, each kept whole. In fp32: the logits
    of the labels less a log-sum-exp, for which the logits themselves are kept."""
    width, count = logits.dims[-1], t.setup.kernels.rows
    wide = logits.dtype == FP32
    if wide:
        chosen = t.new("chosen logits", logits.dims[:-1], FP32, logits.grad)
        t.step("gather", (logits,), (chosen,), saved=(logits,))
    parts = ops.split(t, logits, [(row, width)] * count)
    found: list[Value] = []
    for part in parts:
        if wide:
            sums = t.new("logsumexp", (row,), FP32, part.grad)
            # forward: (self - maxes).exp_(); backward: grad · (self - result).exp(), whose two factors are alive beside the product
            one = Size.of(part.dims, FP32)
            t.step("logsumexp", (part,), (sums,), saved=(part, sums), scratch=one, back_scratch=one * 2)
        else:
            logs = t.new("log_softmax", part.dims, part.dtype, part.grad)
            t.step("log_softmax", (part,), (logs,), saved=(logs,))
            sums = t.new("log-probabilities", (row,), part.dtype, part.grad)
            t.step("gather", (logs,), (sums,))
        found.append(sums)
    out = t.new("log-probabilities", logits.dims[:-1], logits.dtype, logits.grad)
    t.step("stack", found, (out,))
    return _joined(t, out, chosen) if wide else _joined(t, out)


def _joined(t: Tape, *values: Value) -> Value:
    out = t.new("loss", (), FP32, values[0].grad)
    t.step("loss", values, (out,))
    return out


def _chosen(t: Tape, logits: Value) -> Value:
    """The first half of the sequences, copied in memory order."""
    half = Dim(logits.dims[0].letter, 1, (Axis("b", 0, (1, 2)), logits.dims[0].axes[1]))
    return ops.contiguous(t, ops.narrow(t, logits, (half, logits.dims[1])))


def fused_log_probs(t: Tape, head: Head, x: Value) -> Value:
    """trl from 1.14 (kernels/chunked_logprob.py ChunkedLogProbFunction): no logits but one tile of at most 4,096 tokens and 32,768 columns. The
    labelled hidden states are copied and kept; backward adds up fp32 gradients of these and of the head's weight before it casts them."""
    with t.scope("loss", x):
        letter, axis = _labelled(t)
        tokens = Dim(letter, 1, (B, axis))
        part = ops.contiguous(t, ops.narrow(t, x, (tokens, *x.dims[1:])))
        with t.scope(head.leaf):
            weight = t.parameter("weight", (Dim("V", head.vocab), x.dims[-1]), tied=head.tied, dtype=t.setup.outer_weights)
        compute = t.setup.compute or x.dtype
        columns = Dim("C", min(COLUMNS, head.vocab))
        tile = Size.of((tile_tokens(axis), columns), compute)
        casts = Size.of((tile_tokens(axis), x.dims[-1]), compute) if part.dtype != compute else Size()
        casts = casts + (Size.of((columns, x.dims[-1]), compute) if weight.dtype != compute else Size())
        sums = [t.new(what, (tokens,), FP32, False) for what in ("log-sum-exp", "entropy")]
        out = t.new("loss", (), FP32, part.grad)
        wide = Size.total(Size.of(v.dims, FP32) for v in (part, weight) if v.grad and v.dtype != FP32)
        made = [Made(v, Size.of(v.dims, v.dtype)) for v in (part, weight)]
        t.step("chunked_log_probs", (part, weight), (out, *sums), saved=(part, *sums), made=made, scratch=tile + casts, back_scratch=tile + casts + wide)
        return out


def wide_log_probs(t: Tape, head: Head, x: Value, *, entropy: Callable[[Tape, Value], Value] | None = None) -> Value:
    """LLaMA-Factory (train/trainer_utils.py get_batch_logps at v0.9.4): logits of all tokens in fp32, which the trainer's dictionary holds until the loss
    is returned; `log_softmax` of all but the last position copies that view and keeps its whole result."""
    with t.scope("loss", x):
        wide = ops.cast(t, head.logits(t, x), FP32)
        t.until_end(wide)
        cut = ops.narrow(t, wide, (Dim("n_c", 1, (B, _labelled(t)[1])), wide.dims[1]))
        logs = t.new("log_softmax", cut.dims, FP32, cut.grad)
        t.step("log_softmax", (cut,), (logs,), saved=(logs,), scratch=Size.of(cut.dims, FP32))
        scores = t.new("log-probabilities", cut.dims[:-1], FP32, cut.grad)
        t.step("gather", (logs,), (scores,))
        return _joined(t, scores) if entropy is None else _joined(t, scores, entropy(t, _chosen(t, cut)))


class ValuedHead(Record, frozen=True):
    """A language model's head that runs though only one number a token is used (trl AutoModelForCausalLMWithValueHead): logits, a copy of them in fp32 where
    they have 16 bits, both held by the trainer; beside them the value."""

    head: Any
    hidden: int

    @property
    def tied(self) -> bool:
        """As the head."""
        return bool(self.head.tied)

    @property
    def vocab(self) -> int:
        """As the head."""
        return int(self.head.vocab)

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> the loss on the values."""
        logits = ops.cast(t, self.head.logits(t, x), FP32)
        t.until_end(logits)
        with t.scope("v_head"):
            values = linear(t, ops.cast(t, x, FP32), "summary", Dim("1", 1), bias=True, dtype=FP32)
        return _joined(t, values)


class ScoreHead(Record, frozen=True):
    """A few numbers a token: a reward or value model (AutoModelForSequenceClassification with one label) or a classifier; the loss on top of it is small."""

    hidden: int
    vocab: int = 0
    tied: bool = False
    labels: int = 1

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> scores (n, labels), or the loss on them."""
        scores = self.score(t, x)
        return _joined(t, scores) if t.setup.grad else scores

    def score(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> scores (n, labels)."""
        width = Dim("1", 1) if self.labels == 1 else Dim("c", self.labels)
        return linear(t, x, "score", width, dtype=t.setup.outer_weights)
