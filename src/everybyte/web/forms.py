"""The forms of the API: what a request holds and what an answer looks like. The answer's own types are those of the contract."""

# No `from __future__ import annotations`, as in job/form.py: msgspec reads every annotation of this file.

from typing import Annotated, Any, Literal

import msgspec

from everybyte.job.described import Described
from everybyte.ledger.answer import HardwareFacts, ModelFacts, RankAnswer
from everybyte.ledger.entry import Basis, Category, Phase
from everybyte.ledger.verdict import Verdict as Word
from everybyte.measure.accuracy import Comparison, Summary
from everybyte.plan.fit import Stop
from everybyte.plan.hardware.survey import Order
from everybyte.plan.search import Objective

RawJob = dict[str, Any]
"""A job in the contract's form; it is read by the reader of job files, which knows the shorthand and names the place of each fault."""
Figures = dict[str, int | float]
"""Figures by name; kv.concurrency alone is no whole number."""
Spec = dict[str, Any]
"""A picture as a Vega-Lite specification with its data inside."""
Language = Literal["en", "zh"]
Picture = Literal["card", "phases", "ranks", "places"]
PICTURES: tuple[Picture, ...] = ("card", "phases", "ranks", "places")


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request holds. Keys that are not in the form are refused."""


class ExplainAsked(Asked, frozen=True, kw_only=True):
    """Which rows of a ledger to explain."""

    job: RawJob
    entry: str | None = None
    """The id of a row, the beginning of several, a category, or the key of a setting; without it the whole ledger."""
    rank: str | None = None
    """A kind of rank by its label; without it the one that needs most."""


class FitAsked(Asked, frozen=True, kw_only=True):
    """Which setting to grow."""

    job: RawJob
    grow: str
    """A whole-number setting, with a leading minus the smallest value that fits; or weights, or memory_fraction."""


class CompareAsked(Asked, frozen=True, kw_only=True):
    """Two jobs to hold against each other."""

    job: RawJob
    against: RawJob


class ChartsAsked(Asked, frozen=True, kw_only=True):
    """Which pictures of a job to draw."""

    job: RawJob
    pictures: tuple[Picture, ...] | None = None
    """Without it all that apply."""
    rank: str | None = None
    theme: Literal["light", "dark"] = "light"
    lang: Language = "en"
    knob: str | None = None
    """A whole-number setting: also the picture of memory against it."""


class MeasuredAsked(Asked, frozen=True, kw_only=True):
    """Of which job's kind the measured runs are wanted."""

    job: RawJob
    theme: Literal["light", "dark"] = "light"
    lang: Language = "en"


class ReportAsked(Asked, frozen=True, kw_only=True):
    """The job of a report."""

    job: RawJob
    lang: Language = "en"


class JobAsked(Asked, frozen=True, kw_only=True):
    """The job to write as a file."""

    job: RawJob
    format: Literal["yaml", "json"] = "yaml"


class DroppedFile(Asked, frozen=True, kw_only=True):
    """A file, or its first bytes."""

    name: str
    base64: str
    """The file's bytes; of weights the first ones do, since only their header is read."""
    size: Annotated[int, msgspec.Meta(ge=0, le=2**60)] | None = None
    """Bytes of the whole file; without it what is given is the whole."""


class ReadAsked(Asked, frozen=True, kw_only=True):
    """Files that somebody dropped on the page."""

    files: Annotated[tuple[DroppedFile, ...], msgspec.Meta(min_length=1, max_length=64)]


class PlanAsked(Asked, frozen=True, kw_only=True):
    """For which cluster layouts of a training job are wanted."""

    job: RawJob
    gpus: Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=2**20)], ...], msgspec.Meta(min_length=1, max_length=4)] | None = None
    """Numbers of GPUs; without it the job's."""
    objective: Objective = "time"
    fix: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=100)], ...], msgspec.Meta(max_length=16)] = ()
    """What must stay, each as KEY=VALUE."""
    global_batch: Annotated[int, msgspec.Meta(ge=1, le=2**40)] | None = None
    top: Annotated[int, msgspec.Meta(ge=1, le=50)] = 10
    risk: bool = False
    price: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """USD of one GPU and hour; without it the lowest of the catalogue."""


