"""A server under load: tokens a second of one sequence and of all, and the time to the first token."""

from __future__ import annotations

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
MOST_WAITING = 64
"""Prompts that a server takes before it runs a decode step."""


class ServingTime(Record, frozen=True):
    """Seconds: one decode step, one prompt, a token of one sequence under load, the first token; and tokens a second."""

    step: TimeLedger
    prompt: TimeLedger
    per_token: float
    first_token: float
    sequences: int

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
    sequences = load.concurrency
    if load.is_saturated and cache_tokens:
        fits = cache_tokens * s.dp / (load.prompt + FILLED * load.output)
        sequences = max(1, int(min(fits, MOST_AT_ONCE)))
    step = decode_step(shape, s, card, sequences / (s.pp if load.is_saturated else 1), load.prompt + load.output / 2)
    prompt = prefill(shape, s, card, load.prompt)
    others = (sequences - 1) / s.dp
    shared = (1.0 if load.is_saturated else SPREAD) * others * prompt.seconds / load.output / (s.pp if load.is_saturated else 1)
    per_token = step.seconds + max(0.0, shared)
    busy = min(1.0, sequences / s.dp * prompt.seconds / (load.output * per_token))
    waiting = 0.5 * (min(sequences / s.dp, MOST_WAITING) - 1) * prompt.seconds * busy if sequences > 1 else 0.0
    first = prompt.seconds + 0.5 * step.seconds + max(0.0, waiting)
    return ServingTime(step, prompt, per_token, first, sequences)
