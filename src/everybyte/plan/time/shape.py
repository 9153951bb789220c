"""A network as the clock sees it: its matrix products by shape, its attention, its caches. Read off the declared parameters, so that every family has it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from everybyte.basics.record import Record
from everybyte.layers.network import Declaration, Embedding, Network, Run, declare, hidden_dims
from everybyte.layers.recording.tape import Parameter
from everybyte.models.count import DECLARE

EXPERTS = "E"
"""The letter of the number of experts."""


class Product(Record, frozen=True):
    """`out` values from `inner` of each token. `split`: which of the two tensor parallelism divides, or none."""

    out: int
    inner: int
    split: str
    fused: int = 1
    """Stored matrices that read the same input and run as one product."""

    @property
    def parameters(self) -> int:
        """Weights of it."""
        return self.out * self.inner


class LayerShape(Record, frozen=True):
    """One block. Widths are values a token; `heads` 0: no attention."""

    hidden: int
    mixer: tuple[Product, ...]
    mlp: tuple[Product, ...]
    """Of every token: a dense MLP, or the shared experts of a mixture and its router."""
    experts: tuple[Product, ...]
    """Of one routed expert."""
    expert_count: int
    top_k: int
    heads: int
    query: int
    """All heads' queries."""
    value: int
    """All heads' values."""
    kv: int
    """Keys and values of a token as attention sees them in training."""
    cached: int
    """Values of the cache a token; of latent attention the latent and its rotary key."""
    latent: bool
    window: int
    state: int
    """Width of a recurrent mixer, 0 for attention."""
    sinks: bool
    """Attention with a learned sink a head, which common kernels lacked at first."""

    @property
    def mixer_parameters(self) -> int:
        """Weights of attention or of a recurrent mixer."""
        return sum(p.parameters for p in self.mixer)

    @property
    def mlp_parameters(self) -> int:
        """Weights that every token meets behind the mixer."""
        return sum(p.parameters for p in self.mlp)

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert."""
        return sum(p.parameters for p in self.experts)

    @property
    def head_dim(self) -> float:
        """Width of a query."""
        return self.query / self.heads if self.heads else 0.0

    @property
    def mlp_out(self) -> int:
        """Width between the two products of the MLP, both halves of a gated one."""
        return sum(p.out for p in self.mlp if p.split == "out")

    @property
    def mlp_inner(self) -> int:
        """Width of what the MLP's last product reads."""
        return sum(p.inner for p in self.mlp if p.split == "inner")

    @property
    def expert_inner(self) -> int:
        """The same of one routed expert."""
        return sum(p.inner for p in self.experts if p.split == "inner")


class NetworkShape(Record, frozen=True):
    """The blocks with their counts, and the head."""

    layers: tuple[tuple[LayerShape, int], ...]
    hidden: int
    vocab: int
    tied: bool
    mtp: int

    @property
    def count(self) -> int:
        """Blocks."""
        return sum(count for _, count in self.layers)

    @property
    def dense_parameters(self) -> int:
        """Weights of the blocks without routed experts."""
        return sum(count * (layer.mixer_parameters + layer.mlp_parameters) for layer, count in self.layers)

    @property
    def expert_parameters(self) -> int:
        """Weights of all routed experts."""
        return sum(count * layer.expert_count * layer.expert_parameters for layer, count in self.layers)

    @property
    def parameters(self) -> int:
        """Weights of all matrices, the embedding and the head among them."""
        return self.dense_parameters + self.expert_parameters + self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> int:
        """Weights that a token meets in products, the head among them."""
        routed = sum(count * layer.top_k * layer.expert_parameters for layer, count in self.layers)
        return self.dense_parameters + routed + self.vocab * self.hidden

    def scores_flops(self, length: int, *, causal: bool = True) -> float:
        """FLOPs of attention scores and values a token, forward, in a sequence of `length`."""
        share = 0.5 if causal else 1.0
        return sum(count * 2.0 * (layer.query + layer.value) * length * share for layer, count in self.layers if layer.heads)

    def training_flops(self, length: int, *, is_frozen: bool = False) -> float:
        """Model FLOPs a token of a training step: 6 a weight that a token meets, 4 of a frozen base, which has no weight gradient; and attention with the
        causal half counted once."""
        return (4.0 if is_frozen else 6.0) * self.active_parameters + 3 * self.scores_flops(length)


