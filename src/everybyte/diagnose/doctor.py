"""The doctor: a log goes in, a diagnosis comes out."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, BinaryIO

from everybyte.basics.errors import BadInput, EverybyteError
from everybyte.catalog.models import model_config
from everybyte.diagnose.diagnosis import Cure, Diagnosis
from everybyte.diagnose.evidence import Evidence, Held, gathered
from everybyte.diagnose.suspicion import Suspicion
from everybyte.diagnose.tensor import Candidate, Tensor, by_catalogue, named, of_config
from everybyte.diagnose.weigh import causes_of
from everybyte.job import Job
from everybyte.ledger.answer import Answer
from everybyte.measure.messages.scan import scan

MOST_CURES, MOST_QUESTIONS, MOST_CAUSES = 4, 3, 4
SERVERS = ("vllm", "sglang", "llama.cpp", "ollama", "tensorrt", "tensorrt-llm", "lmdeploy", "tgi", "mlx")
SURE = 0.75
"""Above, nothing is asked."""


def diagnose(stream: BinaryIO, job: Job | None = None) -> Diagnosis:
    """What a log says of a lack of memory; with the job, the tensor and cures that are estimated. Reads logs of any size in bounded memory."""
    answer = _answered(job)
    held = _held(answer)
    evidence = gathered(scan(stream), held)
    causes = causes_of(evidence)
    message = evidence.message
    tensor, models = _tensor(evidence, job)
    if tensor is not None and tensor.name.startswith("logits") and causes[0].cause in ("unknown", "activations"):
        causes = (Suspicion("logits", 0.7, f"the request is {tensor.numbers}"), *(one for one in causes if one.cause != "logits"))
    cause = causes[0].cause
    memory = cause != "not_memory"
    return Diagnosis(
        recognised=message is not None or bool(evidence.scan.sequels or evidence.scan.warnings or evidence.scan.other_faults),
        message=message if memory else None,
        messages=evidence.scan.count,
        phase=evidence.phase if memory else None,
        causes=causes[:MOST_CAUSES],
        tensor=tensor if memory else None,
        cures=tuple(_cures(causes, evidence, job, answer))[:MOST_CURES] if memory else (),
        asked=tuple(_questions(causes, evidence, job))[:MOST_QUESTIONS] if memory and causes[0].confidence < SURE else (),
        model=evidence.facts.model or (models[0] if len(models) == 1 else None),
        command=evidence.facts.command,
    )


def _answered(job: Job | None) -> Answer | None:
    if job is None:
        return None
    from everybyte.plan.answer import answered  # most logs come without a job

    return answered(job)


def _held(answer: Answer | None) -> Held:
    if answer is None:
        return Held()
    return Held(
        static=answer.size("static.allocated") or answer.size("weights"),
        weights=answer.size("weights"),
        peak=answer.size("peak.device"),
        capacity=answer.hardware.capacity if answer.hardware else None,
    )


def _tensor(e: Evidence, job: Job | None) -> tuple[Tensor | None, tuple[str, ...]]:
    """The tensor that was asked for, by the job, by the model that the log names, or by the catalogue if one shape is left."""
    if e.message is None or not e.message.requested or e.message.form.weight != "fault":
        return None, ()
    try:
        candidates = _candidates(e, job)
    except EverybyteError:  # a model that nobody knows has no tensors here
        candidates = None
    if candidates is not None:
        return named(e.message.requested, candidates) or _logits(e), ()
    if e.message.form.engine != "torch":
        return None, ()
    found = by_catalogue(e.message.requested)
    return found if found is not None else (None, ())


def _logits(e: Evidence) -> Tensor | None:
    """Logits of so many tokens that the request comes out, where the log names the model and the loss asked."""
    if e.phase != "loss" or e.facts.model is None or e.message is None or e.message.requested is None:
        return None
    config = model_config(e.facts.model)
    vocab = int((config.get("text_config") or config).get("vocab_size") or 0)
    tokens = e.message.requested // (4 * vocab) if vocab else 0
    if not tokens:
        return None
    return Tensor("logits, fp32, of about so many tokens", "T*V*4", f"{tokens:,}*{vocab:,}*4", tokens * vocab * 4, 0.0)


def _candidates(e: Evidence, job: Job | None) -> Iterator[Candidate] | None:
    name = job.model if job is not None and isinstance(job.model, str) else e.facts.model
    if name is None:
        return None
    train = job.train if job is not None else None
    tokens = sequences = None
    if train is not None and train.seq_len:
        sequences = train.micro_batch or 1
        tokens = train.tokens or sequences * train.seq_len
    elif "batched_tokens" in e.facts.numbers:
        tokens = int(e.facts.numbers["batched_tokens"])
    return of_config(model_config(name), tokens=tokens, sequences=sequences, tp=int(e.facts.numbers.get("tp", 1)))


@cache
def _table(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tomllib.loads((files(__package__) / f"data/{name}.toml").read_text(encoding="utf-8"))[name.removesuffix("s")]
    return rows


def _cures(causes: tuple[Suspicion, ...], e: Evidence, job: Job | None, answer: Answer | None) -> Iterator[Cure]:
    """The cheapest first: with a job those that were estimated, else what is known to help against the cause. None that the numbers refute."""
    likely = [one.cause for one in causes if one.confidence >= causes[0].confidence / 2]
    by_words = {row["says"]: row for cause in likely for row in _table("cures") if cause in row["causes"]}
    words = list(by_words.values())
    free = [row for row in words if not row["change"] or row["price"] == "nothing"]
    estimated = list(_estimated(job, answer)) if job is not None and answer is not None else []
    for row in free if estimated else words:
        if not _is_refuted(row, e):
            yield Cure(row["change"], row["says"], row["price"], changes_objective=row.get("changes_objective", False))
    yield from estimated


def _estimated(job: Job, answer: Answer) -> Iterator[Cure]:
    """The answer's advice: each change with what it saves; the range spans both ends of the intervals before and after."""
    from everybyte.estimator import estimate
    from everybyte.plan.advice import apply

    for row in answer.advice:
        saves = row["saves_bytes"]
        try:
            after = estimate(apply(job, row["change"])).range.get("peak.device")
        except BadInput:
            after = None
        before = answer.range.get("peak.device")
        ends = sorted((saves, *(round(b - a) for b, a in zip(before, after, strict=True)))) if before and after else [saves, saves]
        yield Cure(row["change"], row["flags"], row["price"], row["flags"], saves, (ends[0], ends[-1]), row["changes_objective"], row["fits"])


