"""Which part of each weight and cache one rank of a serving engine holds: heads and widths are divided, single heads and norms repeated.

The letters of a shape say what may be divided: A, K are heads times their width, f feed-forward, V the vocabulary, E experts, the sizes of state-space
and linear-attention mixers likewise. What has none of these letters (norms, routers, latents of MLA, indexers) lies whole on every rank. The same rule
in vllm/model_executor/layers/linear.py (ColumnParallelLinear, RowParallelLinear, QKVParallelLinear), sglang/srt/layers/linear.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from msgspec.structs import replace

from everybyte.basics.errors import BadInput
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div, round_up
from everybyte.layers.network import Network, declare
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Cache, Parameter
from everybyte.models.count import DECLARE, parts
from everybyte.models.widths import widths_of
from everybyte.rules.accounting.formula_text import Known
from everybyte.rules.step.cache import Store
from everybyte.rules.step.persistent_state import Group

HEADS = frozenset({"A", "Av", "2A", "3A", "a", "a·(d_n+d_v)", "g·r_o"})
"""Query heads and what grows with them."""
KV_HEADS = frozenset({"K", "Kv"})
"""Heads of keys and values: a rank holds at least one."""
MIXER = frozenset({"C", "d_i", "2d_i", "(2d_i+2gN+a)", "v", "2v", "(2K+2V)", "V"})
"""Widths of state-space and linear-attention layers; in embedding and head V is the vocabulary."""
FEED_FORWARD = frozenset({"f", "2f", "Ef"})
JOINED = "(A+2K)"
"""Queries, keys and values of one projection."""


class Cut(Record, frozen=True):
    """How many ranks divide what. One of everything: the whole network."""

    dense: int = 1
    """Ranks that divide feed-forward layers, shared experts among them."""
    heads: int = 1
    """Ranks that divide attention and mixers; fewer than `dense` under data-parallel attention."""
    experts: int = 1
    """Ranks over which whole experts are dealt out (expert parallel)."""
    expert_width: int = 1
    """Ranks that divide the width of each expert."""
    embedding: int = 1
    head: int = 1
    """Ranks that divide the rows of the token embedding, and of the head."""
    padded_to: int = 64
    """The vocabulary is rounded up to a multiple of this before it is divided."""

    def local(self, whole: tuple[Group, ...], setup: Setup) -> tuple[Group, ...]:
        """The groups as they lie on this rank."""
        return tuple(_local(self, group) for group in whole)

    def dim(self, dim: Dim, sizes: Sizes) -> Dim:
        """One dimension of a weight or cache of a piece with these sizes, on this rank."""
        size = self._size(dim.letter, dim.size, sizes)
        return dim if size == dim.size else Dim(dim.letter, size, dim.axes)

    def _size(self, letter: str, size: int, sizes: Sizes) -> int:
        if letter in KV_HEADS:
            return self._kv(size, sizes)
        if letter == JOINED:
            return ceil_div(sizes.queries, self.heads) + 2 * self._kv((size - sizes.queries) // 2, sizes)
        if letter == "V" and sizes.rows:
            return ceil_div(round_up(size, self.padded_to), self.embedding if sizes.rows == "embedding" else self.head)
        if letter in HEADS or letter in MIXER:
            return ceil_div(size, self.heads)
        if letter in FEED_FORWARD:
            return ceil_div(size, self.expert_width if sizes.routed else self.dense)
        return ceil_div(size, self.experts) if letter == "E" and sizes.routed else size

    def _kv(self, size: int, sizes: Sizes) -> int:
        """Keys or values: whole heads, at least one."""
        heads = sizes.kv_heads
        return size // heads * max(heads // self.heads, 1) if heads else ceil_div(size, self.heads)


class Sizes(NamedTuple):
    """What the cut of one parameter depends on beside its own shape."""

    queries: int = 0
    """A = a·d."""
    kv_heads: int = 0
    routed: bool = False
    """A weight of routed experts."""
    rows: Literal["", "embedding", "head"] = ""
    """Its rows are the vocabulary; a mixer's own width is called V too."""


