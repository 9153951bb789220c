"""The widest format of weights with which a serving job fits: from 16 bits downwards, by bits a weight."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job import Job, job_to_dict, read_job
from everybyte.ledger.answer import Answer

KEYS = ("weights", "serve.weights", "serve.weights.format", "quant", "quantization", "format", "dtype")
"""What `--grow` calls this search."""

GGUF = (
    "bf16",
    "q8_0",
    "q6_k",
    "q5_k_m",
    "q5_k_s",
    "q4_k_m",
    "q4_k_s",
    "iq4_nl",
    "iq4_xs",
    "q3_k_l",
    "q3_k_m",
    "iq3_m",
    "iq3_s",
    "q3_k_s",
    "iq3_xs",
    "iq3_xxs",
    "q2_k",
    "iq2_m",
    "iq2_s",
    "iq2_xs",
    "iq2_xxs",
    "iq1_m",
    "iq1_s",
)
"""The mixtures of llama.cpp in use, widest first (tools/quantize/README.md lists them with their bits)."""
PACKED = ("bf16", "fp8", "int8", "nvfp4", "mxfp4", "gptq", "awq")
"""What engines for servers load, widest first; a format that the engine refuses is passed over."""
BY_ENGINE = {"llama.cpp": GGUF, "ollama": GGUF, "transformers": ("bf16", "fp8", "int8", "mxfp4", "gptq", "awq", "nf4")}


class FormatTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One format: whether the job fits with it, by how much it does not, or why it is refused."""

    format: str
    fits: bool
    weights: int | None = None
    """Bytes of the weights on the worst GPU."""
    short_by: int | None = None
    refused: str | None = None
    """Why the format cannot be asked for."""
    reason: str | None = None
    """Why the engine would not start, where the device has room."""


class FormatResult(msgspec.Struct, frozen=True, kw_only=True):
    """`value` is None when no format fits. `trials` are in the order of the search, the widest first."""

    key: str
    value: str | None
    answer: Answer | None
    trials: tuple[FormatTrial, ...]


def fit_format(job: Job, estimate: Callable[[Job], Answer] | None = None) -> FormatResult:
    """The widest format that fits. Raises BadInput for a training job, a job without a GPU, and when every format is refused."""
    if job.serve is None:
        raise BadInput("--grow", "weights is a setting of serving jobs; for training try --grow micro_batch, or another train.quantization.format")
    if job.hardware is None or job.hardware.gpu is None:
        raise BadInput("hardware.gpu", "is needed to say what fits; name a GPU")
    asked = estimate or _estimator()
    trials: list[FormatTrial] = []
    for word in BY_ENGINE.get(job.serve.engine or "transformers", PACKED):
        trial, answer = _try(job, word, asked)
        trials.append(trial)
        if trial.fits:
            return FormatResult(key="serve.weights", value=word, answer=answer, trials=tuple(trials))
    if all(trial.refused for trial in trials):
        raise BadInput("serve.weights", f"every format is refused; {trials[0].format}: {trials[0].refused}")
    return FormatResult(key="serve.weights", value=None, answer=None, trials=tuple(trials))


def _estimator() -> Callable[[Job], Answer]:
    from everybyte.estimator import estimate

    return estimate


def _try(job: Job, word: str, estimate: Callable[[Job], Answer]) -> tuple[FormatTrial, Answer | None]:
    raw = job_to_dict(job)
    raw["serve"]["weights"] = {"format": word}
    try:
        answer = estimate(read_job(raw))
    except BadInput as refused:
        return FormatTrial(format=word, fits=False, refused=str(refused)), None
    weights = answer.size("weights")
    if answer.fits:
        return FormatTrial(format=word, fits=True, weights=weights), answer
    short = -answer.headroom if answer.headroom is not None else None
    reason = answer.warnings[0] if answer.warnings and short is not None and short <= 0 else None
    return FormatTrial(format=word, fits=False, weights=weights, short_by=short, reason=reason), None
