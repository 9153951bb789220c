"""Measured speed against the clock: `python scripts/speed_rows.py` prints the errors by kind, `--write` the intervals that answers state.

`tests/truth/speed.jsonl` holds the rows; each names its source. An error is predicted over measured time, less one.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from everybyte.job import Job, read_job
from everybyte.job.pattern import model_of
from everybyte.models.source import network_of
from everybyte.plan.time.figures import card_of, speed_of
from everybyte.plan.time.shape import NetworkShape, shape_of

ROOT = Path(__file__).parent.parent
ROWS = ROOT / "tests" / "truth" / "speed.jsonl"
RANGES = ROOT / "src" / "everybyte" / "catalog" / "data" / "speed_ranges.csv"
TOYS = "golden"
"""Groups of continuous integration: 12 layers of width 512, bound by the host."""
NARAYANAN = 96
"""FLOPs a token, layer and hidden^2 of a step with full recomputation (Narayanan et al. 2021, equation 3)."""


class Found(NamedTuple):
    """One measured figure of a row: the kind of job, predicted over measured time."""

    id: str
    group: str
    kind: str
    figure: str
    completeness: str
    ratio: float
    key: tuple[str, ...]
    """Rows that are ranked among one another: model, card, GPUs, source, release."""
    measured: float
    """Time, in the figure's own unit, for ranking."""
    rule_of_thumb: float
    """6·P·tokens at 40 % of the peak over the measured time; 0 for serving."""


def found() -> Iterator[Found]:
    """Every row that the clock answers and whose settings are complete or nearly so."""
    with ROWS.open() as file:
        for line in file:
            row = json.loads(line)
            if row["completeness"] == "C":
                continue
            job = _job(row)
            yield from _train(row, job) if job.train is not None else _serve(row, job)


def _job(row: dict[str, Any]) -> Job:
    raw = row["job"]
    share = (row.get("given") or {}).get("matmul_share")
    if share:  # the source states what large products reach on its machine
        card = card_of(read_job(raw))
        assert card is not None
        raw = {**raw, "hardware": {**raw["hardware"], "measured": {"matmul_tflops": share * card.products["bf16"] / 1e12}}}
    return read_job(raw)


def _train(row: dict[str, Any], job: Job) -> Iterator[Found]:
    network = network_of(model_of(job), "model")
    speed, shape = speed_of(job, network), shape_of(network)
    if isinstance(speed, str) or shape is None:
        return
    figures = dict(speed.figures)
    predicted = figures["step.time_s"]
    tokens = figures["tokens_per_s_per_gpu"] * predicted  # of a GPU and step
    measured = _step_time(row, shape, tokens)
    if measured is None or job.train is None or job.hardware is None:
        return
    release = str(job.train.version) if "bridge" in row["group"] else ""
    key = (row["group"], json.dumps(row["job"]["model"], sort_keys=True), str(job.hardware.gpu), str(job.hardware.gpus), release)
    card = card_of(job)
    thumb = 6 * shape.active_parameters * tokens / (0.4 * card.products["bf16"]) / measured if card else 0.0
    kind = f"train {'moe' if shape.expert_parameters else 'dense'}"
    yield Found(row["id"], row["group"], kind, "step.time_s", row["completeness"], predicted / measured, key, measured / tokens, thumb)


def _step_time(row: dict[str, Any], shape: NetworkShape, tokens: float) -> float | None:
    by = {m["figure"]: m for m in row["measured"]}
    if "step.time_s" in by:
        return float(by["step.time_s"]["value"])
    if "tokens_per_s_per_gpu" in by:
        return tokens / float(by["tokens_per_s_per_gpu"]["value"])
    if "tflops_per_gpu" not in by:
        return None
    length = row["job"]["train"]["seq_len"]
    definition = by["tflops_per_gpu"].get("flops")
    if definition == "narayanan":
        flops = NARAYANAN * shape.count * shape.hidden**2 * (1 + length / (6 * shape.hidden) + shape.vocab / (16 * shape.count * shape.hidden))
    elif definition == "model":
        flops = shape.training_flops(length)
    else:
        flops = 3 * (2.0 * shape.active_parameters + shape.scores_flops(length, causal=False))
    return tokens * flops / (float(by["tflops_per_gpu"]["value"]) * 1e12)


