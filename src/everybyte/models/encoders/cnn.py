"""`model: {shape: {family: cnn, ...}}`: a convolution network by its stages, in maps of N·C·H·W numbers."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.errors import BadInput
from everybyte.layers.common.conv import pixels
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Network, Run
from everybyte.layers.recording.size import SEQUENCES, Dim, Dims
from everybyte.layers.vision.convnet import ConvBlock, Dense, Pooled, Residual
from everybyte.models.fields import Fields
from everybyte.models.patterns import runs_of

KEYS = ("family", "image", "channels", "stages", "norm", "classes", "dense", "dropout")
STAGE_KEYS = ("block", "channels", "width", "blocks", "kernel", "stride", "pool", "groups")
MOST_STAGES, MOST_BLOCKS = 64, 1000
EXPANSION = 4
"""A bottleneck's channels over its width, where the width is left out."""


def network_of_stages(values: object, path: str = "model.shape") -> Network:
    """The network of a cnn shape. Its tokens are the pixels of the image.

    `image`: side, or [height, width]; `channels` of the image (3); `stages`: of each the `block` (plain, basic or bottleneck), `channels`, `blocks`
    (1), `kernel` (3) of plain ones, `stride` (1) of the first block, `pool` (1) behind the last, `width` and `groups` of bottlenecks; `norm`
    (batchnorm or none); `dense`: widths of linear layers on the flattened map, else its mean is taken; `classes` (1000). Raises BadInput with the
    key's path.
    """
    f = Fields(values, path, KEYS)
    height, width = _image(f)
    norm = f.word("norm", ("batchnorm", "none"), "batchnorm")
    channels, down, rate = f.integer("channels", 3), 1, _rate(f)
    runs: list[Run] = []
    pooled = False
    for number, stage in enumerate(f.parts("stages", STAGE_KEYS, MOST_STAGES)):
        found, channels, down = _stage(stage, f"stage{number}", channels, down, norm, first=not runs, pooled=pooled)
        runs.extend(found)
        pooled = stage.integer("pool", 1) > 1
        if height % down or width % down:
            raise BadInput(f"{path}.stages[{number}]", f"divides the sides by {down} in all, and the image of {height}x{width} cannot be divided so")
    last: Dims = (pixels(down), Dim("C", channels))
    widths = f.integers("dense", least=1) or ()
    features = widths[-1] if widths else channels
    flat = channels * (height // down) * (width // down)
    layer = Dense(flat, widths, rate, pooled) if widths else Pooled()
    runs.append(Run("pooled", -1, 1, layer, last))
    return Network(
        "",
        "cnn",
        features,
        0,
        tuple(runs),
        None,
        None,
        Head(features, f.integer("classes", 1000), tied=False, leaf="fc", bias=True, upcast=False),
        head_dims=(SEQUENCES, Dim("h", features)),
        tokens=height * width,
    )


def _stage(stage: Fields, name: str, inside: int, down: int, norm: str, *, first: bool, pooled: bool) -> tuple[list[Run], int, int]:
    """(runs, channels behind them, down behind them): the first block changes the shape, the others are equal."""
    kind = stage.word("block", ("plain", "basic", "bottleneck"), "plain")
    channels, blocks = stage.integer("channels"), stage.integer("blocks", 1)
    if blocks > MOST_BLOCKS:
        raise BadInput(f"{stage.path}.blocks", f"must be at most {MOST_BLOCKS}, not {blocks}")
    stride, pool = stage.integer("stride", 1), stage.integer("pool", 1)
    if kind != "plain" and (pool > 1 or first):
        raise BadInput(stage.path, "a residual stage follows a plain one, and has a stride in place of a pool")
    groups = stage.integer("groups", 1)
    width = stage.integer("width", max(channels // EXPANSION, 1) if kind == "bottleneck" else channels)
    if width % groups:
        raise BadInput(f"{stage.path}.groups", f"must divide width ({width}), and {groups} does not")
    kernel, after = stage.integer("kernel", 3), down * stride

    def block(index: int) -> ConvBlock | Residual:
        if kind == "plain":
            return ConvBlock(channels, kernel, norm, after, pool if index == blocks - 1 else 1, input=first and index == 0, pooled=pooled and index == 0)
        return Residual(kind, channels if index else inside, width, channels, after, 1 if index else stride, norm, groups, pooled=pooled and index == 0)

    runs = [Run(name, 0, 1, block(0), (pixels(down), Dim("C", inside)))]
    rest = runs_of(name, [block(index) for index in range(1, blocks)])
    runs += [replace(run, first=run.first + 1, dims=(pixels(after), Dim("C", channels))) for run in rest]
    return runs, channels, after * pool


def _image(f: Fields) -> tuple[int, int]:
    value = f.values.get("image")
    if isinstance(value, list | tuple):
        sides = f.integers("image", least=1) or ()
        if len(sides) != 2:
            raise BadInput(f"{f.path}.image", f"must be a side or [height, width], not {list(sides)!r}")
        return sides[0], sides[1]
    side = f.integer("image")
    return side, side


def _rate(f: Fields) -> float:
    value = f.values.get("dropout", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise BadInput(f"{f.path}.dropout", f"must be a rate from 0 to below 1, not {value!r}")
    return float(value)
