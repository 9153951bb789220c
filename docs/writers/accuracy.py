"""The page of predicted against measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everybyte.catalog.ranges import known
from everybyte.measure.accuracy import Comparison, Summary, summarise, summary_of
from writers.calibrated import HEAD as CALIBRATED
from writers.calibrated import fitted
from writers.markdown import HIDE_PAGES, NOTE, table
from writers.measured import Measured
from writers.refusals import unanswered

TITLES = ("answered", "median", "p90", "bias", "in range", "width")
WEAK_MEDIAN, WEAK_P90, FEWEST = 0.05, 0.25, 5
"""A figure is called weak from one of these errors on, if it has been measured often enough."""

WHY = {
    "peak.device": "It holds what PyTorch does not know of: the context of a driver that nobody measured, NCCL's channels by the wiring of the machine, and "
    "other processes that were on the GPU. Sources also read `nvidia-smi` at different moments.",
    "peak.reserved": "It follows from the order of allocations of the whole program. Uneven batches, mixtures of experts and compiled graphs "
    "have an order that the job does not say.",
    "cuda_graphs": "Nearly all of it is memory of the driver, learnt from logs by kind of capture; releases and backends record different numbers of parts.",
    "non_torch": "The difference of two readings of the whole GPU, so that everything else on it counts.",
    "activation_peak": "The profiling run of a release that the log does not name, or with limits (`max_num_seqs`, images) that it does not state.",
    "kv.pool": "What is left on the GPU: it takes up every error of weights, activations and graphs. "
    "With the figures of a log put into `given`, what follows is exact.",
    "kv.tokens": "As the pool. Hybrid networks divide it into pages whose size depends on the release.",
    "kv.blocks": "As the pool.",
    "kv.concurrency": "As the pool, divided by the pages of a sequence; hybrids most.",
    "compute_buffer": "Labels of some logs are doubtful, and backends other than CUDA place other operations.",
    "file_bytes": "Files that were quantised by another program, with other types for some tensors.",
    "weights": "Checkpoints in which some tensors stay wider than the format's name says.",
    "peak.allocated": "Compiled and fused kernels keep other tensors than their plain forms.",
    "host.bytes": "Few runs print it.",
}
"""Why a figure is weak; a test of the page fails when a weak figure has no reason here."""

HEAD = """\
Predicted against measured, over public runs that ship with the package, each with its source: {records:,} runs, {figures:,} measured figures, of
which {answered:,} are answered. Half of them are met within **{median}**, nine of ten within **{p90}**; **{inside}** lie in the range that the answer
states. `everybyte truth` prints the same; `--recompute` estimates every run anew, `--worst 20` names the largest errors.

An error is (predicted − measured) / measured, less the half step by which the printed figure was rounded. Bias is its mean. Width is that of the stated
range, as a share of the predicted value, in the median.

