"""Tables of positions that old modeling files of transformers keep in every layer."""

from __future__ import annotations

from functools import lru_cache

from everybyte.basics.dtypes import DType
from everybyte.catalog.releases import Release
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.models.count import parts

SOURCE = "transformers modeling files before 4.48: _set_cos_sin_cache in every layer's rotary_emb, buffers for max_position_embeddings"


def table_lines(network: Network, release: Release, kind: DType) -> tuple[Line, ...]:
    """cos and sin of every position, one pair a layer, where the release's file of this family has them."""
    return _tables(network, kind) if release.has(f"tables_in_layers_{network.family}") else ()


@lru_cache(maxsize=64)
def _tables(network: Network, kind: DType) -> tuple[Line, ...]:
    widths: dict[int, int] = {}
    for part in parts(network):
        mixer = getattr(part.layer, "mixer", None)
        if not part.tower and isinstance(mixer, Attention) and mixer.rotary is not None:
            width = mixer.rotary.dim or mixer.head_dim
            widths[width] = widths.get(width, 0) + part.copies
    positions = network.max_positions
    lines = []
    for width, layers in widths.items():
        text = plain(f"L·2·{kind.nbytes(1)}·p·d", L=layers, p=positions, d=width)
        lines.append(Line(f"weights/rotary/{width}", "parameter", layers * 2 * kind.nbytes(positions * width), text, SOURCE, "formula"))
    return tuple(line for line in lines if line.bytes)
