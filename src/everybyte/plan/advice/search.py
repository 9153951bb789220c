"""Finds the changes that make a job fit: singles first, then pairs of those that save, then as many together as it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.basics.record import Record
from everybyte.estimator import estimate, headline
from everybyte.job import Job, job_to_dict
from everybyte.job.flags import as_flags
from everybyte.ledger.answer import Answer
from everybyte.plan.advice.facts import Facts
from everybyte.plan.advice.hardware import HARDWARE
from everybyte.plan.advice.move import Move, Settings
from everybyte.plan.advice.row import Advice
from everybyte.plan.advice.serving import SERVING
from everybyte.plan.advice.training import TRAINING
from everybyte.plan.start.layout import laid_out
from everybyte.plan.start.taken import Taken, get, leaves, with_settings

MOST_ROWS = 12
MOST_PAIRS = 6
"""Pairs that are estimated in full."""
MOST_ROUGH = 2
"""Single changes that do not fit and are shown nevertheless, where nothing fits: those that save most."""
LAYOUT = ("train.sharding", "train.mesh.tp", "train.mesh.sp", "train.mesh.pp", "serve.mesh.tp", "serve.mesh.pp")

Remake = Callable[[Mapping[str, Any]], Job]
"""The job with settings changed, and what was left open chosen anew."""


class Candidate(Record, frozen=True, eq=False):
    """Moves together, the settings that they change, and what comes of it."""

    moves: tuple[Move, ...]
    settings: Settings
    job: Job
    needs: int
    fits: bool
    verdict: str

    @property
    def rank(self) -> tuple[bool, bool, int, int, int]:
        """Orders candidates, the best first: what fits, on the hardware that is there, with its whole range, at the least cost."""
        doubt = {"fits": 0, "close": 1}.get(self.verdict, 2)
        return (not self.fits, _buys(self), doubt, sum(move.cost for move in self.moves), self.needs)


def advice(job: Job, answer: Answer, taken: Taken | None = None, remake: Remake | None = None) -> tuple[Advice, ...]:
    """Rows of advice, the best first. `taken` settings were not given; `remake` chooses open ones anew where a change reaches so far."""
    if answer.hardware is None or "peak.device" not in answer.figures:
        return ()
    search = Search(job, Facts(answer, taken or {}), remake or (lambda settings: laid_out(with_settings(job, settings))[0]))
    found = sorted(search.all(), key=lambda candidate: candidate.rank)
    return tuple(search.row(candidate) for candidate in found[:MOST_ROWS])


class Search:
    """The search for one job. What is far too large by its headline is not estimated in full."""

    def __init__(self, job: Job, facts: Facts, remake: Remake) -> None:
        self.job, self.facts, self.remake = job, facts, remake
        self.moves = (*(TRAINING if job.train is not None else SERVING), *HARDWARE)
        self.beside = facts.needs - (facts.answer.size("peak.allocated") or facts.needs)

    def all(self) -> Iterator[Candidate]:
        """Singles that fit, pairs where both savings can be enough, all gentle moves together where nothing smaller does."""
        singles = [found for move in self.moves if (found := self.best_of(move)) is not None]
        yield from (single for single in singles if single.fits)
        helping = [single for single in singles if not single.fits and single.needs < self.facts.needs]
        pairs = list(self.pairs(helping))
        yield from pairs
        found_here = any(found.fits and not _buys(found) for found in (*singles, *pairs))
        if not found_here:
            yield from self.together(helping)
        if not any(found.fits for found in (*singles, *pairs)):
            yield from self.with_hardware(helping)
            yield from self.largest_savers(helping)

    def largest_savers(self, singles: list[Candidate]) -> Iterator[Candidate]:
        """Where nothing fits: what saves most, estimated in full."""
        for single in sorted(singles, key=lambda single: single.needs)[:MOST_ROUGH]:
            exact = self.tried(single.moves, single.settings, single.job)
            if exact is not None:
                yield exact

    def with_hardware(self, singles: list[Candidate]) -> Iterator[Candidate]:
        """Where nothing fits: what saves most, on more or larger GPUs."""
        best = min((single for single in singles if not _buys(single)), key=lambda single: single.needs, default=None)
        if best is None:
            return
        try:
            answer = estimate(best.job)
        except BadInput:
            return
        for move in HARDWARE:
            for more in move.tries(Facts(answer, self.facts.taken)):
                job = self._changed(move, {**best.settings, **more})
                found = self.tried((*best.moves, move), {**best.settings, **more}, job, rough=True)
                if found is not None and found.fits:
                    yield found
                    break

    def best_of(self, move: Move) -> Candidate | None:
        """The first of a move's values that fits for sure, else the first that fits, else the last that anyone answers."""
        fitting = last = None
        for settings in move.tries(self.facts):
            found = self.tried((move,), settings, self._changed(move, settings), rough=True)
            if found is not None and found.verdict == "fits":
                return found
            fitting = fitting or (found if found is not None and found.fits else None)
            last = found or last
        return fitting or last

    def _changed(self, move: Move, settings: Settings) -> Job | None:
        try:
            return self.remake(settings) if move.restarts else with_settings(self.job, settings)
        except BadInput:
            return None

    def tried(self, moves: tuple[Move, ...], settings: Settings, job: Job | None, *, rough: bool = False) -> Candidate | None:
        """A candidate with its full estimate, or a `rough` one by its headline where that is far above the capacity; None where it is refused, or where keys
        would have to go that a change cannot take away."""
        changed = None if job is None else _difference(self.job, job)
        if job is None or changed is None:
            return None
        try:
            if rough and job.train is not None and (about := self._about(job)) > self.facts.capacity and not self._changes_gpu(changed):
                return Candidate(moves, {**settings, **changed}, job, about, fits=False, verdict="does not fit")
            answer = estimate(job)
        except BadInput:
            return None
        return Candidate(moves, {**settings, **changed}, job, int(answer.figures.get("peak.device", 0)), bool(answer.fits), answer.verdict or "")

    def _about(self, job: Job) -> int:
        """What a job needs at least: what lives on the device, and half of what this one has beside that."""
        return headline(job)["peak.allocated"] + self.beside // 2

    def _changes_gpu(self, settings: Settings) -> bool:
        return "hardware.gpu" in settings

    def pairs(self, singles: list[Candidate]) -> Iterator[Candidate]:
        """Pairs whose savings together could be enough, the cheapest first. A pair that holds a move which fits alone is no better."""
        usable = [single for single in singles if not _buys(single)]
        hopeful = [pair for pair in combinations(usable, 2) if _go_together(*pair) and self._bound(*pair) <= self.facts.capacity]
        hopeful.sort(key=lambda pair: sum(move.cost for candidate in pair for move in candidate.moves))
        for first, second in hopeful[:MOST_PAIRS]:
            found = self._joined((first, second))
            if found is not None and found.fits:
                yield found

    def _bound(self, first: Candidate, second: Candidate) -> int:
        """About what a pair needs: both savings taken off; a refusal has no bytes to go by, so that every pair is worth a try."""
        if self.facts.answer.is_refused:
            return 0
        return first.needs + second.needs - self.facts.needs

    def together(self, singles: list[Candidate]) -> Iterator[Candidate]:
        """Moves added one after another, the cheapest first, until the job fits: each only if it saves. One row."""
        chain: tuple[Candidate, ...] = ()
        best: Candidate | None = None
        for single in sorted((s for s in singles if not _buys(s)), key=_effort):
            if not all(_go_together(single, other) for other in chain):
                continue
            found = self._joined((*chain, single))
            if found is None or (best is not None and found.needs >= best.needs and not found.fits):
                continue
            chain, best = (*chain, single), found
            if found.fits:
                break
        if best is not None and best.fits and len(chain) > 1:
            yield best

    def _joined(self, parts: tuple[Candidate, ...]) -> Candidate | None:
        """Candidates together: what is chosen anew first, the others on top of it."""
        ordered = sorted(parts, key=lambda part: not any(move.restarts for move in part.moves))
        job: Job = ordered[0].job
        settings = dict(ordered[0].settings)
        try:
            for part in ordered[1:]:
                job = with_settings(job, part.settings)
                settings |= part.settings
        except BadInput:
            return None
        return self.tried(tuple(move for part in parts for move in part.moves), settings, job, rough=True)

    def row(self, candidate: Candidate) -> Advice:
        """The row of an answer. A layout that was taken is said with it, so that it stays what was estimated."""
        kept = {path: get(job_to_dict(candidate.job), path) for path in LAYOUT if self.facts.taken.get(path, "").startswith("inferred")}
        settings = {**{path: value for path, value in kept.items() if value is not None}, **candidate.settings}
        settings = {path: settings[path] for path in (*candidate.settings, *(p for p in settings if p not in candidate.settings))}
        return Advice(
            settings=settings,
            flags=as_flags(settings, "train" if self.job.train is not None else "serve"),
            saves_bytes=self.facts.needs - candidate.needs,
            needs=candidate.needs,
            fits=candidate.fits,
            verdict=candidate.verdict,
            price="; ".join(dict.fromkeys(self._price(move, settings) for move in candidate.moves)),
            changes_objective=any(move.changes_objective for move in candidate.moves),
        )

    def _price(self, move: Move, settings: Settings) -> str:
        if move.name == "more GPUs":
            return f"{settings['hardware.gpus']:,} GPUs instead of {self.facts.gpus:,}"
        if move.name == "larger GPU":
            return f"another GPU: {settings['hardware.gpu']}"
        return move.price


def _effort(candidate: Candidate) -> tuple[bool, int]:
    return any(move.changes_objective for move in candidate.moves), sum(move.cost for move in candidate.moves)


def _buys(candidate: Candidate) -> bool:
    return any(move in HARDWARE for move in candidate.moves)


def _go_together(first: Candidate, second: Candidate) -> bool:
    """Whether no move of one excludes one of the other, and no key would be set by both."""
    clash = any(a.name in b.excludes or b.name in a.excludes or a.name == b.name for a in first.moves for b in second.moves)
    same = any(first.settings[path] != second.settings[path] for path in first.settings.keys() & second.settings.keys())
    return not clash and not same


def _difference(before: Job, after: Job) -> Settings | None:
    """Key paths that are new or changed; None if one is gone, which a change cannot say."""
    old, new = dict(leaves(job_to_dict(before))), dict(leaves(job_to_dict(after)))
    if old.keys() - new.keys():
        return None
    return {path: value for path, value in new.items() if old.get(path) != value}
