"""A server under load: tokens a second of one sequence and of all, and the time to the first token."""

from __future__ import annotations

import msgspec

from everybyte.basics.record import Record
from everybyte.catalog.speed_cards import SpeedCard
from everybyte.ledger.time import TimeLedger
from everybyte.plan.time.serving.decode import decode_step
from everybyte.plan.time.serving.prefill import prefill
from everybyte.plan.time.serving.setting import ServeSetting
from everybyte.plan.time.shape import NetworkShape

SPREAD = 0.95
"""Share of the other sequences' prefills that falls between two tokens of one sequence."""
FILLED = 0.6
"""Share of the output that a sequence has written on average when a full server is looked at."""
MOST_AT_ONCE = 8192
MOST_ROUNDS = 100
"""Rounds in which the number of requests in the server settles; one that has not settled grows without end."""
MOST_WAITING = 64
"""Prompts that a server takes before it runs a decode step."""


class ServingTime(Record, frozen=True):
    """Seconds: one decode step, one prompt, a token of one sequence under load, the first token; and tokens a second."""

    step: TimeLedger
    prompt: TimeLedger
    per_token: float
    first_token: float
    sequences: int
    keeps_up: bool = True
    """Whether requests are served as fast as they arrive."""

    @property
    def tokens_per_s(self) -> float:
        """Of one sequence."""
        return 1 / self.per_token

    @property
    def batch_tokens_per_s(self) -> float:
        """Of all sequences."""
        return self.sequences / self.per_token


def serving_time(shape: NetworkShape, s: ServeSetting, card: SpeedCard, cache_tokens: float | None = None) -> ServingTime:
    """The server under its load; `cache_tokens` are what the cache of a replica holds, which bounds a saturated one."""
    load = s.load
    if load.rate:
        return _open_loop(shape, s, card)
    if load.is_saturated and cache_tokens:
        fits = cache_tokens * s.dp / (load.prompt + FILLED * load.output)
        return _closed_loop(shape, s, card, max(1, int(min(fits, MOST_AT_ONCE))))
    return _closed_loop(shape, s, card, load.concurrency)


def _closed_loop(shape: NetworkShape, s: ServeSetting, card: SpeedCard, sequences: int) -> ServingTime:
    """So many requests at a time, each followed by the next."""
    load = s.load
    step = decode_step(shape, s, card, sequences / (s.pp if load.is_saturated else 1), load.prompt + load.output / 2)
    prompt = prefill(shape, s, card, load.prompt)
    others = (sequences - 1) / s.dp
    shared = (1.0 if load.is_saturated else SPREAD) * others * prompt.seconds / load.output / (s.pp if load.is_saturated else 1)
    per_token = step.seconds + max(0.0, shared)
    busy = min(1.0, sequences / s.dp * prompt.seconds / (load.output * per_token))
    waiting = 0.5 * (min(sequences / s.dp, MOST_WAITING) - 1) * prompt.seconds * busy if sequences > 1 else 0.0
    first = prompt.seconds + 0.5 * step.seconds + max(0.0, waiting)
    return ServingTime(step, prompt, per_token, first, sequences)


def _open_loop(shape: NetworkShape, s: ServeSetting, card: SpeedCard) -> ServingTime:
    """Requests that arrive at a rate: as many are in the server as arrive while one is served (Little's law); prompts wait as before one server with
    constant times (Pollaczek-Khinchine). A server that cannot keep up is shown with the most that it takes."""
    load = s.load
    sequences = 1
    for _ in range(MOST_ROUNDS):
        found = _closed_loop(shape, s, card, sequences)
        busy = load.rate * found.prompt.seconds / s.dp
        if busy >= 1:
            return _overrun(shape, s, card)
        waiting = busy / (2 * (1 - busy)) * found.prompt.seconds
        first = found.prompt.seconds + 0.5 * found.step.seconds + waiting
        needed = max(1, round(load.rate * (first + load.output * found.per_token)))
        if needed > MOST_AT_ONCE:
            return _overrun(shape, s, card)
        if needed <= sequences:
            return msgspec.structs.replace(found, first_token=first)
        sequences = needed
    return _overrun(shape, s, card)


def _overrun(shape: NetworkShape, s: ServeSetting, card: SpeedCard) -> ServingTime:
    return msgspec.structs.replace(_closed_loop(shape, s, card, MOST_AT_ONCE), keeps_up=False)