def sizes_of(letters: Known) -> Sizes:
    """Query width and KV heads of a piece, from the sizes behind its letters: d = A/a, k = K/d."""
    known = dict(letters)
    queries, heads, keys = known.get("A", 0), known.get("a", 0), known.get("K", 0)
    width = queries // heads if heads else 0
    return Sizes(queries, keys // width if width and keys % width == 0 else 0)


@lru_cache(maxsize=65536)
def _local(cut: Cut, group: Group) -> Group:
    if group.part.endswith((".stem", ".tail")):
        return group  # patch embeddings and projectors of a tower
    sizes = sizes_of(group.letters)
    rows: Literal["", "embedding", "head"] = "embedding" if group.part == "embed" else "head" if group.part == "head" else ""
    members = tuple(_parameter(cut, member, sizes._replace(rows=rows)) for member in group.members)
    letters = tuple((letter, cut.dim(Dim(letter, size), sizes._replace(rows=rows)).size) for letter, size in group.letters)
    return group._replace(members=members, letters=letters)


def _parameter(cut: Cut, parameter: Parameter, sizes: Sizes) -> Parameter:
    routed = ".experts." in f".{parameter.name}"
    return replace(parameter, dims=tuple(cut.dim(dim, sizes._replace(routed=routed)) for dim in parameter.dims))


@lru_cache(maxsize=256)
def cut_stores(network: Network, cut: Cut) -> tuple[Store, ...]:
    """What each piece remembers on this rank: whole KV heads, latents whole, states by their heads. Serving engines keep of a causal convolution what
    the next token still needs, one column less than the kernel is wide (vllm mamba_utils.py, sglang mamba_utils.py, llama.cpp llama-hparams.cpp)."""
    found = []
    for part in parts(network):
        declaration = declare(part.layer, DECLARE, part.dims)
        if declaration.caches:
            sizes = sizes_of(declaration.letters)
            found.append(Store(part.label, part.copies, tuple(_cache(cut, cache, sizes) for cache in declaration.caches)))
    return tuple(found)


def _cache(cut: Cut, cache: Cache, sizes: Sizes) -> Cache:
    dims = tuple(cut.dim(dim, sizes) for dim in cache.dims)
    if cache.kind == "state" and dims[-1].letter == "k":
        dims = (*dims[:-1], Dim("(k-1)", dims[-1].size - 1))
    return replace(cache, dims=dims)


@lru_cache(maxsize=256)
def stage_network(network: Network, stage: int, stages: int, counts: tuple[int, ...]) -> Network:
    """The network of one pipeline stage: `counts` layers on each, the embedding with the first, final norm and head with the last."""
    first = sum(counts[:stage])
    runs, start = [], 0
    for run in network.runs:
        low, high = max(first, start), min(first + counts[stage], start + run.count)
        if low < high:
            runs.append(replace(run, first=run.first if run.first < 0 else run.first + low - start, count=high - low))
        start += run.count
    is_first, is_last = stage == 0, stage == stages - 1
    return replace(
        network,
        runs=tuple(runs),
        mtp=0,
        towers=network.towers if is_first else (),
        stem=network.stem if is_first else None,
        tail=network.tail if is_last else None,
        head=network.head if is_last else None,
    )


def stages_of(network: Network, stages: int) -> list[Network]:
    """The network of each pipeline stage: layers evenly, the last stages one more (vllm distributed/utils.py, sglang likewise: get_pp_indices)."""
    if stages == 1:
        return [network]
    each, more = divmod(network.layers, stages)
    counts = tuple(each + (i >= stages - more) for i in range(stages))
    return [stage_network(network, i, stages, counts) for i in range(stages)]


def refuse_odd(network: Network, heads: int, path: str = "serve.mesh.tp") -> None:
    """Raises BadInput where attention heads cannot be divided evenly: engines refuse to start then."""
    for queries, _ in widths_of(network).heads:
        if queries % heads:
            raise BadInput(path, f"{heads} does not divide the {queries} attention heads of {network.name}")
