"""What a job says about its pipeline: the schedule, chunks of a rank, micro-batches; and what each schedule demands of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from everybyte.basics.errors import BadInput
from everybyte.basics.origin import USER, inferred
from everybyte.basics.record import Record
from everybyte.job import Train
from everybyte.job.extra import Section, section
from everybyte.job.form import Count, Pipeline
from everybyte.job.words import Schedule
from everybyte.rules.accounting.conventions import PLAIN, Conventions
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

PATH = "train.pipeline"
GROUP = "microbatch-group-size-per-virtual-pipeline-stage"
"""The key of train.extra, as Megatron-LM's command line has it."""
FOLDED: tuple[Schedule, ...] = ("zb-v", "dualpipe-v")
"""Schedules whose layers go down the ranks and come back: rank i holds stages i and 2p-1-i."""
SINGLE: tuple[Schedule, ...] = ("gpipe", "1f1b", "zb-h2", "dualpipe")
"""Schedules whose ranks have one chunk of the layers; DualPipe's hold a second stage for the opposite direction."""


MOST_LETTERS = 100_000
"""Of a layout text written out."""


class ScheduleKeys(Section, frozen=True, kw_only=True):
    """Keys of train.extra that say more about the schedule."""

    microbatch_group_size_per_virtual_pipeline_stage: Count | None = None
    """Micro-batches that a chunk runs in a row before the next chunk does (Megatron-LM)."""


class Plan(Record, frozen=True):
    """A pipeline of `pp` ranks with `virtual` chunks each, through which `microbatches` go every step."""

    schedule: Schedule
    pp: int
    virtual: int
    microbatches: int
    group: int
    """Micro-batches that a chunk runs in a row before the next chunk does; without a meaning where ranks have one chunk."""

    @property
    def passes(self) -> int:
        """Forward passes of a rank in a step: each micro-batch through each chunk."""
        return self.microbatches * self.virtual

    @property
    def chunks(self) -> int:
        """Stages whose weights a rank holds."""
        return 2 if self.schedule == "dualpipe" else self.virtual


def plan_of(train: Train, pp: int, choices: ResolvedSettings, conventions: Conventions = PLAIN) -> Plan:
    """The plan of a job with `pp` > 1 stages, its derived settings recorded. Raises BadInput for what the schedule cannot run."""
    given, plan = train.pipeline or Pipeline(), planned(train, pp, conventions)
    reasons = {
        "schedule": "several chunks per rank are interleaved" if plan.schedule == "interleaved" else "the usual schedule with one chunk per rank",
        "virtual": "chunks of the layout" if isinstance(given.layers, str) else f"the fewest chunks of {plan.schedule}",
        "microbatches": "as many as train.grad_accum" if train.grad_accum else "as many as stages, the fewest that reach all of them",
    }
    for key, reason in reasons.items():
        stated = getattr(given, key)
        if stated is not None or key != "virtual" or plan.virtual > 1:
            choices.note(f"{PATH}.{key}", getattr(plan, key), USER if stated is not None else inferred(reason))
    return plan


def planned(train: Train, pp: int, conventions: Conventions = PLAIN) -> Plan:
    """The plan of a job with `pp` > 1 stages. Raises BadInput for what the schedule cannot run."""
    return _planned(train.pipeline or Pipeline(), pp, train.grad_accum, _group_of(train), conventions.torch_pipelines)


def _group_of(train: Train) -> int | None:
    """Megatron-LM's group size, if the job states it."""
    return section(train.extra, ScheduleKeys).microbatch_group_size_per_virtual_pipeline_stage


@lru_cache(maxsize=4096)
def _planned(given: Pipeline, pp: int, grad_accum: int | None, group: int | None, is_torch: bool) -> Plan:
    pieces = _chunks_of_text(given.layers, pp)
    schedule: Schedule = given.schedule or ("interleaved" if (given.virtual or pieces or 1) > 1 else "1f1b")
    virtual = given.virtual or pieces or (2 if schedule in ("interleaved", *FOLDED) else 1)
    if pieces is not None and pieces != virtual:
        raise BadInput(f"{PATH}.layers", f"has {pieces} chunks for each of {pp} stages, but virtual is {virtual}")
    microbatches = given.microbatches or grad_accum or pp
    if is_torch:
        group = microbatches // max(microbatches // pp, 1)
    plan = Plan(schedule, pp, virtual, microbatches, group or pp)
    for fault in (*_faults(plan), *(_torch_faults(plan) if is_torch else _megatron_faults(plan))):
        raise fault
    return plan