def _serve(row: dict[str, Any], job: Job) -> Iterator[Found]:
    network = network_of(model_of(job), "model")
    is_saturated = (row["job"]["serve"].get("extra") or {}).get("load") == "infinite"
    cache = _cache_tokens(row) if is_saturated else None
    speed, shape = speed_of(job, network, cache), shape_of(network)
    if isinstance(speed, str) or shape is None:
        return
    figures = dict(speed.figures)
    extra = row["job"]["serve"].get("extra") or {}
    load = "saturated" if is_saturated else "load" if extra.get("concurrency", 1) > 1 else "alone"
    kind = f"serve {'moe' if shape.expert_parameters else 'dense'} {load}"
    for m in row["measured"]:
        name = "decode.batch_tokens_per_s" if is_saturated and m["figure"] == "decode.tokens_per_s" else m["figure"]
        predicted = figures.get(name) or figures.get(m["figure"])
        if predicted:
            ratio = predicted / m["value"] if m["figure"] == "ttft_s" else m["value"] / predicted
            yield Found(row["id"], row["group"], kind, m["figure"], row["completeness"], ratio, (), m["value"], 0.0)


def _cache_tokens(row: dict[str, Any]) -> int | None:
    from everybyte import headline

    tokens = headline(row["job"]).get("kv.tokens")
    return None if tokens is None else int(tokens)


def quantile(values: list[float], at: float) -> float:
    """The value below which the share `at` of all lies."""
    ordered = sorted(values)
    place = at * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def errors(rows: list[Found]) -> tuple[float, float]:
    """Median and 90th percentile of the absolute error."""
    absolute = [abs(row.ratio - 1) for row in rows]
    return quantile(absolute, 0.5), quantile(absolute, 0.9)


def kendall(rows: list[Found]) -> tuple[float, int]:
    """Mean over the sets of alike rows of Kendall's tau, and the number of pairs; pairs measured within 1 % have no order."""
    sets: dict[tuple[str, ...], list[Found]] = defaultdict(list)
    for row in rows:
        sets[row.key].append(row)
    taus, pairs = [], 0
    for members in sets.values():
        agree = total = 0
        for i, a in enumerate(members):
            for b in members[:i]:
                if abs(a.measured - b.measured) < 0.01 * a.measured:
                    continue
                total += 1
                agree += 1 if (a.measured - b.measured) * (a.measured * a.ratio - b.measured * b.ratio) > 0 else -1
        if len(members) >= 3 and total:
            taus.append(agree / total)
            pairs += total
    return sum(taus) / len(taus), pairs


def kinds(rows: list[Found]) -> dict[tuple[str, str], list[Found]]:
    """Rows by figure and kind, and all of training or serving together."""
    by: dict[tuple[str, str], list[Found]] = defaultdict(list)
    for row in rows:
        if not row.group.startswith(TOYS):
            by[row.figure, row.kind].append(row)
            by[row.figure, row.kind.split()[0]].append(row)
    return by


def write(rows: list[Found]) -> None:
    """The intervals of measured over predicted time, 5 % left out on either side."""
    with RANGES.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["figure", "kind", "low", "high", "runs", "sources"])
        for (figure, kind), members in sorted(kinds(rows).items()):
            ratios = [1 / row.ratio for row in members]
            out.writerow([figure, kind, f"{quantile(ratios, 0.05):.3f}", f"{quantile(ratios, 0.95):.3f}", len(members), len({row.group for row in members})])


def main() -> None:
    """Prints the table; writes the intervals if asked to."""
    rows = list(found())
    for (figure, kind), members in sorted(kinds(rows).items()):
        median, ninth = errors(members)
        bias = quantile([row.ratio - 1 for row in members], 0.5)
        print(f"{figure:24} {kind:24} {len(members):4d} rows  median {median:6.1%}  p90 {ninth:6.1%}  bias {bias:+6.1%}")
    training = [row for row in rows if row.figure == "step.time_s" and not row.group.startswith(TOYS)]
    complete = [row for row in training if row.completeness == "A"]
    print("complete training rows: median {:.1%}, p90 {:.1%}".format(*errors(complete)))
    print(f"rule of thumb: median {quantile([abs(row.rule_of_thumb - 1) for row in training], 0.5):.1%}")
    print("ranking: tau {:.2f} over {} pairs".format(*kendall(training)))
    if "--write" in sys.argv:
        write(rows)


if __name__ == "__main__":
    main()
