"""What SGLang keeps beside a checkpoint's weights once they are loaded."""

from __future__ import annotations

from functools import lru_cache

from everybyte.basics.units import ceil_div
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.network import Network, declare
from everybyte.ledger.build import Line, plain
from everybyte.models.count import DECLARE, parts
from everybyte.rules.serving.tensor_parallel import Cut

ABSORBED = "sglang models/deepseek_v2.py post_load_weights: w_kc and w_vc, 16-bit copies of kv_b_proj beside it"
ROTARY = "sglang layers/rotary_embedding.py _compute_cos_sin_cache: cos and sin of every position, in fp32, one table for all layers of a kind"


@lru_cache(maxsize=256)
def absorbed_lines(network: Network, cut: Cut) -> tuple[Line, ...]:
    """What MLA keeps beside its projections for attention over latents."""
    lines = []
    for part in parts(network):
        for parameter in declare(part.layer, DECLARE, part.dims).parameters:
            if parameter.name.endswith("kv_b_proj.weight"):
                rows, width = (dim.size for dim in parameter.dims)
                each = ceil_div(rows, cut.heads)
                text = plain("L·2·rows·r_kv", L=part.copies, rows=each, r_kv=width)
                lines.append(Line(f"weights/{part.label}/absorbed", "parameter", 2 * part.copies * each * width, text, ABSORBED))
    return tuple(lines)


@lru_cache(maxsize=256)
def rotary_lines(network: Network) -> tuple[Line, ...]:
    """One table for each width of what turns in a head; every rank has it whole."""
    widths: dict[int, None] = {}
    for part in parts(network):
        letters = dict(declare(part.layer, DECLARE, part.dims).letters)
        mixer = getattr(part.layer, "mixer", None)
        turns = not isinstance(mixer, Attention) or mixer.rotary is not None
        if not part.tower and part.path and turns and "A" in letters and "a" in letters:
            widths[letters.get("d_r", letters["A"] // letters["a"])] = None
    positions = network.max_positions
    return tuple(
        Line(f"weights/rotary/{width}", "parameter", 4 * positions * width, plain("4·p·d", p=positions, d=width), ROTARY, "formula")
        for width in widths
        if positions
    )