def _chunks_of_text(layers: tuple[int, ...] | str | None, pp: int) -> int | None:
    """Chunks of a rank in a layout text; None where there is no text. Raises BadInput for a text that pp ranks cannot share."""
    if not isinstance(layers, str):
        return None
    pieces = len(unrolled(layers).split("|"))
    if pieces % pp:
        raise BadInput(f"{PATH}.layers", f"{layers!r} has {pieces} pieces between its bars, which {pp} stages cannot share equally")
    return pieces // pp


def _faults(plan: Plan) -> Iterator[BadInput]:
    schedule, pp, virtual, microbatches = plan.schedule, plan.pp, plan.virtual, plan.microbatches
    few = f"{PATH}.microbatches"
    if schedule in SINGLE and virtual > 1:
        other = "zb-v" if schedule.startswith("zb") else "dualpipe-v" if schedule == "dualpipe" else "interleaved"
        yield BadInput(f"{PATH}.virtual", f"{virtual} chunks per rank do not go with {schedule}, which has one; {other} has several")
    if schedule in FOLDED and virtual != 2:
        yield BadInput(f"{PATH}.virtual", f"must be 2 with {schedule}, not {virtual}: the layers go down the ranks and back")
    if schedule == "dualpipe" and pp % 2:
        yield BadInput("train.mesh.pp", f"must be even with dualpipe, not {pp}: each rank pairs its stage with that of the opposite rank")
    if schedule == "dualpipe" and microbatches % 2:
        yield BadInput(few, f"must be even with dualpipe, not {microbatches}: half of them go in each direction")
    if schedule.startswith("dualpipe") and microbatches < 2 * pp:
        yield BadInput(few, f"must be at least 2·pp = {2 * pp} with {schedule}, not {microbatches}")
    if schedule == "interleaved" and virtual < 2:
        yield BadInput(f"{PATH}.virtual", "must be at least 2 with interleaved; 1f1b has one chunk per rank")


def _megatron_faults(plan: Plan) -> Iterator[BadInput]:
    """Megatron-LM schedules.py forward_backward_pipelining_with_interleaving."""
    if plan.virtual == 1 or plan.schedule in FOLDED:
        return
    pp, microbatches, group = plan.pp, plan.microbatches, plan.group
    if microbatches < pp:
        yield BadInput(f"{PATH}.microbatches", f"must be at least pp = {pp} with {plan.schedule}, not {microbatches}")
    elif not pp <= group <= microbatches:
        yield BadInput(f"train.extra.{GROUP}", f"must lie between pp = {pp} and the {microbatches} micro-batches, not {group}")
    elif 0 < microbatches % group < pp:
        what = f"a multiple of pp = {pp}" if group == pp else f"a multiple of the group size {group}, or leave at least pp = {pp} over"
        yield BadInput(f"{PATH}.microbatches", f"must be {what} with {plan.schedule}, not {microbatches}")


def _torch_faults(plan: Plan) -> Iterator[BadInput]:
    """torch.distributed.pipelining schedules.py: rounds of at least pp micro-batches, all of one length."""
    pp, microbatches, rounds = plan.pp, plan.microbatches, max(plan.microbatches // plan.pp, 1)
    if plan.schedule == "1f1b" and microbatches < pp:
        yield BadInput(f"{PATH}.microbatches", f"must be at least pp = {pp} with 1f1b, not {microbatches}")
    if plan.virtual > 1 and plan.schedule not in FOLDED and microbatches % rounds:
        yield BadInput(
            f"{PATH}.microbatches", f"must be a multiple of the {rounds} rounds that {pp} stages make of them with {plan.schedule}, not {microbatches}"
        )


@lru_cache(maxsize=1024)
def unrolled(layout: str) -> str:
    """A layout text with its repetitions written out: `Et*3|(t|)*2L` -> `Ettt|t|t|L`. Raises BadInput for a text that cannot be read.

    Source: Megatron-LM core/transformer/pipeline_parallel_layer_layout.py parse_str_to_list: brackets do not nest, commas are ornament.
    """
    text = layout.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]+)\)\*(\d{1,5})", r"(.)\*(\d{1,5})"):
        if len(text) + sum(len(part) * int(count) for part, count in re.findall(pattern, text)) > MOST_LETTERS:
            raise BadInput(f"{PATH}.layers", f"is longer than {MOST_LETTERS:,} letters when written out")
        text = re.sub(pattern, lambda found: found.group(1) * int(found.group(2)), text)
    wrong = next((letter for letter in text if letter not in "EtmL|"), None)
    if wrong is not None:
        raise BadInput(
            f"{PATH}.layers", f"has {wrong!r} at a place where a layout has E (embedding), t (layer), m (multi-token prediction), L (loss), | or (...)*n"
        )
    return text