class HardwareAsked(Asked, frozen=True, kw_only=True):
    """For which job GPUs and instances are wanted."""

    job: RawJob
    only: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=100)], ...], msgspec.Meta(max_length=16)] = ()
    """Words of which one must be in name, vendor or segment."""
    provider: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=100)], ...], msgspec.Meta(max_length=16)] = ()
    by: Order = "price"
    most: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1024
    run_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**60)] | None = None
    """Tokens of the whole run."""


class ExportAsked(Asked, frozen=True, kw_only=True):
    """The job to write in the words of a framework or an engine."""

    job: RawJob
    to: str


class LogAsked(Asked, frozen=True, kw_only=True):
    """A dropped log, whole."""

    file: DroppedFile
    job: RawJob | None = None
    """The job that ran."""


class SnapshotAsked(Asked, frozen=True, kw_only=True):
    """A dropped memory snapshot, whole."""

    file: DroppedFile


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong and where. `needs`: so many first bytes of the file `path` are needed to read its header."""

    path: str
    message: str
    needs: int | None = None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that cannot be answered."""

    name: str
    error: Fault


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Ranked layouts, each with its job, and the Pareto front of time, memory and cost."""

    objective: Objective
    plans: tuple[dict[str, Any], ...]
    front: tuple[dict[str, Any], ...]
    neighbours: tuple[tuple[dict[str, Any], ...], ...]
    deciding: str | None
    rejected: tuple[dict[str, Any], ...]
    prices: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


class HardwareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that hold a job, with the settings that it takes there and what they cost to rent."""

    fits: bool
    prices: str
    rows: tuple[dict[str, Any], ...]
    too_small: tuple[str, ...]
    refused: dict[str, tuple[str, ...]]
    not_supported: dict[str, int]
    most: int
    break_even: dict[str, Any] | None


class ExportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Files by name, and each setting that the target has no word for, with the reason."""

    to: str
    files: dict[str, str]
    left_out: dict[str, str]


class DoctorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job ran out of memory, as `everybyte doctor --json` prints it, and the same as lines of text."""

    diagnosis: dict[str, Any]
    lines: tuple[str, ...]


class SnapshotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes of a memory snapshot are, device by device, as `everybyte snapshot --json` prints it."""

    schema: int
    devices: tuple[dict[str, Any], ...]


class LogFiguresAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that a log states, and what is predicted for the job under the same names."""

    schema: int
    engine: str | None
    version: str | None
    measured: tuple[dict[str, Any], ...]
    given: dict[str, Any]
    predicted: Figures | None


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first keys of every answer."""

    everybyte: str
    schema: int
    name: str


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A value and where it comes from."""

    key: str
    value: Any
    origin: str


class JobAnswer(Head, frozen=True, kw_only=True):
    """The answer to a job (contract, section 3)."""

    job: RawJob
    settings: tuple[SettingRow, ...]
    model: ModelFacts
    hardware: HardwareFacts | None
    fits: bool | None
    verdict: Word | None
    chance: float | None
    headroom: int | None
    figures: Figures
    range: dict[str, tuple[float, float]]
    ranks: tuple[RankAnswer, ...]
    host: dict[str, int]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    caveats: tuple[str, ...]
    advice: tuple[dict[str, Any], ...]


class ExplainedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the ledger with the numbers put into its formula, and both as TeX."""

    id: str
    category: Category
    bytes: int
    phases: tuple[Phase, ...]
    formula: str
    symbols: dict[str, int]
    source: str
    basis: Basis
    low: int | None
    high: int | None
    numbers: str
    tex: str
    tex_numbers: str


class ExplainAnswer(Head, frozen=True, kw_only=True, omit_defaults=True):
    """Rows of a ledger, or one setting with its origin."""

    rank: str | None = None
    peak_phase: Phase | None = None
    rows: tuple[ExplainedRow, ...] | None = None
    setting: SettingRow | None = None


class FitAnswer(Head, frozen=True, kw_only=True, omit_defaults=True):
    """The largest or smallest value that fits (`value`, `stop`), the widest format (`value`, `trials`), or the shares that work (`intervals`)."""

    key: str
    fits: bool
    tried: int
    smallest: bool = False
    value: int | str | None = None
    unlimited: bool = False
    advice: tuple[dict[str, Any], ...] = ()
    limit: str = ""
    is_complete: bool = True
    headroom: int | None = None
    figures: Figures | None = None
    stop: Stop | None = None
    holes: tuple[int, ...] = ()
    trials: tuple[dict[str, Any], ...] = ()
    intervals: tuple[dict[str, Any], ...] = ()
    below: str | None = None
    above: str | None = None


class RankAtPeak(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of rank at its peak."""

    rank: str
    peak_phase: Phase
    allocated: int


class DifferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one place in two jobs; `more` is how much more the first holds."""

    category: Category
    place: str
    here: int
    there: int
    more: int


class ChangedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is not the same in both jobs; None where a job has no such setting."""

    key: str
    here: Any
    there: Any


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer comes to."""

    name: str
    model: ModelFacts
    hardware: HardwareFacts | None
    fits: bool | None
    verdict: Word | None
    chance: float | None
    headroom: int | None
    figures: Figures
    range: dict[str, tuple[float, float]]
    warnings: tuple[str, ...]


class CompareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the ranks that need most of two jobs, each at its peak, and the verdicts on both."""

    everybyte: str
    schema: int
    rank: RankAtPeak
    against: RankAtPeak
    differences: tuple[DifferenceRow, ...]
    settings: tuple[ChangedSetting, ...]
    verdicts: tuple[Verdict, Verdict]


class ChartsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures by name; `knob` among them where one was asked for."""

    pictures: dict[str, Spec]


class TextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A text."""

    text: str


class ReadAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What dropped files say: a model with the settings that go with it, or a whole job."""

    name: str
    notes: tuple[str, ...]
    model: dict[str, Any] | None = None
    train: dict[str, Any] | None = None
    serve: dict[str, Any] | None = None
    job: RawJob | None = None


class ModelShown(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the catalogue; None where no source states a value."""

    name: str
    params: int | None
    layers: int | None
    hidden: int | None
    context: int | None
    file: str
    model_type: str
    architecture: str
    params_published: int | None
    params_meta: int | None
    match: str
    active_params_meta: int | None
    params_untied: int | None
    embedding_params: int | None
    tied: bool | None
    verified_with: str
    config_origin: str
    config_source: str
    params_source: str
    note: str


class ModelsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Models of the catalogue; `found` counts those beyond the limit too."""

    models: tuple[ModelShown, ...]
    found: int


class GpusAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of the catalogue, as `everybyte gpus --json` prints them."""

    gpus: tuple[dict[str, Any], ...]


class FormulaShown(msgspec.Struct, frozen=True, kw_only=True):
    """A published equation."""

    name: str
    chapter: str
    letters: dict[str, str]
    text: str
    summary: str
    wrong_when: str
    unit: str
    source: str
    tex: str


class FormulasAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Equations of the formula book."""

    formulas: tuple[FormulaShown, ...]


class TruthAnswer(Head, frozen=True, kw_only=True):
    """Predicted against measured, by group and figure, and all together."""

    groups: tuple[Summary, ...]
    all: Summary
    fresh: Summary | None
    """Of sources that no rule was read off."""
    textbook: tuple[Summary, ...] | None
    comparisons: tuple[Comparison, ...]


class MeasuredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The measured runs of a job's kind: how many, their errors by group and figure, and predicted against measured as a picture."""

    runs: int
    groups: list[Summary]
    picture: Spec


class SettingsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a job."""

    settings: tuple[Described, ...]


class FigureWords(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure counts."""

    meaning: str
    unit: Literal["bytes", "count", "time", "rate", "share", "TFLOP/s"]
    """What it is counted in; rates are a second, shares of 1."""


class CategoryWords(msgspec.Struct, frozen=True, kw_only=True):
    """How a category of the ledger is called, and its colour on a light and on a dark page."""

    label: str
    light: str
    dark: str


class WordsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How things of an answer are called, so that a page says the same as the command line and the pictures."""

    figures: dict[str, FigureWords]
    engines: dict[str, dict[str, str]]
    """Other meanings of figures where an engine does not run on torch."""
    categories: dict[Category, CategoryWords]
    bases: dict[Basis, str]
    exports: tuple[str, ...]
    """Frameworks and engines in whose words a job can be written."""


class MessagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the page says, in another language: English text, or a template with holes {0}, {1} ..., to its translation."""

    messages: dict[str, str]


class HealthAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the server: `ok` while it takes requests."""

    status: Literal["ok", "busy"]
    everybyte: str
    workers: int
    waiting: int
