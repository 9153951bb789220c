"""Takes off what people copy along with a command: the prompt, the fences of Markdown, the `!` of a notebook."""

from __future__ import annotations

import re

from everybyte.formats.source import Source

_PROMPT = re.compile(r"^[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:[\w.-]+@[\w.-]+[^\n$#]{0,80}[$#]|\$|%)[ \t]+(?=\S)", re.MULTILINE)
_POWERSHELL = re.compile(r"^[ \t]*PS(?: [A-Za-z]:[^>\n]*)?>[ \t]*", re.MULTILINE)
_CMD = re.compile(r"^[A-Z]:\\[^>\n]*>[ \t]*(?=\S)", re.MULTILINE)
_NOTEBOOK = re.compile(r"^[ \t]*!(?=[A-Za-z./])", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_CELL = re.compile(r"^%%(?:bash|sh|shell|script[^\n]*|writefile[^\n]*)?$", re.MULTILINE)


def tidy(source: Source) -> Source:
    """The source without them; its lines keep their numbers."""
    text = source.text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    text = text.replace("\u00a0", " ")
    for pattern in (_FENCE, _CELL, _PROMPT, _POWERSHELL, _CMD, _NOTEBOOK):
        text = pattern.sub("", text)
    return source if text == source.text else source._replace(text=text)