def _is_refuted(row: dict[str, Any], e: Evidence) -> bool:
    """Whether the numbers say that a cure cannot help: a smaller batch where weights alone overflow, larger segments without a rest."""
    m = e.message
    if "env.alloc_conf" in row["change"]:
        return m is not None and m.rest is not None and m.requested is not None and m.rest + (m.free or 0) < m.requested
    smaller_batch = any(key in row["change"] for key in ("train.micro_batch", "serve.batched_tokens", "serve.sequences"))
    if smaller_batch and e.held.static is not None and e.held.capacity is not None:
        return e.held.static > e.held.capacity
    section = "train." if _serves(e) else "serve."
    return any(key.startswith(section) for key in row["change"])


def _serves(e: Evidence) -> bool:
    """Whether the log is a serving engine's."""
    engine = e.message.form.engine if e.message is not None else ""
    return engine in SERVERS or any(name in e.text for name in SERVERS) or e.phase in ("profile", "capture", "prefill", "decode")


def _questions(causes: tuple[Suspicion, ...], e: Evidence, job: Job | None) -> Iterator[str]:
    for row in _table("questions"):
        known = row.get("without") == "model" and (job is not None or e.facts.model is not None)
        if causes[0].cause in row["causes"] and not known:
            yield row["asks"]
