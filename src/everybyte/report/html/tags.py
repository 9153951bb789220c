"""Text that is HTML already, and elements made of it. Whatever is not HTML yet is escaped, so a name can hold any character."""

from __future__ import annotations

from html import escape

from everybyte.report.language import said

EMPTY = frozenset({"meta", "br", "hr", "link"})
"""Elements without an end."""


class Html(str):
    """Text that is HTML: it goes into an element as it is."""

    __slots__ = ()


def element(tag: str, /, *children: object, **attributes: object) -> Html:
    """`<tag attributes>children</tag>`. Children that are no Html are escaped; an attribute that is None is left out, a trailing underscore of its name
    is dropped (`class_`), and other underscores become hyphens (`aria_label`)."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' if value is not True else f" {key}"
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    start = f"<{tag}{written}>"
    return Html(start) if tag in EMPTY else Html(f"{start}{joined(*children)}</{tag}>")


def joined(*children: object) -> Html:
    """The children one behind the other."""
    return Html("".join(child if isinstance(child, Html) else escape(said(str(child))) for child in children))


def table(titles: list[str], rows: list[list[object]], *, class_: str | None = None, caption: str | None = None) -> Html:
    """A table with a row of headings; the first cell of a row is its heading."""
    head = element("tr", *(element("th", title, scope="col") for title in titles))
    body = [element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows]
    named = element("caption", caption) if caption else Html()
    inner = element("table", named, element("thead", head), element("tbody", *body), class_=class_)
    return element("div", inner, class_="wide")


def description_list(items: list[tuple[object, object]]) -> Html:
    """Terms and what they mean."""
    return element("dl", *(joined(element("dt", term), element("dd", meaning)) for term, meaning in items))


def bullets(lines: list[object], **attributes: object) -> Html:
    """An unordered list."""
    return element("ul", *(element("li", line) for line in lines), **attributes)
