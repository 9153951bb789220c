"""Every byte on the GPU, accounted for before you launch.

`estimate(job)` answers a job: a path, a mapping in the form of a job file, or a `Job` that `read_job` made. `quick` gives its deciding figures alone, for
planners. `fit` searches the largest value of a setting, `compare` lists what differs, `trace` runs real PyTorch code on fake tensors, `models` and `gpus`
search the catalogue. All sizes are whole bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everybyte.basics.version import __version__
from everybyte.ledger import display

if TYPE_CHECKING:
    from everybyte.basics.errors import BadInput, EverybyteError
    from everybyte.basics.tracing import tracing
    from everybyte.estimator import headline
    from everybyte.job import Job, read_job
    from everybyte.ledger.answer import Answer
    from everybyte.library import compare, fit, gpus, models
    from everybyte.plan.answer import estimate
    from everybyte.plan.quick import quick
    from everybyte.trace.api import trace

_HOME = {
    "Answer": "everybyte.ledger.answer",
    "BadInput": "everybyte.basics.errors",
    "EverybyteError": "everybyte.basics.errors",
    "Job": "everybyte.job",
    "compare": "everybyte.library",
    "estimate": "everybyte.plan.answer",
    "fit": "everybyte.library",
    "gpus": "everybyte.library",
    "headline": "everybyte.estimator",
    "models": "everybyte.library",
    "quick": "everybyte.plan.quick",
    "read_job": "everybyte.job",
    "trace": "everybyte.trace.api",
    "tracing": "everybyte.basics.tracing",
}

__all__ = [
    "Answer",
    "BadInput",
    "EverybyteError",
    "Job",
    "__version__",
    "compare",
    "estimate",
    "fit",
    "gpus",
    "headline",
    "models",
    "quick",
    "read_job",
    "trace",
    "tracing",
]


def __getattr__(name: str) -> Any:
    """Public names load their module when they are first used, so that `import everybyte` stays light."""
    if name not in _HOME:
        raise AttributeError(f"module 'everybyte' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)


def _forms_for_notebooks(thing: object) -> dict[str, Any]:
    """How a notebook shows an answer or a ledger (`everybyte.ledger.display`)."""
    from everybyte.report.notebook import mimebundle

    return mimebundle(thing)


display.forms_of = _forms_for_notebooks
