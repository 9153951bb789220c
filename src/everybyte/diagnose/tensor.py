"""Which tensor a requested size is: matrices of the model, and products of tokens with the widths of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from everybyte.basics.record import Record
from everybyte.basics.units import MiB
from everybyte.catalog.models import all_models, model_config

SMALL, LARGE = 1 * MiB, 10 * MiB
SMALL_SEGMENT, LARGE_SEGMENT, ROUND = 2 * MiB, 20 * MiB, 2 * MiB
"""c10/cuda/CUDACachingAllocator.cpp kSmallBuffer, kLargeBuffer, kRoundLarge: what the driver is asked for, which is what the message prints."""
TYPES = {2: "bf16", 4: "fp32", 1: "fp8"}
MOST_ALTERNATIVES = 4


class Candidate(NamedTuple):
    """A tensor that a model has, or makes."""

    name: str
    formula: str
    numbers: str
    bytes: int


class Tensor(Record, frozen=True):
    """The tensor that was asked for; `alternatives` are others of the same size."""

    name: str
    formula: str
    numbers: str
    bytes: int
    error: float
    """Of the size, against the middle of what the message leaves open."""
    alternatives: tuple[str, ...] = ()


def interval(printed: int, *, digits: int) -> tuple[int, int] | None:
    """What the allocator may have been asked for: it rounds up to 2 MiB. None for 2 and 20 MiB, which are whole segments and name no tensor.

    `printed` in bytes, `digits`: bytes of the last printed digit.
    """
    if printed in (SMALL_SEGMENT, LARGE_SEGMENT) or printed < SMALL_SEGMENT:
        return None
    return printed - ROUND - digits, printed + digits


def named(printed: int, candidates: Iterator[Candidate], *, digits: int = MiB // 100) -> Tensor | None:
    """The candidate within what the message leaves open; None where there is none."""
    bounds = interval(printed, digits=digits)
    if bounds is None:
        return None
    hits = [one for one in candidates if bounds[0] < one.bytes <= bounds[1]]
    if not hits:
        return None
    best = hits[0]
    others = tuple(dict.fromkeys(f"{one.name}: {one.numbers}" for one in hits[1:] if one.numbers != best.numbers))[:MOST_ALTERNATIVES]
    return Tensor(best.name, best.formula, best.numbers, best.bytes, round(abs(best.bytes - printed) / printed, 4), others)


def of_config(config: Mapping[str, Any], *, tokens: int | None = None, sequences: int | None = None, tp: int = 1) -> Iterator[Candidate]:
    """The tensors of a network by the numbers of its config.json: weights of one matrix, logits, hidden states, scores."""
    text = config.get("text_config") or config
    h, f, vocab = (int(text.get(key) or 0) for key in ("hidden_size", "intermediate_size", "vocab_size"))
    heads = int(text.get("num_attention_heads") or 0)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head_dim = int(text.get("head_dim") or (h // heads if heads else 0))
    experts, f_e = (
        int(text.get("num_local_experts") or text.get("num_experts") or text.get("n_routed_experts") or 0),
        int(text.get("moe_intermediate_size") or f),
    )
    shapes = [("feed-forward matrix", "f*h", f, h), ("gate and up joined", "2f*h", 2 * f, h), ("embedding or head", "V*h", vocab, h)]
    shapes += [("query or output projection", "A*h", heads * head_dim, h), ("query, key and value joined", "(A+2K)*h", (heads + 2 * kv_heads) * head_dim, h)]
    if experts:
        shapes += [("experts' gate and up of a layer", "E*2f_e*h", experts * 2 * f_e, h), ("experts' down of a layer", "E*f_e*h", experts * f_e, h)]
    for width in (2, 4):
        for degree in dict.fromkeys((1, tp)):
            share = "" if degree == 1 else f"/{degree}"
            for name, formula, rows, columns in shapes:
                if rows and columns and rows * columns % degree == 0:
                    yield Candidate(
                        f"{name}, {TYPES[width]}", f"{formula}{share}*{width}", f"{rows:,}*{columns:,}{share}*{width}", rows * columns // degree * width
                    )
    if tokens:
        for width in (4, 2):
            for degree in dict.fromkeys((1, tp)):
                share = "" if degree == 1 else f"/{degree}"
                yield Candidate(f"logits, {TYPES[width]}", f"T*V{share}*{width}", f"{tokens:,}*{vocab:,}{share}*{width}", tokens * vocab // degree * width)
        for width in (2, 4):
            yield Candidate(f"a feed-forward layer's values, {TYPES[width]}", f"T*f*{width}", f"{tokens:,}*{f:,}*{width}", tokens * f * width)
            yield Candidate(f"hidden states, {TYPES[width]}", f"T*h*{width}", f"{tokens:,}*{h:,}*{width}", tokens * h * width)
            if sequences and heads:
                s = tokens // sequences
                yield Candidate(
                    f"attention scores, {TYPES[width]}", f"B*a*S*S*{width}", f"{sequences}*{heads}*{s:,}*{s:,}*{width}", sequences * heads * s * s * width
                )


@cache
def _configs() -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple((row.name, model_config(row.name)) for row in all_models())


def by_catalogue(printed: int) -> tuple[Tensor, tuple[str, ...]] | None:
    """Without a model: a matrix of those that the catalogue's models have, if all hits have the same shape. The models that have it come along."""
    hits: dict[str, Tensor] = {}
    models: dict[str, list[str]] = {}
    for name, config in _configs():
        found = named(printed, of_config(config))
        if found is not None and found.bytes >= LARGE_SEGMENT:
            hits.setdefault(found.numbers, found)
            models.setdefault(found.numbers, []).append(name)
    if len(hits) != 1:
        return None
    numbers, tensor = next(iter(hits.items()))
    return tensor, tuple(models[numbers])
