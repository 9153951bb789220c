"""Names and shapes of what we declare, against transformers on the meta device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from decoders import FAMILIES, Shape, config_of, network_of, shape_for

from everybyte.layers.network import Network, hidden_dims, write
from everybyte.layers.recording.size import TOKENS
from everybyte.layers.recording.tape import Parameter
from everybyte.models.count import DECLARE, parameter_count

SHAPE = Shape(b=1, s=8, h=96, a=8, k=2, d=16, f=176)


def declared(network: Network) -> Counter[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every parameter of our network, tied ones left out."""
    found: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def note(layer: Any, dims: Any, prefix: str = "") -> None:
        for parameter in write(layer, DECLARE, dims, network.dtype).parameters:
            if not (parameter.tied or parameter.buffer):
                found[prefix + parameter.name, _shape(parameter)] += 1

    dims = hidden_dims(network.hidden)
    note(network.stem, (TOKENS,))
    for run in network.runs:
        for index in range(run.first, run.first + run.count):
            note(run.layer, dims, f"{run.prefix}.{index}.")
    note(network.tail, dims)
    note(network.head, network.head_dims or dims)
    return found


def _shape(parameter: Parameter) -> tuple[int, ...]:
    return tuple(dim.size for dim in parameter.dims)


def real(config: Any) -> Counter[tuple[str, tuple[int, ...]]]:
    """The same of transformers' model."""
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    return Counter((name, tuple(parameter.shape)) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "mixtral"])
def test_names_and_shapes(family: str) -> None:
    """Our parameters have the names and shapes of transformers' state_dict, and their number is the same."""
    config = config_of(family, shape_for(family, SHAPE), layers=4, attention="eager")
    ours, theirs = declared(network_of(config)), real(config)
    if FAMILIES[family].model.startswith("GPT2"):
        ours, theirs = (Counter((name, tuple(sorted(shape))) for name, shape in found) for found in (ours, theirs))
    assert not ours - theirs
    assert not theirs - ours


@pytest.mark.parametrize("family", FAMILIES)
def test_number_of_parameters(family: str) -> None:
    """We count as many parameters as the model has, tied ones once."""
    config = config_of(family, shape_for(family, SHAPE), layers=4, attention="eager")
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    assert parameter_count(network_of(config)) == sum(parameter.numel() for parameter in model.parameters())
