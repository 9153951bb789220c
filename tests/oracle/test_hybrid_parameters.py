"""Families with experts, state spaces or linear attention declare the parameters and buffers of transformers' classes, by name and size."""

from __future__ import annotations

import pytest
import torch
from hybrids import CASES, HEADLESS, class_of, config_of

from everybyte.basics.dtypes import BF16
from everybyte.layers.network import Network, hidden_dims, write
from everybyte.layers.recording.size import TOKENS
from everybyte.models.count import DECLARE, parts
from everybyte.models.registry import build


def declared_names(network: Network) -> tuple[dict[str, int], dict[str, int]]:
    """Full name -> number of elements, of parameters and of buffers."""
    parameters: dict[str, int] = {}
    buffers: dict[str, int] = {}
    runs = {run.label: run for run in network.runs}
    for part in parts(network):
        run = runs.get(part.label)
        prefixes = [f"{run.prefix}.{index}." for index in range(run.first, run.first + run.count)] if run else [""]
        for parameter in write(part.layer, DECLARE, part.dims, BF16).parameters:
            for prefix in prefixes:
                if not parameter.tied:
                    (buffers if parameter.buffer else parameters)[prefix + parameter.name] = parameter.numel
    return parameters, buffers


@pytest.mark.parametrize("name", CASES)
def test_names_and_sizes_are_those_of_the_class(name: str) -> None:
    """Every parameter of two layers has the name and the number of elements that transformers gives it, and none is missing."""
    config = config_of(name, 2)
    with torch.device("meta"):
        model = class_of(config)(config)
    prefix = "model." if config.architectures[0] in HEADLESS else ""
    theirs = {prefix + key: p.numel() for key, p in model.named_parameters()}
    ours, buffers = declared_names(build({**config.to_dict(), "architectures": config.architectures}))
    if prefix:
        del ours["lm_head.weight"]
    assert ours == theirs
    kept = {prefix + key for key, _ in model.named_buffers() if "inv_freq" not in key and "mup_vector" not in key}
    assert set(buffers) == kept


def test_the_hidden_states_of_streams_have_their_width() -> None:
    """DeepSeek-V4's blocks pass on all residual streams, and the head is given one."""
    network = build({**config_of("deepseek-v4-sliding", 2).to_dict(), "architectures": ["DeepseekV4ForCausalLM"]})
    assert network.hidden == 3 * 48
    assert network.head_dims == hidden_dims(48)
    assert next(part.dims for part in parts(network) if part.label == "embed") == (TOKENS,)
