"""How many tokens leave a rank for experts and come to its own."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.engines.megatron.sizes import Split, mixtures_of
from everybyte.engines.megatron.style import Style
from everybyte.layers.network import Network
from everybyte.layers.recording.size import Axis, Dim


class Routing(Record, frozen=True):
    """Routing of each token to `top_k` of so many experts.

    A rank sends n·top_k tokens (n of its own, n/t under sequence parallelism), and as many come back to its experts if all get equally many. In the
    worst case all tokens of the ranks that exchange them choose experts of this rank: n·ep·min(top_k, experts/ep). A capacity factor c bounds what one
    rank sends to one expert by ceil(n·top_k·c/experts) (moe/moe_utils.py get_capacity, apply_router_token_dropping).
    """

    experts: int
    top_k: int
    split: Split
    style: Style

    @property
    def ways(self) -> int:
        """Parts into which sequence parallelism cuts the tokens."""
        return self.split.tp if self.split.sp else 1

    @property
    def fills(self) -> bool:
        """Whether every expert gets as many tokens as it takes: it is padded, or takes fewer than its balanced share."""
        part, whole = self.style.capacity
        return bool(part) and (self.style.pads_experts or part < whole)

    @property
    def worst(self) -> Fraction:
        """Tokens that come to this rank in the worst case, of each token that a rank has."""
        ep = self.split.ep
        most = Fraction(ep * min(self.top_k, self.experts // ep))
        return min(most, self.bound) if self.style.capacity[0] else most

    @property
    def bound(self) -> Fraction:
        """The same as the capacity factor allows it, before it is rounded up."""
        return self.top_k * Fraction(*self.style.capacity)

    @property
    def may_be_uneven(self) -> bool:
        """Whether the number of tokens that come to this rank is not known."""
        return not self.style.forces_balance and not self.fills and self.worst > self.top_k

    @property
    def sent(self) -> Dim:
        """Tokens that this rank sends, each as often as it has experts."""
        return self._slots(1) if self.fills else self.split.routed(self.top_k)

    @property
    def arrived(self) -> Dim:
        """Tokens that come to this rank's experts."""
        etp = self.split.etp
        if self.fills:
            return self._slots(etp)
        if not self.may_be_uneven:
            return self.split.routed(self.top_k, etp)
        worst = self.worst / self.ways
        multiple = self.experts if self.worst == self.bound else 0
        return Dim("N", etp, (Axis("R", multiple, (self.top_k, self.ways), (worst.numerator, worst.denominator)),))

    def _slots(self, ranks: int) -> Dim:
        """What all experts take from so many ranks."""
        share = self.bound / self.ways
        return Dim("slots", self.experts * ranks, (Axis("r", 0, (share.numerator, share.denominator * self.experts)),))


@lru_cache(maxsize=4096)
def may_be_uneven(network: Network, split: Split, style: Style) -> bool:
    """Whether the tokens that come to a rank's experts are not known for some mixture of a network."""
    return any(Routing(mixture.experts, mixture.top_k, split, style).may_be_uneven for mixture in mixtures_of(network))
