"""A machine that somebody has: `2x24GB`, `4090`, also with unequal cards (`3090,4090`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.basics.units import GiB
from everybyte.catalog.gpus import find_gpu
from everybyte.job import Job
from everybyte.job.shorthand import expand
from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.plan.start.taken import with_settings

FLAG = "--have"
MOST_CARDS = 64
SPLIT_BY_SIZE = ("llama.cpp", "ollama")
"""Engines that place layers by the free memory of each GPU."""


class Card(NamedTuple):
    """One GPU of a machine."""

    name: str
    capacity: int


class Machine(NamedTuple):
    """GPUs of one machine, in the order in which they were named."""

    cards: tuple[Card, ...]

    @property
    def smallest(self) -> Card:
        """Where all ranks hold the same, it decides."""
        return min(self.cards, key=lambda card: card.capacity)

    @property
    def is_unequal(self) -> bool:
        """Whether its cards differ in memory."""
        return len({card.capacity for card in self.cards}) > 1

    @property
    def name(self) -> str:
        """`2 x RTX-3090 + RTX-4090`."""
        names = [card.name for card in self.cards]
        counted = {name: names.count(name) for name in names}
        return " + ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items())


def read_machine(text: str) -> Machine:
    """The machine that a text names: cards apart by `,` or `+`, each with an optional count before it. Raises BadInput with what is not known."""
    cards: list[Card] = []
    for part in text.replace("+", ",").split(","):
        if not part.strip():
            raise BadInput(FLAG, f"names a GPU before and after each comma, got {text!r}")
        hardware = expand({"hardware": {"gpu": part.strip()}})["hardware"]
        cards += [_card(hardware["gpu"])] * int(hardware.get("gpus", 1))
        if len(cards) > MOST_CARDS:
            raise BadInput(FLAG, f"a machine has at most {MOST_CARDS} GPUs here")
    return Machine(tuple(cards))


def _card(gpu: str | dict[str, Any]) -> Card:
    """A GPU by name, or by its size where only that was said."""
    if isinstance(gpu, str):
        found = find_gpu(gpu, FLAG)
        return Card(found.name, found.capacity)
    return Card(gpu["name"], gpu["memory_bytes"])


def on_machine(job: Job, machine: Machine) -> Job:
    """The job on a machine. Each rank gets the memory of the smallest card, but for engines that place layers by the memory of each."""
    unequal = machine.is_unequal and job.serve is not None and job.serve.engine in SPLIT_BY_SIZE
    card = max(machine.cards, key=lambda one: one.capacity) if unequal else machine.smallest
    settings: dict[str, Any] = {"hardware.gpu": _written(card), "hardware.gpus": len(machine.cards)}
    if unequal:
        settings["serve.tensor_split"] = [round(one.capacity / GiB, 3) for one in machine.cards]
    return with_settings(job, settings)


def _written(card: Card) -> Any:
    try:
        return find_gpu(card.name).name
    except BadInput:
        return {"memory_bytes": card.capacity, "name": card.name}


def decisive(answer: Answer, machine: Machine) -> tuple[Card, RankAnswer]:
    """The card with the least room for its rank, and the rank. Ranks of an engine that places layers by card are devices in their order: `CUDA0` ..."""
    by_label = {rank.label: rank for rank in answer.ranks}
    placed = [(card, by_label[f"CUDA{i}"]) for i, card in enumerate(machine.cards) if f"CUDA{i}" in by_label] or [(machine.smallest, answer.worst)]
    return min(placed, key=lambda pair: pair[0].capacity - pair[1].figures["peak.device"])


def has_room(answer: Answer, machine: Machine) -> bool:
    """Whether each rank has room on its own card."""
    card, rank = decisive(answer, machine)
    return answer.fits is True and rank.figures["peak.device"] <= card.capacity


def with_verdict(answer: Answer, machine: Machine) -> Answer:
    """The answer with the verdict of the card that has the least room. Ranges keep their width in per cent."""
    if not machine.is_unequal or answer.hardware is None:
        return answer
    card, rank = decisive(answer, machine)
    headroom = card.capacity - rank.figures["peak.device"]
    ranges = {name: _moved(ends, answer.size(name), rank.figures.get(name)) for name, ends in answer.range.items()}
    note = f"unequal cards ({machine.name}): {card.name} has the least room, and the figures are those of its rank {rank.label}"
    return msgspec.structs.replace(
        answer,
        figures={**answer.figures, **rank.figures},
        range=ranges,
        hardware=msgspec.structs.replace(answer.hardware, gpu=card.name, capacity=card.capacity),
        headroom=headroom,
        fits=headroom >= 0 and not answer.refusals,
        caveats=(*answer.caveats, note),
    )


def _moved(ends: tuple[float, float], old: int | None, new: int | None) -> tuple[float, float]:
    return ends if not old or new is None else (ends[0] * new / old, ends[1] * new / old)
