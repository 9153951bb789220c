"""The block pool of vLLM: how layers of different kinds share it, how many blocks a request takes, what the log says of it
(v1/core/kv_cache_utils.py, v1/kv_cache_interface.py)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec.structs import replace

from everybyte.basics.errors import Unsupported
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div

Kind = Literal["full", "latent", "window", "chunk", "state", "cross"]
SAME_SLOTS = ("full", "latent")
"""Kinds that hold every token of a sequence: layers of them share one group whatever their widths."""


class Spec(Record, frozen=True):
    """The cache of one layer on one rank."""

    kind: Kind
    block: int
    """Tokens of a page; of a state, tokens between two of them that are kept."""
    bytes: int
    """Of one token; of a state, all of it."""
    window: int = 0
    """Of a window or chunk."""
    states: int = 0
    """Pages of a state that one request holds; 0: one every `block` tokens."""
    padded: int = 0
    """Bytes of a page, where it is made longer than what it holds."""
    width: str = ""
    """Tells layers apart whose pages are equally long by chance (heads × head size)."""

    @property
    def page(self) -> int:
        """Bytes of a page."""
        return self.padded or self.held

    @property
    def held(self) -> int:
        """Bytes of a page that hold something."""
        return self.bytes if self.kind == "state" else self.block * self.bytes


class Demand(NamedTuple):
    """What decides how many pages a request takes."""

    context: int
    """max_model_len."""
    in_flight: int
    """Tokens that may be computed and not yet freed: the batches under way."""
    ranks: int = 1
    """Decode context parallel: ranks that share a sequence's tokens."""
    memory: int = 0
    """Encoder positions."""


def pages_of_request(spec: Spec, demand: Demand) -> int:
    """Pages of one layer for a request of the full context (max_memory_usage_bytes / page_size_bytes)."""
    context = demand.context
    if spec.kind == "state":
        return spec.states or ceil_div(context, spec.block)
    if spec.kind == "cross":
        return ceil_div(demand.memory, spec.block)
    if spec.kind == "window":  # one page more, as a window need not begin with a page
        return ceil_div(min(spec.window - 1 + demand.in_flight, context), spec.block) + 1
    if spec.kind == "chunk":
        return ceil_div(min(spec.window + demand.in_flight, context), spec.block)
    return ceil_div(ceil_div(context, demand.ranks), spec.block)


class Group(NamedTuple):
    """Layers that share a block table."""

    spec: Spec
    layers: int


class Plan(Record, frozen=True):
    """How a network's layers share the pool."""

    groups: tuple[Group, ...]
    block_bytes: int
    """Bytes that one block takes on this rank, over all layers that share it."""
    layers: tuple[Spec, ...] = ()
    """The layers one by one, where they are of several kinds."""

    @property
    def block_size(self) -> int:
        """Tokens of a block: of latents where there are some, else the smallest of the groups that hold tokens."""
        for kinds in (("latent",), ("full", "window", "chunk", "cross"), ("state",)):
            found = [g.spec.block for g in self.groups if g.spec.kind in kinds]
            if found:
                return min(found)
        return 0

    def blocks(self, pool: int) -> int:
        """Blocks that fit into a pool."""
        return max(pool // self.block_bytes, 0) if self.block_bytes else 1

    def request(self, demand: Demand) -> int:
        """Blocks of one request of the full context."""
        return sum(pages_of_request(group.spec, demand) for group in self.groups)

    def needed(self, demand: Demand) -> int:
        """Bytes of the pool that such a request takes."""
        return self.request(demand) * self.block_bytes

    def longest(self, pool: int, demand: Demand) -> int:
        """The longest context of which one request fits into a pool, 0 if none does."""
        low, high = 0, demand.context
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.needed(demand._replace(context=middle)) <= pool else (low, middle - 1)
        return low


def plan_of(specs: tuple[Spec, ...], *, padding: float, joined: bool) -> Plan:
    """Groups of layers. `padding`: up to which ratio the kinds' numbers of layers are made equal by padding instead of dividing the larger; `joined`:
    windows are given room for the whole context, as before groups existed."""
    if joined and any(spec.kind in SAME_SLOTS for spec in specs):
        specs = tuple(replace(spec, kind="full", window=0) if spec.kind in ("window", "chunk") else spec for spec in specs)
    kinds = {(spec.kind, spec.window, spec.block) for spec in specs}
    if not specs:
        return Plan((), 0)
    if len(set(specs)) == 1 or len({("full" if k in SAME_SLOTS else k, w, b) for k, w, b in kinds}) == 1:
        return Plan((Group(specs[0], len(specs)),), sum(spec.page for spec in specs))
    equal: dict[Spec, int] = {}
    for spec in unified(specs):
        equal[spec] = equal.get(spec, 0) + 1
    least, most = min(equal.values()), max(equal.values())
    size = most if most < least * padding else least
    groups = [Group(spec, size) for spec, layers in equal.items() for _ in range(ceil_div(layers, size))]
    return Plan(tuple(groups), size * groups[0].spec.page, specs)


def unified(specs: tuple[Spec, ...]) -> tuple[Spec, ...]:
    """The specs with pages of equal length: shorter ones take more tokens (unify_kv_cache_spec_page_size), states are padded."""
    longest = max(spec.page for spec in specs)
    return tuple(_stretched(spec, longest) for spec in specs)


def _stretched(spec: Spec, page: int) -> Spec:
    if spec.page == page:
        return spec
    if spec.kind == "state":
        return replace(spec, padded=page)
    if page % spec.page:
        raise Unsupported("serve.block_size", f"vLLM cannot make pages of {spec.page:,} and {page:,} bytes equally long: it refuses to start")
    return replace(spec, block=spec.block * (page // spec.page))
