"""Settings that a job does not state and that were taken for it, each with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everybyte.job import Job, job_to_dict, read_job

Taken = Mapping[str, str]
"""Key path -> origin, of each setting that was taken."""


def states(raw: Mapping[str, Any], path: str) -> bool:
    """Whether a job in the long form states a key path, or a value in its place."""
    place: Any = raw
    for name in path.split("."):
        if not isinstance(place, Mapping):
            return True
        if name not in place:
            return False
        place = place[name]
    return place is not None


def put(raw: dict[str, Any], path: str, value: Any) -> None:
    """Sets a key path of a job in the long form."""
    *sections, last = path.split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
    raw[last] = value


def get(raw: Mapping[str, Any], path: str) -> Any:
    """The value at a key path; None where there is none."""
    place: Any = raw
    for name in path.split("."):
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def with_settings(job: Job, settings: Mapping[str, Any]) -> Job:
    """The job with further settings. Raises BadInput where they contradict it."""
    raw = job_to_dict(job)
    for path, value in settings.items():
        put(raw, path, value)
    return read_job(raw)


def leaves(raw: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Key paths and values of a job in the long form."""
    for key, value in raw.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) and value and key not in ("extra", "model", "gpu"):
            yield from leaves(value, here)
        else:
            yield here, value
