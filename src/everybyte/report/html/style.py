"""The style of the report: its sheet, with the colours of the palette for a light and a dark page."""

from __future__ import annotations

from importlib.resources import files

from everybyte.report.palette import BACKGROUND, BAD, CATEGORY_COLOUR, FAINT_TEXT, FREE, GOOD, LINE, LINK, TEXT, Colours, Theme

_NAMED: dict[str, Colours] = {
    "background": BACKGROUND,
    "text": TEXT,
    "faint": FAINT_TEXT,
    "line": LINE,
    "free": FREE,
    "good": GOOD,
    "bad": BAD,
    "link": LINK,
    **{str(category): colours for category, colours in CATEGORY_COLOUR.items()},
}


def style() -> str:
    """The whole sheet. Paper is always light."""
    sheet = files("everybyte.report.html").joinpath("style.css").read_text(encoding="utf-8")
    swatches = "\n".join(f".swatch.{category} {{ background: var(--{category}); }}" for category in CATEGORY_COLOUR)
    dark = f"@media screen and (prefers-color-scheme: dark) {{ {_variables('dark')} }}"
    return f"{_variables('light')}\n{dark}\n{sheet}{swatches}\n"


def _variables(theme: Theme) -> str:
    inner = " ".join(f"--{name}: {colours.on(theme)};" for name, colours in _NAMED.items())
    return f":root {{ {inner} }}"