**How far that carries.** Most of these runs were there while the rules were written, and some constants are fitted to them (their rows say `calibrated`), so
a run from a source that nobody has looked at is met less well. When 116 runs from new sources were first answered, 76 % had an answer; allocated memory had
a median error of 0.7 % and a 90th percentile of 13 %, and the range of that time held 65 % of the measured values instead of 90 %. Since then ranges are
learnt with whole sources left out: see [below](#how-the-ranges-are-learnt)."""

LEVELS = (("A", "A: every setting"), ("B", "B: all but one or a few, which are best guesses"))
LEVELS_HEAD = """\
### By what is known of a run

"""

FRESH = """\
## Sources that no rule was read off

Runs that came after the rules, and of which none was looked at to find one. They say more about your run than the rest of this page, and they are few."""

RANGES = """\
## How the ranges are learnt

An answer says in which interval nine of ten measured values lie. `python -m everybyte.measure.learn` learns it for each figure from the errors above.
An error is measured against what it can come from: a share of the figure, a fixed amount (the context of a driver weighs more in a small job), and for a
cache the weights and the activations that are subtracted before it. Rows of one source share their machine, their script and often their faults, so a
source counts as the square root of its rows; those of the job's own engine, on as many GPUs, with offloading or without as the job, count most. The
interval is the shortest that holds as much as it must to hold nine of ten values *when it is learnt without the source that they come from*:"""

RANGES_END = """\
"Left out" is the share of measured values that lie in an interval that was learnt without their source, of all rows and as the mean over sources. Where it
is below 90 %, too few sources measure the figure to make its range wide enough. More in [ranges and truth](concepts/ranges-and-truth.md)."""

NOT_MODELLED = """\
## What is not modelled

A job with something that is not modelled is refused by name, never estimated by its neighbour. These are the reasons why measured figures stay
unanswered; the whole list of what the code refuses is [in the reference](reference/refusals.md)."""

ADD = """\
## Add a measured run

A run whose figures lie outside the range is worth more than ten inside. A record is one line of JSON in `src/everybyte/measure/data/`: the job, what
was measured, and where it can be read.

```json
{"id": "example/llama-8b-lora", "source": "https://example.org/log", "date": "2026-10-01", "group": "example",
 "job": {"model": "meta-llama/Meta-Llama-3.1-8B", "hardware": {"gpu": "rtx-4090"}, "train": {"framework": "trl", "micro_batch": 1, "seq_len": 2048}},
 "measured": [{"figure": "peak.allocated", "value": 20476590489, "unit": "B", "resolution": 10737418}], "completeness": "A"}
```

Say which of [the three figures](concepts/allocated-reserved-device.md) it is, and how the source rounded it. `completeness` is A if every setting is
known, B if one is a best guess that the note names. `tests/gpu/measure.py` makes such lines on one GPU. The form is in [the
contract](reference/contract.md#4-truth-records), the way in CONTRIBUTING.md in the root of the repository."""


def accuracy_page(measured: Measured) -> str:
    """Pictures, tables by figure and by group, what is weak, what is not modelled, how ranges are learnt."""
    rows = measured.comparisons
    training = [row for row in rows if row.group not in measured.serving]
    serving = [row for row in rows if row.group in measured.serving]
    parts = [f"{HIDE_PAGES}\n\n# Accuracy\n\n{NOTE}", head(measured), picture("training", "of training"), picture("serving", "of serving")]
    parts += ["## By figure", by_figure("Training", training), by_figure("Serving", serving), by_completeness(rows), weak(training, serving)]
    parts += [FRESH, *(by_figure(f"{part}, fresh", [row for row in found if row.fresh]) for part, found in (("Training", training), ("Serving", serving)))]
    parts += [
        "## By group",
        "A group is one source: its runs share machine, script and often their faults.",
        by_group("Training", training),
        by_group("Serving", serving),
    ]
    parts += [CALIBRATED, fitted(measured.calibrated, rows)]
    parts += [NOT_MODELLED, table(("figures", "reason"), unanswered(rows), "rl"), RANGES, left_out(), RANGES_END, ADD]
    return "\n\n".join(parts) + "\n"


def head(measured: Measured) -> str:
    """The sum of all in three sentences."""
    whole = summary_of("all", "", measured.comparisons)
    return HEAD.format(
        records=measured.records, figures=whole.asked, answered=whole.answered, median=percent(whole.median), p90=percent(whole.p90), inside=share(whole.inside)
    )


def picture(name: str, of: str) -> str:
    """Picture (f) of a part of the runs."""
    return f"![Predicted against measured figures {of}: a point for each, on the diagonal where they agree](pictures/accuracy-{name}.svg)"


def by_completeness(rows: Sequence[Comparison]) -> str:
    """A table of the runs of which every setting is known, and of those of which one is a best guess."""
    lines = [(words, *numbers(summary_of(level, "", [row for row in rows if row.completeness == level]))) for level, words in LEVELS]
    return LEVELS_HEAD + table(("what is known of a run", *TITLES), lines, "lrrrrrr")


def by_figure(title: str, rows: Sequence[Comparison]) -> str:
    """A table with a row for each figure."""
    found = figures(rows)
    return f"### {title}, by figure\n\n" + table(("figure", *TITLES), [(f"`{name}`", *numbers(found[name])) for name in sorted(found)], "lrrrrrr")


def figures(rows: Iterable[Comparison]) -> dict[str, Summary]:
    """A summary of each figure over all groups."""
    by_name: dict[str, list[Comparison]] = {}
    for row in rows:
        by_name.setdefault(row.figure, []).append(row)
    return {name: summary_of("all", name, found) for name, found in by_name.items()}


def by_group(title: str, rows: Sequence[Comparison]) -> str:
    """A table with a row for each group and figure."""
    lines = [(summary.group, f"`{summary.figure}`", *numbers(summary)) for summary in summarise(rows)]
    return f"### {title}, by group\n\n" + table(("group", "figure", *TITLES), lines, "llrrrrrr")


def left_out() -> str:
    """A table with a row for each figure that has a range: how many values it holds of sources that it was learnt without."""
    lines = []
    for section, title in (("train", "training"), ("serve", "serving")):
        for figure, found in known(section).items():
            lines.append((f"`{figure}` ({title})", share(found.rows), share(found.sources)))
    return table(("figure", "left out, rows", "left out, sources"), lines, "lrr")


def weak(training: Sequence[Comparison], serving: Sequence[Comparison]) -> str:
    """The figures whose errors are large, with the reason."""
    lines = []
    for part, rows in (("training", training), ("serving", serving)):
        for name, summary in sorted(figures(rows).items()):
            if is_weak(summary):
                lines.append((f"`{name}` ({part})", percent(summary.median), percent(summary.p90), WHY[name]))
    intro = f"Those with a median above {WEAK_MEDIAN:.0%} or a 90th percentile above {WEAK_P90:.0%}.".replace("%", " %")
    return f"## Which figures are weak, and why\n\n{intro}\n\n" + table(("figure", "median", "p90", "why"), lines, "lrrl")


def is_weak(summary: Summary) -> bool:
    """Whether a figure deserves a warning."""
    return summary.answered >= FEWEST and ((summary.median or 0) > WEAK_MEDIAN or (summary.p90 or 0) > WEAK_P90)


def numbers(summary: Summary) -> tuple[str, ...]:
    """The cells of a summary."""
    bias = "" if summary.bias is None else f"{100 * summary.bias:+.2f} %"
    return f"{summary.answered}/{summary.asked}", percent(summary.median), percent(summary.p90), bias, share(summary.inside), share(summary.width)


def percent(value: float | None) -> str:
    """`0.27 %`."""
    return "" if value is None else f"{100 * value:.2f} %"


def share(value: float | None) -> str:
    """`96 %`."""
    return "" if value is None else f"{100 * value:.0f} %"
