"""Models that nobody meant: whatever stands in a shape or a config, the answer is a network or one refusal with its place."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte.basics.errors import BadInput
from everybyte.catalog.models import all_models, model_config
from everybyte.layers.network import Network
from everybyte.models.count import parameter_count
from everybyte.models.registry import supported
from everybyte.models.source import network_of

SHAPES: list[dict[str, Any]] = [
    {"family": "gpt", "layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "vocab": 100, "max_positions": 32},
    {"family": "llama", "layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "kv_heads": 2, "vocab": 100, "sliding_window": 8, "window_pattern": 2},
    {"family": "moe", "layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "vocab": 100, "experts": 4, "top_k": 2, "moe_layers": [1], "mtp": 1},
    {"family": "mla", "layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "vocab": 100, "mla": {"kv_lora": 16, "qk_nope": 8, "qk_rope": 4, "v": 8}},
    {
        "family": "hybrid",
        "layers": 3,
        "hidden": 64,
        "ffn": 128,
        "heads": 4,
        "vocab": 100,
        "pattern": "M*-",
        "ssm": {"heads": 4, "head_dim": 16, "state": 8},
    },
    {"family": "bert", "layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "vocab": 100, "max_positions": 32},
    {"family": "cnn", "image": 32, "stages": [{"channels": 8, "pool": 2}, {"block": "bottleneck", "channels": 16, "blocks": 2, "stride": 2}]},
]
ARCHITECTURES = sorted({row.architecture: row.name for row in all_models() if row.architecture in supported()}.values())
"""One model of the catalogue for each architecture."""
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([0, -1, 2**31, 2**41, -(2**70), 10**400]),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-2, 300), max_size=4),
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a value, but those of long lists' items."""
    found = [here] if here else []
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*here, key))
    return found


def damaged(data: st.DataObject, form: dict[str, Any]) -> dict[str, Any]:
    """A copy of the form with one to three values removed, replaced, or added."""
    form = copy.deepcopy(form)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(places(form) or [("new",)]))
        inner: Any = form
        for key in path:
            inner = inner[key]
        what = data.draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if what == "remove":
            del inner[last]
        elif what == "add" and isinstance(inner, dict):
            inner[data.draw(st.text(max_size=6))] = data.draw(ODD)
        else:
            inner[last] = data.draw(ODD)
    return form


def answered(model: dict[str, Any]) -> None:
    """A network that can be counted, or a refusal with a place and a short message."""
    try:
        network = network_of(model)
    except BadInput as refused:
        assert refused.path
        assert 0 < len(refused.message) < 1500
        assert "\n" not in refused.message
        return
    assert isinstance(network, Network)
    assert parameter_count(network) > 0


@settings(max_examples=300, deadline=None)
@given(data=st.data(), shape=st.sampled_from(SHAPES))
def test_damaged_shapes(data: st.DataObject, shape: dict[str, Any]) -> None:
    """A shape with values removed, replaced or added."""
    answered({"shape": damaged(data, shape)})


@settings(max_examples=500, deadline=None)
@given(data=st.data(), name=st.sampled_from(ARCHITECTURES))
def test_damaged_configs(data: st.DataObject, name: str) -> None:
    """The config of any architecture of the catalogue with values removed, replaced or added."""
    answered({"config": damaged(data, model_config(name))})


@settings(max_examples=100, deadline=None)
@given(value=ODD)
def test_models_of_any_kind(value: Any) -> None:
    """Something that is no mapping at all, or a mapping of nothing known."""
    for model in (value, {"shape": value}, {"config": value}):
        try:
            network_of(model)
        except BadInput as refused:
            assert refused.path.startswith("model") or refused.path
