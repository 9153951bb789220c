"""The one place where a job becomes the answer that people see, on command line, page and API: estimate, what was taken for granted, advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from everybyte.basics.origin import USER, Setting
from everybyte.estimator import estimate as memory_of
from everybyte.job import Job, job_to_dict
from everybyte.job.flags import as_flags
from everybyte.ledger.answer import Answer
from everybyte.plan.caveats import caveats
from everybyte.plan.start.taken import Taken, get
from everybyte.plan.time.figures import timed

if TYPE_CHECKING:
    from everybyte.plan.fit import FitResult

Remake = Callable[[Mapping[str, Any]], Job]

DEFAULT = "default of "


def answered(job: Job, taken: Taken | None = None, remake: Remake | None = None, *, advise: bool = True) -> Answer:
    """The answer to a job, of which the settings `taken` were not given but taken, with advice where it does not fit.

    `remake` makes the job anew with changed settings where more was left open than a layout (`plan.start`). Raises BadInput, Unsupported.
    """
    job, layout = server_laid_out(job)
    origins = {**(taken or {}), **layout}
    answer = _with_origins(timed(memory_of(job, tells_idle_keys=True)), job, origins)
    answer = msgspec.structs.replace(answer, caveats=caveats(job, answer))
    if not advise or answer.fits is not False:
        return answer
    from everybyte.plan.advice import advice

    return msgspec.structs.replace(answer, advice=tuple(row.as_dict() for row in advice(job, answer, origins, remake)))


def estimate(job: Job | dict[str, Any] | str, *, tells_idle_keys: bool = False) -> Answer:
    """The answer to a job: figures of memory and speed, ranges, ledgers and the settings behind them.

    `job` is a Job, a mapping in the contract's form, or the path of a file. With `tells_idle_keys` the given keys that change nothing are named among
    assumptions and warnings, as the command line and the page do; it takes about three times as long. Raises BadInput with the key's path, Unsupported for
    what is not modelled.
    """
    return timed(memory_of(job, tells_idle_keys=tells_idle_keys))


def advice_on(job: Job, found: FitResult) -> tuple[dict[str, Any], ...]:
    """What would make a job fit, where a search for the largest value found none."""
    return () if found.value is not None or not found.is_complete else answered(job).advice


def server_laid_out(job: Job) -> tuple[Job, Taken]:
    """A server's GPUs share its weights where the job does not say how."""
    if job.serve is None or job.hardware is None or (job.hardware.gpus or 1) == 1:
        return job, {}
    from everybyte.plan.start.layout import laid_out  # most jobs need none

    return laid_out(job)


def _with_origins(answer: Answer, job: Job, taken: Taken) -> Answer:
    """Settings that were taken are not shown as given, and each default stands among the assumptions with the flag that changes it."""
    raw = job_to_dict(job)
    noted = {setting.key for setting in answer.settings}
    settings = [setting._replace(origin=taken[setting.key]) if setting.origin == USER and setting.key in taken else setting for setting in answer.settings]
    settings += [Setting(path, get(raw, path), origin) for path, origin in taken.items() if path not in noted]
    purpose = "train" if job.train is not None else "serve"
    assumed = (*_by_origin([s for s in settings if s.key in taken or s.origin.startswith(DEFAULT)], purpose), *answer.assumptions)
    return msgspec.structs.replace(answer, settings=tuple(settings), assumptions=assumed)


def _by_origin(settings: list[Setting[Any]], purpose: str) -> list[str]:
    """`default of trl: --seq-len 1024 --attention sdpa`: the defaults of each origin, as flags that change them."""
    groups: dict[str, dict[str, Any]] = {}
    for setting in settings:
        if setting.origin != USER and _is_choice(setting):
            groups.setdefault(setting.origin, {})[setting.key] = setting.value
    return [f"{origin.removeprefix('inferred: ')}: {as_flags(values, purpose)}" for origin, values in groups.items()]


def _is_choice(setting: Setting[Any]) -> bool:
    return setting.value is not None and not isinstance(setting.value, Mapping) and setting.key.startswith(("train.", "serve.", "hardware."))
