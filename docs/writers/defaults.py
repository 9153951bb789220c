"""What `train` and `serve` take where flags leave it open, and the flags of other programs that they understand."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.catalog.names import read_table
from everybyte.job.flags import as_flags
from everybyte.plan.start.points import all_layouts, all_points
from writers.markdown import page, table

INTRODUCTION = """\
`everybyte train MODEL --gpu NAME` is the job that a person means by it: the framework that such models are trained with, the settings of that framework's
own example, and a layout over the GPUs. `everybyte serve MODEL --gpu NAME` takes the engine's own defaults. Whatever is taken stands under "Assumed" in the
answer, with the flag that changes it. A job file says what it says: there a key that is left out has the framework's own default."""
SEVERAL = """\
Of several GPUs the first way of sharding counts that has room for the model; Megatron takes the smallest tensor-parallel size that fits, then pipeline stages.
Serving engines share the weights of a model by tensor parallelism inside a node, and by pipeline stages over nodes."""
FOREIGN = """\
These flags of other programs mean the same here. `{}` is the flag's value; underscores and hyphens are alike."""


def defaults_page() -> str:
    """The page of starting points and flags."""
    points = table(("framework", "for", "what is taken", "source"), _points())
    layouts = table(("framework", "shardings, the fastest first", "source"), _layouts())
    flags = table(("flag", "command", "means", "known from"), _aliases())
    return page(
        "Defaults and flags",
        INTRODUCTION,
        "## Starting points",
        points,
        "## Several GPUs",
        SEVERAL,
        layouts,
        "## Flags of other programs",
        FOREIGN,
        flags,
        wide=True,
    )


def _points() -> Iterator[tuple[str, str, str, str]]:
    for point in all_points():
        kind = ", ".join({"adapter": "adapters", "image": "image models"}[word] for word in point.when) or "full training"
        yield ", ".join(point.frameworks), kind, f"`{as_flags(point.set, 'train')}`", f"{point.source} ({point.version})"


def _layouts() -> Iterator[tuple[str, str, str]]:
    for row in all_layouts():
        yield ", ".join(row.frameworks), ", ".join(row.shardings), row.source


def _aliases() -> Iterator[tuple[str, str, str, str]]:
    for purpose, alias, means, known_from in read_table("flag_aliases.csv")[1:]:
        yield f"`{alias}`", {"both": "train, serve"}.get(purpose, purpose), f"`{means}`" if means else "nothing more", known_from
