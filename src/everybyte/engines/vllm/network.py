"""What vLLM asks of a network: the settings of its layers, how many blocks each pipeline stage has, fields of its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.basics.record import Record
from everybyte.catalog.models import model_config
from everybyte.job import InlineModel, Job
from everybyte.models.source import checkpoint_of


def inside(layer: Any) -> Iterator[Record]:
    """A layer and all layers that it is made of."""
    if isinstance(layer, Record):
        yield layer
        for name in layer.__struct_fields__:
            yield from inside(getattr(layer, name))


@lru_cache(maxsize=4096)
def first_with(layer: Any, *names: str) -> Any:
    """The first layer inside that has all these settings, or None."""
    return next((found for found in inside(layer) if all(hasattr(found, name) for name in names)), None)


def fields_of(job: Job) -> Mapping[str, Any]:
    """Fields of the model's config, those of its text part before the others; none for a shape."""
    model = job.model
    if isinstance(model, InlineModel):
        found: Mapping[str, Any] = model.config or {}
    else:
        stored = checkpoint_of(model)
        found = (stored.config or {}) if stored is not None else model_config(model)
    text = found.get("text_config")
    return {**found, **text} if isinstance(text, Mapping) else found


def stage_sizes(layers: int, stages: int, asked: object = None) -> tuple[int, ...]:
    """Blocks of each pipeline stage: equal, what is left over goes to the stages before the last, from the back (distributed/utils.py get_pp_indices)."""
    if isinstance(asked, str):
        found = tuple(int(part) for part in asked.split(",") if part.strip().isdigit())
        if len(found) != stages or sum(found) != layers:
            raise BadInput("serve.extra.VLLM_PP_LAYER_PARTITION", f"must be {stages} numbers that sum up to {layers}, not {asked!r}")
        return found
    if layers < stages:
        raise BadInput("serve.mesh.pp", f"is {stages}, more than the {layers} layers")
    sizes = [layers // stages] * stages
    for index in range(2, layers % stages + 2):
        sizes[-index] += 1
    return tuple(sizes)
