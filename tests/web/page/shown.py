"""What the page must say of an answer, written down a second time: the tests read the answer from the API and look for these words."""

from __future__ import annotations

from typing import Any

GIB, MIB, KIB = 2**30, 2**20, 2**10


def size(count: float, digits: int = 1) -> str:
    """`21.4 GiB`, `96 MiB`, `512 B`."""
    amount = abs(count)
    if amount >= GIB / 10:
        return f"{count / GIB:,.{digits}f} GiB"
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if amount >= unit:
            return f"{count / unit:,.{1 if amount < 10 * unit else 0}f} {name}"
    return f"{count:,} B"


def gib(count: float, digits: int = 2) -> str:
    """`21.40`, without the unit; what would round to nothing is `<0.01`."""
    text = f"{count / GIB:,.{digits}f}"
    return f"<{10**-digits:.{digits}f}" if count > 0 and float(text.replace(",", "")) == 0 else text


def word(answer: dict[str, Any]) -> str:
    """The verdict in a word."""
    if not answer["hardware"]:
        return "No GPU selected"
    if answer["verdict"] == "close":
        return "Close"
    if not answer["fits"]:
        return "Does not start" if answer["headroom"] >= 0 else "Does not fit"
    return "Fits"


def sentence(answer: dict[str, Any]) -> str:
    """The sentence under the verdict."""
    hardware, headroom, figures = answer["hardware"], answer["headroom"], answer["figures"]
    if not hardware:
        return f"needs {size(figures.get('peak.device', figures.get('peak.allocated', 0)))}; select a GPU to see whether it fits"
    if not answer["fits"] and headroom >= 0:
        return str(answer["warnings"][0])
    each = "each " if answer["job"]["hardware"].get("gpus", 1) > 1 else ""
    needs = f"needs {size(hardware['capacity'] - headroom)} of {gib(hardware['capacity'], 1)} GiB device memory on {each}{hardware['gpu']}"
    if answer["verdict"] == "close":
        room = f"{size(headroom)} left" if headroom >= 0 else f"{size(-headroom)} over capacity"
        return f"{needs}, {room}; about {100 * answer['chance']:,.0f} % of such runs fit"
    return f"{needs}, {size(headroom)} left" if answer["fits"] else f"{needs}: {size(-headroom)} over capacity"


def worst(answer: dict[str, Any]) -> dict[str, Any]:
    """The kind of rank that needs most."""
    return max(answer["ranks"], key=lambda rank: rank["figures"].get("peak.device", rank["figures"].get("peak.allocated", 0)))
