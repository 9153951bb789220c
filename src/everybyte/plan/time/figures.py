"""Figures of speed for a job: its time ledger, what follows from it, and the intervals that measured runs give."""

from __future__ import annotations

from functools import cache

import msgspec

from everybyte.basics.record import Record
from everybyte.catalog.gpus import find_gpu
from everybyte.catalog.names import read_table
from everybyte.catalog.speed_cards import GB, TERA, SpeedCard, speed_card
from everybyte.job import CustomGpu, Job, read_job
from everybyte.job.pattern import model_of
from everybyte.layers.network import Network
from everybyte.ledger.answer import Answer
from everybyte.ledger.time import TimeLedger
from everybyte.models.source import network_of
from everybyte.plan.time.serving.load import FILLED, MOST_AT_ONCE, ServingTime, serving_time
from everybyte.plan.time.serving.setting import ServeSetting, serve_setting
from everybyte.plan.time.shape import NetworkShape, shape_of
from everybyte.plan.time.training.setting import train_setting
from everybyte.plan.time.training.step import training_step

RANGES = "speed_ranges.csv"
MODEL_FLOPS = "model FLOPs: 6 a weight that a token meets (4 under an adapter), causal attention counted once; mfu of the dense 16-bit peak"


class Speed(Record, frozen=True):
    """`ledger` is of one training step, or of one decode step; `prompt` of one prompt. `basis` says under which load, by which definition."""

    figures: tuple[tuple[str, float], ...]
    ranges: tuple[tuple[str, tuple[float, float]], ...]
    ledger: TimeLedger
    prompt: TimeLedger | None
    basis: str
    card: str


def speed_of(job: Job, network: Network, cache_tokens: int | None = None) -> Speed | str:
    """The speed of a job whose settings are filled in, or in words why there is none: no card is named, its rates are not known, the model is no language
    model, the job runs in fp32 or on the CPU."""
    if job.hardware is None or job.hardware.gpu is None or job.hardware.gpus == 0:
        return "no hardware.gpu is named"
    card, shape = card_of(job), shape_of(network)
    if card is None:
        return "the rates of this GPU are not known"
    if shape is None:
        return "only for language models"
    if job.train is not None:
        return _training(job, shape, card)
    return _serving(job, network, shape, card, cache_tokens)


def card_of(job: Job) -> SpeedCard | None:
    """The clock of the job's card, with the rates that the user measured in place of the catalogue's."""
    hardware = job.hardware
    if hardware is None or hardware.gpu is None or hardware.gpus == 0:
        return None
    card = speed_card((hardware.gpu.name or "") if isinstance(hardware.gpu, CustomGpu) else hardware.gpu)
    if card is None or hardware.measured is None:
        return card
    own = hardware.measured
    if own.matmul_tflops:
        gain = own.matmul_tflops * TERA / card.rate("bf16")
        card = card._replace(reached={form: share * gain for form, share in card.reached.items()})
    if own.hbm_gb_s:
        card = card._replace(memory=own.hbm_gb_s * GB / card.memory_share)
    if own.allreduce_gb_s:
        card = card._replace(link=own.allreduce_gb_s * GB)
    return card


def _training(job: Job, shape: NetworkShape, card: SpeedCard) -> Speed | str:
    if job.train is not None and job.train.precision == "fp32":
        return "not for train.precision fp32"
    s = train_setting(job, shape, card)
    ledger = training_step(shape, s, card)
    tokens = s.tokens_per_step / s.gpus / ledger.seconds
    flops = tokens * shape.training_flops(s.length, is_frozen=s.lora)
    figures = {
        "step.time_s": ledger.seconds,
        "tokens_per_s_per_gpu": tokens,
        "tflops_per_gpu": flops / TERA,
        "mfu": flops / card.products["bf16"],
    }
    return _speed(
        figures,
        _training_kind(shape),
        ledger,
        None,
        "model FLOPs: 6 a weight that a token meets (4 under an adapter), causal attention counted once; mfu of the dense 16-bit peak",
        card,
    )


