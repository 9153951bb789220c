"""From the last hidden states to the loss: the head's product, its copies in fp32, and the cross entropy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.common.conv import mean_squared
from everybyte.layers.common.linear import linear
from everybyte.layers.heads.logprobs import fused_log_probs, log_probs, wide_log_probs
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, SHIFTED_TOKENS, Dim, Size, chunk_tokens, flce_chunk
from everybyte.layers.recording.tape import Made, Tape, Value


class Head(Record, frozen=True):
    """The language model's head and the loss on top of it."""

    hidden: int
    vocab: int
    tied: bool
    leaf: str = "lm_head"
    bias: bool = False
    softcap: bool = False
    scaled: bool = False
    """Logits are multiplied by a constant (Cohere, Granite, MiniCPM)."""
    upcast: bool = True
    """The loss takes logits.float(), as causal language models do; else the logits as they are (BERT, T5, Whisper, classifiers)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> the loss."""
        loss = LOSSES[t.setup.kernels.loss]
        return loss(t, self, x)

    def logits(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> logits (n, V)."""
        width = Dim("V", self.vocab)
        if self.tied:
            with t.scope(self.leaf):
                weight = t.parameter("weight", (width, x.dims[-1]), tied=True, dtype=t.setup.outer_weights)
                logits = ops.linear(t, x, weight, t.parameter("bias", (width,)) if self.bias else None, width)
        else:
            logits = linear(t, x, self.leaf, width, bias=self.bias, dtype=t.setup.outer_weights)
        if self.scaled:
            logits = ops.scale(t, logits)
        if self.softcap:
            logits = ops.scale(t, ops.unary(t, "tanh", ops.scale(t, logits), keeps="output"))
        return logits


def _upcast(t: Tape, head: Head, logits: Value) -> Value:
    """`logits.float()` where the model's loss asks for it."""
    return ops.cast(t, logits, FP32) if head.upcast else logits


def cross_entropy(t: Tape, logits: Value) -> Value:
    """`F.cross_entropy`: keeps the log-probabilities; its backward makes the gradient of these and then of the logits. It is made of `log_softmax` in the type
    of the logits, whatever autocast would say, and of `nll_loss`, which autocast runs in fp32 (ATen/native/LossNLL.cpp cross_entropy_loss). On CPUs autocast
    runs the whole in fp32."""
    if t.setup.compute is not None and t.setup.kernels.device == "cpu":
        logits = ops.cast(t, logits, FP32)
    logs = t.new("log_softmax", logits.dims, logits.dtype, logits.grad)
    t.step("log_softmax", (logits,), (logs,), saved=(logs,))
    if t.setup.compute is not None:
        logs = ops.cast(t, logs, FP32)
    out = t.new("loss", (), FP32, logits.grad)
    t.step("nll_loss", (logs,), (out,), saved=(logs,))
    return out


def hf(t: Tape, head: Head, x: Value) -> Value:
    """transformers from 4.50 (loss/loss_utils.py ForCausalLMLoss): logits.float(), labels are shifted; the 16-bit logits stay with the caller."""
    with t.scope("loss", x):
        logits = head.logits(t, x)
        t.hold(logits)
        return cross_entropy(t, _upcast(t, head, logits))


def hf_outputs_alive(t: Tape, head: Head, x: Value) -> Value:
    """As `hf`, in a loop that keeps the model's output (`out = model(...)`) while backward runs."""
    with t.scope("loss", x):
        logits = head.logits(t, x)
        t.linger(logits)
        return cross_entropy(t, _upcast(t, head, logits))


Entropy = Callable[[Tape, Value], Value]
"""From logits to the loss."""


def shifted(t: Tape, head: Head, x: Value, *, entropy: Entropy) -> Value:
    """transformers 4.46 to 4.49: logits.float(), then a contiguous copy without the last position; the 16-bit logits stay with the caller."""
    with t.scope("loss", x):
        logits = head.logits(t, x)
        wide = ops.cast(t, logits, FP32)
        t.hold(logits, wide)
        return entropy(t, _shifted(t, wide))


def rebound(t: Tape, head: Head, x: Value, *, entropy: Entropy) -> Value:
    """transformers before 4.46 (modeling files): logits = logits.float() gives the 16-bit logits back; then a contiguous shifted copy."""
    with t.scope("loss", x):
        wide = ops.cast(t, head.logits(t, x), FP32)
        t.hold(wide)
        return entropy(t, _shifted(t, wide))


def unraised(t: Tape, head: Head, x: Value, *, entropy: Entropy) -> Value:
    """Older decoders until 4.48 (GPT-2, GPTBigCode, NeoX, BLOOM, Falcon, OPT): a contiguous shifted copy of the 16-bit logits; no cast to fp32. Under autocast
    accelerate turns the model's output into fp32 at the end of forward (utils/operations.py convert_outputs_to_fp32)."""
    with t.scope("loss", x):
        logits = head.logits(t, x)
        t.hold(logits)
        out = entropy(t, _shifted(t, logits))
        if t.setup.compute is not None:
            raised = t.new("output", logits.dims, FP32, False)
            t.step("to fp32", (logits,), (raised,))
        return out


def _shifted(t: Tape, logits: Value) -> Value:
    """`logits[..., :-1, :].contiguous()`: one position less a sequence. The last `:` is a second slice in old releases of torch."""
    cut = ops.narrow(t, logits, (SHIFTED_TOKENS, *logits.dims[1:]))
    return ops.contiguous(t, ops.narrow(t, cut, cut.dims) if t.setup.kernels.slices_whole else cut)


def in_place_cross_entropy(t: Tape, logits: Value) -> Value:
    """A Triton cross entropy that writes the gradient over its input (Unsloth's, fms-acceleration's): keeps that and a log-sum-exp a row."""
    out = t.new("loss", (), FP32, logits.grad)
    lse = t.new("logsumexp", logits.dims[:-1], FP32, False)
    t.step("cross_entropy", (logits,), (out, lse), saved=(logits, lse), made=[Made(logits, None, into=logits.storage)])
    return out


def narrow_cross_entropy(t: Tape, logits: Value) -> Value:
    """`F.cross_entropy` of 16-bit logits outside of autocast: log-probabilities and their gradient have the type of the logits."""
    logs = t.new("log_softmax", logits.dims, logits.dtype, logits.grad)
    t.step("log_softmax", (logits,), (logs,), saved=(logs,))
    out = t.new("loss", (), logits.dtype, logits.grad)
    t.step("nll_loss", (logs,), (out,), saved=(logs,))
    return out


def fused_cross_entropy(t: Tape, logits: Value) -> Value:
    """flash-attn's Triton cross entropy (losses/cross_entropy.py, not in place): keeps the logits and a log-sum-exp a row, whatever their type."""
    out = t.new("loss", (), FP32, logits.grad)
    lse = t.new("logsumexp", logits.dims[:-1], FP32, False)
    t.step("cross_entropy", (logits,), (out, lse), saved=(logits, lse))
    return out


def as_made(t: Tape, head: Head, x: Value, *, entropy: Entropy, lingers: bool = False) -> Value:
    """A loss on the logits as the model makes them, labels shifted beforehand; `lingers`: the loop keeps the logits while backward runs."""
    with t.scope("loss", x):
        logits = head.logits(t, x)
        if lingers:
            t.linger(logits)
        return entropy(t, logits)


def fused_linear(t: Tape, head: Head, x: Value) -> Value:
    """Liger's fused linear cross entropy: logits exist one chunk of rows at a time (16 bit, fp32 and their gradient), the gradients of the
    input and, if it is trained, of the head's weight are made in forward and kept (ops/fused_linear_cross_entropy.py)."""
    with t.scope("loss", x):
        width, chunk = Dim("V", head.vocab), flce_chunk(head.vocab, head.hidden)
        x = ops.autocast(t, x)
        with t.scope(head.leaf):
            weight = ops.autocast(t, t.parameter("weight", (width, x.dims[-1]), tied=head.tied, dtype=t.setup.outer_weights))
        out = t.new("loss", (), FP32, x.grad)
        grad_x = t.new("gradient of input", x.dims, x.dtype, False)
        made = [Made(x, None, into=grad_x.storage)]
        kept = [grad_x]
        if weight.grad:
            grad_w = t.new("gradient of head", weight.dims, x.dtype, False)
            grad_w.storage.role = "gradient"
            kept.append(grad_w)
            made.append(Made(weight, None, into=grad_w.storage))
        one = Size.of((chunk, width), x.dtype)
        t.step("fused_linear_cross_entropy", (x, weight), (out, *kept), saved=kept, made=made, scratch=one * 3)
        return out


def cut(t: Tape, head: Head, x: Value) -> Value:
    """Cut cross entropy: no logits in memory, a log-sum-exp a row; backward makes the gradients (apple/ml-cross-entropy)."""
    with t.scope("loss", x):
        with t.scope(head.leaf):
            weight = t.parameter("weight", (Dim("V", head.vocab), x.dims[-1]), tied=head.tied, dtype=t.setup.outer_weights)
        out = t.new("loss", (), FP32, x.grad)
        lse = t.new("logsumexp", x.dims[:-1], FP32, False)
        t.step("cut_cross_entropy", (x, weight), (out, lse), saved=(x, lse))
        return out


def _chunked_logits(t: Tape, head: Head, x: Value) -> list[Value]:
    """The head on one part of every sequence after the other; with several sequences a part is copied first."""
    rows = chunk_tokens(t.setup.kernels.chunks)
    parts = ops.split(t, x, [(rows, *x.dims[1:])] * t.setup.kernels.chunks)
    return [head.logits(t, part if t.setup.single else ops.contiguous(t, part)) for part in parts]


def _sum(t: Tape, losses: list[Value]) -> Value:
    out = t.new("loss", (), FP32, losses[0].grad)
    t.step("sum", losses, (out,))
    return out


def chunked(t: Tape, head: Head, x: Value) -> Value:
    """torchtune CEWithChunkedOutputLoss: 16-bit logits of all parts, fp32 and log-probabilities part by part. Autograd runs the backward of
    every cross entropy before that of any head product, so the gradients of all parts' logits live together."""
    with t.scope("loss", x):
        logits = _chunked_logits(t, head, x)
        t.hold(*logits)
        return _sum(t, [cross_entropy(t, ops.cast(t, part, FP32)) for part in logits])


def chunked_compiled(t: Tape, head: Head, x: Value) -> Value:
    """As `chunked` with a compiled cross entropy: one kernel reads the 16-bit logits, which it keeps with two numbers a row, and one writes
    their gradient (torchtune training/_compile.py compile_loss)."""
    with t.scope("loss", x):
        logits = _chunked_logits(t, head, x)
        t.hold(*logits)
        losses = []
        for part in logits:
            out = t.new("loss", (), FP32, part.grad)
            stats = [t.new(what, part.dims[:-1], FP32, False) for what in ("highest", "log-sum-exp")]
            t.step("cross_entropy", (part,), (out, *stats), saved=(part, *stats))
            losses.append(out)
        return _sum(t, losses)


def upcast_output(t: Tape, head: Head, x: Value) -> Value:
    """torchtune from 2024-07: the model returns logits.float(), labels are shifted, the loop drops the logits before backward."""
    with t.scope("loss", x):
        wide = ops.cast(t, head.logits(t, x), FP32)
        t.hold(wide)
        return cross_entropy(t, wide)


def upcast_transposed(t: Tape, head: Head, x: Value) -> Value:
    """torchtune before 2024-07: a shifted copy of the fp32 logits, which the loop keeps through backward, read as (b, V, s): log_softmax
    copies it once more into memory order."""
    with t.scope("loss", x):
        shifted = _shifted(t, ops.cast(t, head.logits(t, x), FP32))
        t.pin(shifted)
        return cross_entropy(t, ops.contiguous(t, shifted))


VOCABULARY_CHUNK = 2048
"""`fused_lm_head_chunk_size` of prime-rl."""


def log_probabilities(t: Tape, head: Head, x: Value) -> Value:
    """prime-rl's head for reinforcement learning (layers/lm_head.py _ChunkedLogProbEntropyFn): logits exist for some columns of the vocabulary at a
    time, 16 bit and fp32, with their exponential and its product in forward, with probabilities and gradient in backward; the variables of one turn
    live until the next has new ones."""
    with t.scope("loss", x):
        width = Dim("V", head.vocab)
        with t.scope(head.leaf):
            weight = t.parameter("weight", (width, x.dims[-1]), tied=head.tied, dtype=t.setup.outer_weights)
        part = (x.dims[0], Dim("C", min(VOCABULARY_CHUNK, head.vocab)))
        narrow, wide = Size.of(part, x.dtype), Size.of(part, FP32)
        out = t.new("loss", (), FP32, x.grad)
        rows = [t.new(what, x.dims[:-1], FP32, False) for what in ("log-probabilities", "entropy", "log-sum-exp")]
        made = [Made(x, Size.of(x.dims, x.dtype)), Made(weight, Size.of(weight.dims, weight.dtype))]
        t.step(
            "log_probabilities",
            (x, weight),
            (out, *rows),
            saved=(x, weight, *rows),
            made=made,
            scratch=(narrow, wide, wide, wide),
            back_scratch=(narrow, wide, wide, wide, wide, wide),
        )
        return out


def held_upcast(t: Tape, head: Head, x: Value) -> Value:
    """prime-rl's supervised training: `logits.float()` stays in the loop's output dictionary until the next forward has returned, though `logits`
    itself is deleted before backward (trainer/sft/train.py). Until then those of the micro-batch before are there."""
    with t.scope("loss", x):
        before = ops.made(t, "logits of the micro-batch before", (*x.dims[:-1], Dim("V", head.vocab)), FP32)
        with t.scope("", x, before):
            wide = ops.cast(t, head.logits(t, x), FP32)
        t.linger(wide)
        return cross_entropy(t, wide)


class RegressionHead(Record, frozen=True):
    """`F.mse_loss(prediction.float(), target.float())`: what diffusion models are trained with; nothing in inference."""

    hidden: int
    vocab: int = 0
    tied: bool = False

    def forward(self, t: Tape, x: Value) -> Value:
        """The prediction -> the loss."""
        if not t.setup.grad:
            return x
        with t.scope("loss"):
            return mean_squared(t, x)


def logits_only(t: Tape, head: Head, x: Value) -> Value:
    """Inference: the logits themselves."""
    return head.logits(t, x)


def raised_logits(t: Tape, head: Head, x: Value) -> Value:
    """Inference before models could leave positions out: logits of all of them, and all of them in fp32 beside (modeling files: `logits.float()`)."""
    logits = head.logits(t, x)
    t.hold(logits)
    return _upcast(t, head, logits)


def last_logits(t: Tape, head: Head, x: Value) -> Value:
    """Generation: logits of the last position alone, copied to fp32 for the sampler (generation/utils.py)."""
    last = ops.narrow(t, x, (SEQUENCES, *x.dims[1:]))
    logits = head.logits(t, last)
    t.hold(logits)
    return ops.cast(t, logits, FP32)


LOSSES: dict[str, Callable[[Tape, Head, Value], Value]] = {
    "hf": hf,
    "hf-outputs-alive": hf_outputs_alive,
    "hf-shifted": partial(shifted, entropy=cross_entropy),
    "hf-rebound": partial(rebound, entropy=cross_entropy),
    "foak-shifted": partial(shifted, entropy=in_place_cross_entropy),
    "foak-rebound": partial(rebound, entropy=in_place_cross_entropy),
    "hf-unraised": partial(unraised, entropy=cross_entropy),
    "foak-unraised": partial(unraised, entropy=in_place_cross_entropy),
    "narrow": partial(as_made, entropy=narrow_cross_entropy),
    "narrow-outputs-alive": partial(as_made, entropy=narrow_cross_entropy, lingers=True),
    "flash-attn": partial(as_made, entropy=fused_cross_entropy),
    "foak-as-made": partial(as_made, entropy=in_place_cross_entropy),
    "fused-linear": fused_linear,
    "cut": cut,
    "chunked": chunked,
    "chunked-compiled": chunked_compiled,
    "upcast-output": upcast_output,
    "upcast-transposed": upcast_transposed,
    "log-probabilities": log_probabilities,
    "held-upcast": held_upcast,
    "logps-rolled": partial(log_probs, form="rolled"),
    "logps-sliced": partial(log_probs, form="sliced"),
    "logps-copied": partial(log_probs, form="copied"),
    "logps-scaled": partial(log_probs, form="scaled"),
    "logps-pinned": partial(log_probs, form="pinned"),
    "logps-and-entropy": partial(log_probs, form="sliced", entropy=cross_entropy),
    "logps-wide": wide_log_probs,
    "logps-wide-and-entropy": partial(wide_log_probs, entropy=cross_entropy),
    "logps-fused": fused_log_probs,
    "logits": logits_only,
    "raised-logits": raised_logits,
    "last-logits": last_logits,
}
"""Implementations of the loss by the name that `Kernels.loss` holds."""
