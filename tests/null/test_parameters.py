"""Parameters of every model of the catalogue are exact."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from everybyte.catalog.models import ModelRow, all_models
from everybyte.models.count import active_count, declared, parameter_count, parts
from everybyte.models.registry import MODEL_TYPES, supported
from everybyte.models.source import network_of

DIFFERENCES = Path(__file__).parent / "data" / "parameter_differences.csv"
"""Models whose count differs from the catalogue's on purpose: name, difference, reason."""


UNCOUNTED = Path(__file__).parent / "data" / "parameters_without_reference.csv"
"""Models that nobody has counted on the meta device: name, our count, what it rests on."""


def differences() -> dict[str, int]:
    """Name -> our count less the catalogue's."""
    with DIFFERENCES.open(encoding="utf-8", newline="") as lines:
        return {row["name"]: int(row["difference"]) for row in csv.DictReader(lines)}


COUNTED = [row for row in all_models() if row.params_meta is not None]


@pytest.mark.parametrize("row", COUNTED, ids=[row.name for row in COUNTED])
def test_parameters_equal_those_on_the_meta_device(row: ModelRow) -> None:
    """Layer by layer, tied weights once, buffers apart: equal to the parameter, or different by what the list of differences explains."""
    assert parameter_count(network_of(row.name)) - (row.params_meta or 0) == differences().get(row.name, 0)


def test_every_difference_has_a_reason_and_a_model() -> None:
    """The list of differences names models of the catalogue, and why."""
    with DIFFERENCES.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            assert row["name"] in {counted.name for counted in COUNTED}
            assert len(row["reason"]) > 20


@pytest.mark.parametrize("row", [row for row in COUNTED if row.active_params_meta is not None], ids=lambda row: row.name)
def test_parameters_that_one_token_uses(row: ModelRow) -> None:
    """Routed experts count top_k of all."""
    assert active_count(network_of(row.name)) == row.active_params_meta


def test_every_architecture_of_the_catalogue_is_supported() -> None:
    """No row of the catalogue is refused, and every short name of a model type leads to a family."""
    assert {row.architecture for row in all_models()} <= set(supported())
    assert set(MODEL_TYPES.values()) <= set(supported())


BUILT = [row for row in all_models() if row.architecture in set(supported())]


@pytest.mark.parametrize("row", [row for row in BUILT if row.params_untied is not None], ids=lambda row: row.name)
def test_tied_weights_count_once(row: ModelRow) -> None:
    """A head that shares the embedding's weight adds V·h to an untied count, and nothing to ours."""
    network = network_of(row.name)
    shared = network.vocab * (network.head.hidden if network.head is not None else network.hidden) if network.tied else 0
    assert parameter_count(network) + shared == row.params_untied


@pytest.mark.parametrize("row", BUILT, ids=[row.name for row in BUILT])
def test_layers_add_up(row: ModelRow) -> None:
    """Embedding, every block and head make up the whole, once each; buffers are apart."""
    network = network_of(row.name)
    pieces: dict[str, int] = {}
    for entry in declared(network):
        if not entry.parameter.buffer:
            pieces[entry.part] = pieces.get(entry.part, 0) + entry.copies * entry.parameter.numel
    assert sum(pieces.values()) == parameter_count(network)
    assert sum(part.copies for part in parts(network) if not part.tower and part.label in {run.label for run in network.runs}) == network.layers
    assert all(entry.parameter.trainable is False for entry in declared(network) if entry.parameter.buffer)


@pytest.mark.parametrize("row", [row for row in BUILT if row.params_meta is None], ids=lambda row: row.name)
def test_models_without_a_reference_are_listed(row: ModelRow) -> None:
    """A model that transformers has no class for is built too; what our count rests on is written down."""
    with UNCOUNTED.open(encoding="utf-8", newline="") as lines:
        known = {entry["name"]: entry for entry in csv.DictReader(lines)}
    assert parameter_count(network_of(row.name)) == int(known[row.name]["parameters"])
    assert len(known[row.name]["reason"]) > 20
