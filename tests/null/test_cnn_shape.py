"""`model: {shape: {family: cnn, ...}}`: convolution networks by their stages."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte.basics.errors import BadInput
from everybyte.layers.network import write
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Batch, Point
from everybyte.models.count import parameter_count, parts
from everybyte.models.shape import network_of_shape

STEM = {"channels": 64, "kernel": 7, "stride": 2, "pool": 2}


def resnet(block: str, counts: tuple[int, ...], **more: int) -> dict[str, Any]:
    """A ResNet as a shape."""
    wide = 4 if block == "bottleneck" else 1
    stages = [
        {"block": block, "channels": 64 * wide * 2**i, "blocks": count, "stride": 2 if i else 1, **{key: value * 2**i for key, value in more.items()}}
        for i, count in enumerate(counts)
    ]
    return {"family": "cnn", "image": 224, "stages": [STEM, *stages]}


VGG16 = {
    "family": "cnn",
    "image": 224,
    "norm": "none",
    "dense": [4096, 4096],
    "dropout": 0.5,
    "stages": [{"channels": c, "blocks": b, "pool": 2} for c, b in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))],
}


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [(resnet("basic", (2, 2, 2, 2)), 11689512), (resnet("bottleneck", (3, 4, 6, 3)), 25557032), (VGG16, 138357544)],
    ids=["ResNet-18", "ResNet-50", "VGG-16"],
)
def test_known_networks_as_shapes(shape: dict[str, Any], parameters: int) -> None:
    """ResNet-18, ResNet-50 and VGG-16 have the parameters that torchvision publishes with their weights."""
    assert parameter_count(network_of_shape(shape)) == parameters


def test_maps_shrink_with_the_strides() -> None:
    """N·C·H·W: the last stage of a ResNet-50 works on maps of 7x7 for an image of 224x224."""
    network = network_of_shape(resnet("bottleneck", (3, 4, 6, 3)))
    last = list(parts(network))[-2]
    point = Point(Batch(2, network.tokens, network.tokens))
    pooled = write(last.layer, Setup(grad=False), last.dims, Setup().weights)
    assert network.tokens == 224 * 224
    assert max(i.size.at(point) for i in pooled.tally.forward) == 2 * 2048 * (7 * 7 + 1) * 2


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"image": 0}, "model.shape.image", "whole number"),
        ({"image": [224]}, "model.shape.image", "a side or"),
        ({"stages": []}, "model.shape.stages", "list of 1"),
        ({"stages": [{"chanels": 3}]}, "model.shape.stages[0].chanels", "did you mean channels"),
        ({"stages": [{"block": "basic", "channels": 8}]}, "model.shape.stages[0]", "follows a plain one"),
        ({"stages": [{"channels": 8, "stride": 3}]}, "model.shape.stages[0]", "cannot be divided"),
        ({"stages": [STEM, {"block": "bottleneck", "channels": 64, "groups": 5}]}, "model.shape.stages[1].groups", "must divide"),
        ({"dropout": 1}, "model.shape.dropout", "rate"),
        ({"layers": 3}, "model.shape.layers", "not known"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(change: dict[str, Any], place: str, words: str) -> None:
    """Unknown keys, impossible strides and groups name their stage."""
    with pytest.raises(BadInput) as caught:
        network_of_shape({**resnet("bottleneck", (3, 4, 6, 3)), **change})
    assert caught.value.path == place
    assert words in caught.value.message
