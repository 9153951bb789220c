"""The one palette of all pictures. A category has two colours of the same hue: one for white paper, one for a dark page.

Chosen so that each colour stands out from its background (3:1), and so that categories which lie side by side in a picture differ in lightness: they can
be told apart in grey print and by people who see two primary colours (tests/null/test_palette.py holds the thresholds).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from everybyte.ledger.entry import Category

Theme = Literal["light", "dark"]
"""What a picture is drawn on."""


class Colours(NamedTuple):
    """One thing's colour on white paper and on a dark page."""

    light: str
    dark: str

    def on(self, theme: Theme) -> str:
        """The colour for a theme."""
        return self.light if theme == "light" else self.dark


CATEGORY_COLOUR: dict[Category, Colours] = {
    "parameter": Colours("#2b54b4", "#6791ed"),
    "gradient": Colours("#0f8193", "#6cc4d5"),
    "optimizer_state": Colours("#7a0263", "#a95391"),
    "kv_cache": Colours("#004b13", "#437f49"),
    "state": Colours("#5f7505", "#9db463"),
    "activation": Colours("#d57e02", "#ffd5b0"),
    "autograd_detail": Colours("#494004", "#817208"),
    "temporary": Colours("#9a204f", "#ce6b88"),
    "input": Colours("#787136", "#b6b182"),
    "comm_buffer": Colours("#3c3484", "#6c6baf"),
    "workspace": Colours("#3b655a", "#7c9e95"),
    "graph_pool": Colours("#236b98", "#74a9d0"),
    "fragmentation": Colours("#60636a", "#9d9fa5"),
    "context": Colours("#7b7f88", "#bfc2ca"),
    "unknown": Colours("#d91f37", "#feadaa"),
}

STACK: tuple[Category, ...] = (
    "parameter",
    "gradient",
    "optimizer_state",
    "kv_cache",
    "state",
    "activation",
    "autograd_detail",
    "temporary",
    "input",
    "comm_buffer",
    "workspace",
    "graph_pool",
    "unknown",
    "fragmentation",
    "context",
)
"""The order of categories in a stack, from what stays to what comes and goes; what no tensor holds is last."""

BACKGROUND = Colours("#ffffff", "#12161d")
TEXT = Colours("#1b1f27", "#e8eaee")
FAINT_TEXT = Colours("#565c68", "#a7adb9")
LINE = Colours("#d5d8de", "#39404c")
"""Axes, grids and frames."""
FREE = Colours("#f0f1f4", "#1e242e")
"""Room that nothing takes."""
CAPACITY = Colours("#111318", "#f5f6f8")
"""The line at what the device holds."""
GOOD = Colours("#17703c", "#63cf8f")
BAD = Colours("#b4161b", "#ff8078")
LINK = Colours("#1d4fb3", "#8fb4ff")

KINDS: tuple[Colours, ...] = (
    Colours("#034395", "#5b93e6"),
    Colours("#8b4707", "#e08a3c"),
    Colours("#208158", "#5db78a"),
    Colours("#a752a1", "#e086d8"),
    Colours("#bb8f1e", "#ffd886"),
    Colours("#2ea1ad", "#82edf9"),
    Colours("#c15459", "#fd8a8b"),
    Colours("#5a5e6a", "#a7adb9"),
)
"""Colours of kinds of run, each of which has a shape of its own too; the last is for all others."""


def ink_on(colour: str) -> str:
    """Black or white, whichever stands out more from a colour."""
    return "#ffffff" if contrast(colour, "#ffffff") >= contrast(colour, "#000000") else "#000000"


def mixed(colour: str, other: str, share: float) -> str:
    """`share` of a colour and the rest of another."""
    both = ((int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in both)


def contrast(a: str, b: str) -> float:
    """The contrast of two colours as WCAG 2 counts it, 1 to 21."""
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (IEC 61966-2-1, and the weights of Rec. 709)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
