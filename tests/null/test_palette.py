"""The palette: seen on its background, told apart in grey and by people who see two primary colours."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest

from everybyte.estimator import estimate
from everybyte.ledger.by_category import by_category, living
from everybyte.ledger.entry import CATEGORIES
from everybyte.report.charts.spec import in_stack_order
from everybyte.report.palette import BACKGROUND, BAD, CATEGORY_COLOUR, FAINT_TEXT, GOOD, STACK, TEXT, Theme, contrast, ink_on

EXAMPLES = sorted(path for path in Path(__file__).parents[2].glob("examples/**/*.yaml") if path.parent.name not in ("configs", "plan"))
"""Jobs that are answered; those of `plan` leave the layout open."""
THEMES: tuple[Theme, ...] = ("light", "dark")
LIGHTER = 7.5
"""Steps of CIE L* between neighbours. One step is what can just be seen; a rim of the background parts them besides."""
APART = 0.09
"""Distance in Oklab between neighbours, for every kind of sight. About 0.02 can just be seen."""
PROTAN = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
DEUTAN = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
"""Sight without the first and without the second kind of cone, in linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)."""


def linear(colour: str) -> tuple[float, ...]:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)


def seen(colour: str, sight: tuple[tuple[float, ...], ...] | None) -> tuple[float, ...]:
    rgb = linear(colour)
    if sight is None:
        return rgb
    return tuple(min(1.0, max(0.0, sum(a * b for a, b in zip(row, rgb, strict=True)))) for row in sight)


def lightness(colour: str) -> float:
    red, green, blue = linear(colour)
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def oklab(rgb: tuple[float, ...]) -> tuple[float, ...]:
    to_cones = ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566), (0.0883024619, 0.2817188376, 0.6299787005))
    to_lab = ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099), (0.0259040371, 0.7827717662, -0.8086757660))
    cones = [max(0.0, sum(a * b for a, b in zip(row, rgb, strict=True))) ** (1 / 3) for row in to_cones]
    return tuple(sum(a * b for a, b in zip(row, cones, strict=True)) for row in to_lab)


def distance(a: str, b: str, sight: tuple[tuple[float, ...], ...] | None) -> float:
    one, other = oklab(seen(a, sight)), oklab(seen(b, sight))
    return sum((x - y) ** 2 for x, y in zip(one, other, strict=True)) ** 0.5


def neighbours() -> set[tuple[str, str]]:
    """Categories that lie side by side in a stack of an example, each of at least a hundredth of it."""
    found = set()
    for path in EXAMPLES:
        answer = estimate(str(path))
        for rank in answer.ranks:
            for parts in (by_category(rank), *(living(rank, phase.name) for phase in rank.phases)):
                whole = sum(parts.values())
                found |= set(pairwise(c for c in in_stack_order(parts) if 100 * parts[c] >= whole))
    return found


NEIGHBOURS = sorted(neighbours())
LARGE = {*combinations(("parameter", "gradient", "optimizer_state", "activation"), 2), *combinations(("parameter", "kv_cache", "activation"), 2)}
"""What most of a device is made of, in training and in serving: these differ wherever they stand."""
PAIRS = sorted({*NEIGHBOURS, *LARGE})


def test_every_category_has_a_colour_and_a_place_in_the_stack() -> None:
    """A new category cannot be forgotten."""
    assert set(STACK) == set(CATEGORIES) == set(CATEGORY_COLOUR)
    assert len(STACK) == len(CATEGORIES)


@pytest.mark.parametrize("theme", THEMES)
def test_colours_stand_out_from_the_background(theme: Theme) -> None:
    """Areas have a contrast of 3:1, text one of 4.5:1, also on the areas (WCAG 2.2, 1.4.11 and 1.4.3)."""
    paper = BACKGROUND.on(theme)
    assert {c: contrast(colour.on(theme), paper) for c, colour in CATEGORY_COLOUR.items() if contrast(colour.on(theme), paper) < 3} == {}
    assert min(contrast(text.on(theme), paper) for text in (TEXT, FAINT_TEXT, GOOD, BAD)) >= 4.5
    assert min(contrast(ink_on(colour.on(theme)), colour.on(theme)) for colour in CATEGORY_COLOUR.values()) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_neighbours_differ_in_grey(pair: tuple[str, str], theme: Theme) -> None:
    """Categories side by side in a picture of an example differ in lightness."""
    a, b = (lightness(CATEGORY_COLOUR[c].on(theme)) for c in pair)  # type: ignore[index]
    assert abs(a - b) >= LIGHTER


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", [None, PROTAN, DEUTAN], ids=["three cones", "protanopia", "deuteranopia"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_neighbours_differ_for_every_sight(pair: tuple[str, str], sight: tuple[tuple[float, ...], ...] | None, theme: Theme) -> None:
    """Categories side by side stay apart without the first or the second kind of cone."""
    a, b = (CATEGORY_COLOUR[c].on(theme) for c in pair)  # type: ignore[index]
    assert distance(a, b, sight) >= APART