@lru_cache(maxsize=128)
def shape_of(network: Network) -> NetworkShape | None:
    """The network's shape. None where it is no language model: images and encoders have other clocks."""
    if not isinstance(network.stem, Embedding) or not network.vocab or network.head is None:
        return None
    runs = network.runs[: len(network.runs) - 1] if network.mtp else network.runs
    layers = tuple((_layer(run, network.hidden), run.count) for run in runs)
    return NetworkShape(layers=layers, hidden=network.hidden, vocab=network.vocab, tied=network.tied, mtp=network.mtp)


def _layer(run: Run, hidden: int) -> LayerShape:
    found = declare(run.layer, DECLARE.of_blocks(run.prefix), run.dims or hidden_dims(hidden))
    letters: dict[str, int] = dict(found.letters)
    mixers = tuple({cache.place for cache in found.caches})
    weights = [p for p in found.parameters if _is_product(p)]
    of_mixer = [p for p in weights if p.name.startswith(mixers)] if mixers else []
    others = [p for p in weights if p not in of_mixer]
    experts = [p for p in others if p.share != (1, 1)]
    first = experts[0] if experts else None
    query = letters.get("A", 0)
    heads = letters.get("a", 0)
    cached = _cached(found)
    latent = any(cache.name == "latent" for cache in found.caches)
    return LayerShape(
        hidden=hidden,
        mixer=_products(of_mixer),
        mlp=_products([p for p in others if p.share == (1, 1)]),
        experts=_products(experts),
        expert_count=first.share[1] if first else 0,
        top_k=first.share[0] if first else 0,
        heads=heads if cached else 0,
        query=query,
        value=letters.get("Av", query),
        kv=2 * query if latent else cached,
        cached=cached,
        latent=latent,
        window=max((cache.window for cache in found.caches), default=0),
        state=max((cache.dims[0].size for cache in found.caches if cache.kind == "state"), default=0),
        sinks=any(p.name.endswith("sinks") for p in found.parameters),
    )


def _cached(found: Declaration) -> int:
    total = 0
    for cache in found.caches:
        if cache.kind == "kv":
            width = 1
            for dim in cache.dims:
                width *= dim.size
            total += width // max(1, cache.every)
    return total


def _is_product(p: Parameter) -> bool:
    """Whether the parameter is a matrix that tokens are multiplied with, or one such a routed expert."""
    return not p.buffer and len(_matrix(p)) == 2 and p.name.endswith(("weight", "proj"))


def _matrix(p: Parameter) -> tuple[Any, ...]:
    return p.dims[1:] if p.dims and p.dims[0].letter == EXPERTS and p.share != (1, 1) else p.dims


def _whole(letter: str) -> bool:
    """Widths that every tensor-parallel rank has in full: the hidden state, ranks of latents, the router."""
    return letter in ("h", EXPERTS, "1") or letter.startswith(("r", "(r"))


def _products(weights: list[Parameter]) -> tuple[Product, ...]:
    """The products; matrices that read the hidden state are run as one (query, key and value; gate and up)."""
    merged: dict[tuple[int, str, bool], list[int]] = {}
    found = []
    for p in weights:
        out, inner = _matrix(p)
        split = "out" if not _whole(out.letter) else "inner" if not _whole(inner.letter) else "none"
        if split == "out" and inner.letter == "h":
            merged.setdefault((inner.size, split, p.share != (1, 1)), []).append(out.size)
        else:
            found.append(Product(out.size, inner.size, split))
    joined = [Product(sum(outs), inner, split, len(outs)) for (inner, split, _), outs in merged.items()]
    return (*joined, *found)
