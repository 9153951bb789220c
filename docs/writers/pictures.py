"""The pictures of the documentation: drawn by the product itself from jobs in examples/ and docs/jobs, for light and for dark pages.

An SVG depends on the fonts of the machine that draws it, so what is compared is the specification: docs/pictures/specs.json holds a digest of each.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from everybyte import estimate, read_job
from everybyte.ledger.answer import Answer
from everybyte.measure.accuracy import Comparison
from everybyte.plan.sweep import Sweep, sweep
from everybyte.report.charts import Spec, Theme, card, draw, knob, phases, places, ranks, truth
from writers.console import ROOT
from writers.measured import measured

FOLDER = ROOT / "docs" / "pictures"
DIGESTS = FOLDER / "specs.json"
THEMES: dict[Theme, str] = {"light": "", "dark": "-dark"}
"""Theme -> ending of the file's name."""
LORA = "examples/llama-3.1-8b-lora-24gb.yaml"
FULL = "examples/llama-3.2-3b-full-80gb.yaml"
MEGATRON = "examples/several-gpus/llama-3.1-405b-megatron.yaml"
VLLM = "examples/serving/llama-3.1-8b-vllm-l40s.yaml"
LONG = "examples/long-context-generation.yaml"
Draw = Callable[[Theme], Spec]


def of_job(picture: Callable[..., Spec], job: str) -> Draw:
    """A picture of the answer to a job."""
    return lambda theme: picture(answer_to(job), theme=theme)


def along(job: str, key: str) -> Draw:
    """A picture of a job along one setting."""
    return lambda theme: knob(swept(job, key), theme=theme)


def of_runs(chosen: Callable[[Comparison], bool]) -> Draw:
    """Predicted against measured, for a part of the runs."""
    return lambda theme: truth([row for row in measured().comparisons if chosen(row)], theme=theme)


@cache
def swept(job: str, key: str) -> Sweep:
    """A job file of the repository along one setting."""
    return sweep(read_job(ROOT / job), key)


@cache
def answer_to(job: str) -> Answer:
    """The answer to a job file of the repository."""
    return estimate(read_job(ROOT / job))


def is_serving(row: Comparison) -> bool:
    """Whether the run serves."""
    return row.group in measured().serving


PICTURES: dict[str, Draw] = {
    "start": of_job(phases, "docs/jobs/no-recompute.yaml"),
    "fits-lora": of_job(card, LORA),
    "fits-seq-len": along(LORA, "seq_len"),
    "serve-vllm": of_job(card, VLLM),
    "stages": of_job(ranks, MEGATRON),
    "parameter": of_job(places, LORA),
    "gradient": of_job(phases, FULL),
    "optimizer-state": of_job(card, FULL),
    "activation": along("docs/jobs/no-recompute.yaml", "micro_batch"),
    "input": of_job(phases, "docs/jobs/vit-large-batch.yaml"),
    "temporary": of_job(phases, "docs/jobs/foreach-step.yaml"),
    "autograd-detail": of_job(places, "docs/jobs/no-recompute.yaml"),
    "kv-cache": along(LONG, "context"),
    "state": of_job(card, "docs/jobs/mamba-batch.yaml"),
    "comm-buffer": of_job(places, "docs/jobs/small-on-eight.yaml"),
    "workspace": of_job(card, "docs/jobs/ubatch.yaml"),
    "context": of_job(places, "docs/jobs/small-on-eight.yaml"),
    "graph-pool": of_job(places, "docs/jobs/graphs-vllm.yaml"),
    "fragmentation": of_job(card, "docs/jobs/no-recompute.yaml"),
    "unknown": of_runs(lambda row: row.figure == "peak.device"),
    "accuracy-training": of_runs(lambda row: not is_serving(row)),
    "accuracy-serving": of_runs(is_serving),
}


class Drawing(NamedTuple):
    """A file, the specification that it shows and its digest."""

    path: Path
    spec: Spec
    digest: str


def drawings() -> list[Drawing]:
    """Every picture in every theme, as it should be."""
    found = []
    for name, make in PICTURES.items():
        for theme, ending in THEMES.items():
            spec = make(theme)
            found.append(Drawing(FOLDER / f"{name}{ending}.svg", spec, digest(spec)))
    return found


def digest(spec: Spec) -> str:
    """A short digest of a specification."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def stale(wanted: list[Drawing]) -> list[Drawing]:
    """The pictures whose file is missing or shows something else."""
    known: dict[str, str] = json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.exists() else {}
    return [drawing for drawing in wanted if not drawing.path.exists() or known.get(drawing.path.name) != drawing.digest]


def small(svg: bytes) -> bytes:
    """An SVG without what is said of each single mark, and with coordinates to a hundredth: a picture of a thousand points stays light.

    The page's alternative text, and the title and description of the whole, stay.
    """
    text = svg.decode()
    text = re.sub(r'(<path aria-label=)"[^"]*"( role="graphics-symbol")? aria-roledescription="[^"]*"', r"<path", text)
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", text).encode()


def redraw() -> list[Path]:
    """Draws what is stale and removes what is no longer named; the paths that were written."""
    FOLDER.mkdir(exist_ok=True)
    wanted = drawings()
    changed = stale(wanted)
    for drawing in changed:
        drawing.path.write_bytes(small(draw(drawing.spec, ".svg")))
    for path in set(FOLDER.glob("*.svg")) - {drawing.path for drawing in wanted}:
        path.unlink()
    digests = {drawing.path.name: drawing.digest for drawing in sorted(wanted, key=lambda one: one.path.name)}
    DIGESTS.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
    return [drawing.path for drawing in changed]
