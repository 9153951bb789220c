"""What kind of model a network is, as far as a first answer asks."""

from __future__ import annotations

from everybyte.layers.network import Network

ENCODERS = ("bert", "roberta", "clip")
"""Families that no text is generated with."""


def is_image(network: Network) -> bool:
    """Whether it is a part of a pipeline that makes images or video."""
    return bool(network.tokens) and not network.vocab and network.family != "vit"


def generates_text(network: Network) -> bool:
    """Whether it is a decoder of text, with or without towers for images."""
    return bool(network.vocab) and network.family not in ENCODERS and not any(tower.name == "encoder" for tower in network.towers)
