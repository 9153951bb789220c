"""A job on every accelerator of the catalogue: how many are needed, how fast they are, and what they cost to rent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import Gpu, all_gpus
from everybyte.catalog.instances import all_instances
from everybyte.catalog.search import matches
from everybyte.job import Job
from everybyte.ledger.answer import Answer
from everybyte.plan.hardware.holding import MOST, Holding, Least, fewest, vendors_of
from everybyte.plan.hardware.offers import COMPARED, Offer, cheapest_spot, offers

Order = Literal["price", "cost", "speed", "gpus"]
HOUR_S = 3600
MILLION = 10**6


class Row(NamedTuple):
    """One kind of GPU that holds the job. Prices are for all of its GPUs together."""

    holding: Holding
    offers: tuple[Offer, ...]
    tokens_per_s: float | None
    """Of all GPUs together: trained tokens, or tokens generated under the load that the job states. None where the speed is not known."""

    @property
    def offer(self) -> Offer | None:
        """The cheapest on demand."""
        return self.offers[0] if self.offers and self.offers[0].per_hour is not None else None

    @property
    def spot(self) -> Offer | None:
        """The cheapest on the spot market."""
        return cheapest_spot(self.offers)

    @property
    def usd_per_hour(self) -> float | None:
        """The on-demand price where it is in the currency that is compared."""
        return self.offer.per_hour if self.offer is not None and self.offer.instance.currency == COMPARED else None

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Rent divided by speed. None where one of them is not known."""
        if self.usd_per_hour is None or not self.tokens_per_s:
            return None
        return self.usd_per_hour / (self.tokens_per_s * HOUR_S) * MILLION


class Survey(NamedTuple):
    """`rows` hold the job, in the order asked for; of the others each reason with the GPUs it is said of."""

    job: Job
    rows: tuple[Row, ...]
    too_small: tuple[Gpu, ...]
    """Not even `most` of them hold the job."""
    refused: dict[str, tuple[str, ...]]
    """Why a job is not answered on some GPUs -> their names."""
    not_supported: dict[str, int]
    """Vendor on whose accelerators the framework or engine does not run, or is not answered -> how many of them are in the catalogue."""
    most: int


def survey(
    job: Job,
    words: Sequence[str] = (),
    providers: Sequence[str] = (),
    order: Order = "price",
    most: int = MOST,
    tell: Callable[[str], None] = lambda name: None,
) -> Survey:
    """Each GPU of the catalogue that matches all `words` (all of them, without one). With `providers` only GPUs that these rent out.

    `tell` hears of each GPU before it is tried. Raises BadInput where nothing matches, and where every GPU refuses the job.
    """
    asked = _asked(words, providers)
    vendors = vendors_of(job)
    held: list[Row] = []
    small: list[Gpu] = []
    refused: dict[str, list[str]] = {}
    least = Least(job)
    for gpu in asked:
        if gpu.vendor not in vendors:
            continue
        tell(gpu.name)
        holding = fewest(job, gpu, most, least)
        if holding.answer is not None and holding.gpus is not None:
            held.append(Row(holding, tuple(offers(gpu, holding.gpus, providers)), tokens_per_s(holding.answer, holding.gpus)))
        elif holding.refused:
            refused.setdefault(holding.refused, []).append(gpu.name)
        else:
            small.append(gpu)
    if not held and not small and refused:
        raise BadInput("job", next(iter(refused)))
    others = Counter(gpu.vendor for gpu in asked if gpu.vendor not in vendors)
    return Survey(job, tuple(sorted(held, key=KEYS[order])), tuple(small), {why: tuple(names) for why, names in refused.items()}, dict(others), most)


def _asked(words: Sequence[str], providers: Sequence[str]) -> Sequence[Gpu]:
    known = {instance.provider.casefold(): instance.provider for instance in all_instances()}
    unknown = [name for name in providers if name.casefold() not in known]
    if unknown:
        raise BadInput("--provider", f"unknown provider {unknown[0]!r}; the catalogue has {', '.join(sorted(known.values()))}")
    found = matches(all_gpus(), words, lambda gpu: (gpu.name, *gpu.aliases, gpu.vendor, gpu.segment))
    if providers:
        wanted = {name.casefold() for name in providers}
        rented = {instance.gpu.name for instance in all_instances() if instance.provider.casefold() in wanted}
        found = [gpu for gpu in found if gpu.name in rented]
    if not found:
        raise BadInput("--gpu", f"no GPU of the catalogue matches {' '.join(words)!r}; `everybyte gpus` lists them")
    return found


def tokens_per_s(answer: Answer, gpus: int) -> float | None:
    """Tokens a second of all GPUs together: what the job trains, or what a server generates under the load that the job states, else with a full cache."""
    trained = answer.figures.get("tokens_per_s_per_gpu")
    if trained is not None:
        return trained * gpus
    return answer.figures.get("decode.batch_tokens_per_s") or answer.figures.get("decode.tokens_per_s")


def _price(row: Row) -> tuple[bool, float, bool, float, int, str]:
    """By price on demand; what has no price by its number of GPUs and their memory."""
    usd, other = row.usd_per_hour, row.offer
    return usd is None, usd or 0.0, other is None, -(row.tokens_per_s or 0.0), (row.holding.gpus or 0) * row.holding.gpu.capacity, row.holding.gpu.name


def _cost(row: Row) -> tuple[bool, float, str]:
    return row.usd_per_million_tokens is None, row.usd_per_million_tokens or 0.0, row.holding.gpu.name


def _speed(row: Row) -> tuple[float, str]:
    return -(row.tokens_per_s or 0.0), row.holding.gpu.name


def _gpus(row: Row) -> tuple[int, int, str]:
    return row.holding.gpus or 0, row.holding.gpu.capacity, row.holding.gpu.name


KEYS: dict[Order, Callable[[Row], tuple[object, ...]]] = {"price": _price, "cost": _cost, "speed": _speed, "gpus": _gpus}