def _serving(job: Job, network: Network, shape: NetworkShape, card: SpeedCard, cache_tokens: int | None) -> Speed | str:
    if job.serve is None or (job.serve.gpu_layers is not None and 0 <= job.serve.gpu_layers < shape.count):
        return "not with layers on the CPU"
    s = serve_setting(job, network, _power_limit(job))
    found = serving_time(shape, s, card, cache_tokens)
    together = found if s.load.stated else _full(shape, s, card, job.serve.sequences, cache_tokens)
    figures = {"decode.tokens_per_s": found.tokens_per_s}
    if together.sequences > 1:
        figures["decode.batch_tokens_per_s"] = together.batch_tokens_per_s
    figures |= {"prefill.tokens_per_s": s.load.prompt / found.prompt.seconds, "ttft_s": found.first_token}
    basis = said_load(s) if s.load.stated else f"{said_load(s)} (serve.load states another)"
    if s.load.rate:
        basis = f"{s.load.rate:g} requests a second, {found.sequences:,} at a time, prompt {s.load.prompt:,}, output {s.load.output:,} tokens"
        basis += "" if found.keeps_up else "; more than this server keeps up with"
    if together is not found and together.sequences > 1:
        basis += f"; all together: {together.sequences:,} such requests"
    return _speed(figures, _kind(s, shape), found.step, found.prompt, basis, card)


def _full(shape: NetworkShape, s: ServeSetting, card: SpeedCard, sequences: int | None, cache_tokens: int | None) -> ServingTime:
    """As many requests at a time as the engine takes and its cache holds."""
    room = int((cache_tokens or 0) * s.dp / (s.load.prompt + FILLED * s.load.output))
    at_once = max(1, min(sequences or MOST_AT_ONCE, room))
    return serving_time(shape, msgspec.structs.replace(s, load=msgspec.structs.replace(s.load, concurrency=at_once)), card)


def _kind(s: ServeSetting, shape: NetworkShape) -> str:
    return f"serve {'moe' if shape.expert_parameters else 'dense'} {'load' if s.load.concurrency > 1 or s.load.is_saturated else 'alone'}"


def said_load(s: ServeSetting) -> str:
    """`1 request at a time, prompt 512, output 128 tokens`."""
    load = s.load
    many = "as many requests as the cache holds" if load.is_saturated else f"{load.concurrency:,} request{'s' if load.concurrency > 1 else ''} at a time"
    return f"{many}, prompt {load.prompt:,}, output {load.output:,} tokens"


def _power_limit(job: Job) -> float | None:
    gpu = job.hardware.gpu if job.hardware else None
    return find_gpu(gpu).tdp_w if isinstance(gpu, str) else None


def _speed(figures: dict[str, float], kind: str, ledger: TimeLedger, prompt: TimeLedger | None, basis: str, card: SpeedCard) -> Speed:
    ranges = {}
    for name, value in figures.items():
        spread = _ranges().get((_measured_as(name), kind)) or _ranges().get((_measured_as(name), kind.split(maxsplit=1)[0]))
        if spread is not None:
            low, high = spread
            is_time = name in ("step.time_s", "ttft_s")
            ends = (value * low, value * high) if is_time else (value / high, value / low)
            ranges[name] = (min(ends), max(ends))
    return Speed(tuple(figures.items()), tuple(ranges.items()), ledger, prompt, basis, card.name)


def _measured_as(figure: str) -> str:
    """All figures of a training step come from its time."""
    if figure == "decode.batch_tokens_per_s":
        return "decode.tokens_per_s"
    return "step.time_s" if figure in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu") else figure


def step_interval(shape: NetworkShape) -> tuple[float, float]:
    """Measured over predicted time of a training step, between which 9 of 10 measured rows of the kind lie."""
    return _ranges()["step.time_s", _training_kind(shape)]


def _training_kind(shape: NetworkShape) -> str:
    return f"train {'moe' if shape.expert_parameters else 'dense'}"


@cache
def _ranges() -> dict[tuple[str, str], tuple[float, float]]:
    """Figure and kind -> measured over predicted time, between which 9 of 10 measured runs lie."""
    return {(row[0], row[1]): (float(row[2]), float(row[3])) for row in read_table(RANGES)[1:]}


def timed(answer: Answer) -> Answer:
    """The answer with the figures of speed, their intervals and the ledger of time, where the job's card and model have a clock."""
    if answer.is_refused:
        return answer
    job = read_job(answer.job)
    speed = speed_of(job, network_of(model_of(job), "model"), answer.size("kv.tokens"))
    if isinstance(speed, str):
        why = (f"no figures of speed: {speed}",) if answer.hardware is not None else ()
        return msgspec.structs.replace(answer, assumptions=(*answer.assumptions, *why))
    return msgspec.structs.replace(
        answer,
        figures={**answer.figures, **dict(speed.figures)},
        range={**answer.range, **dict(speed.ranges)},
        time=speed.ledger.terms,
        assumptions=(*answer.assumptions, f"speed on {speed.card}: {speed.basis}"),
    )
