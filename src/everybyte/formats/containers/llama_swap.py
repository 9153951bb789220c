"""llama-swap: every model is a command of its own, with macros."""

from __future__ import annotations

import re

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.place import Given
from everybyte.formats.shell.script import commands_of_shell

_MOST_MACROS = 8


def commands_of(document: Document, context: Context) -> list[Command]:
    """The commands of all models."""
    models = document.get("models")
    macros = document.get("macros")
    texts = {str(name): str(text) for name, text in macros.items()} if isinstance(macros, dict) else {}
    found: list[Command] = []
    for name, model in models.items() if isinstance(models, dict) else ():
        if not isinstance(model, dict) or not isinstance(model.get("cmd"), str):
            continue
        own = model.get("macros")
        here = {**texts, **({str(key): str(text) for key, text in own.items()} if isinstance(own, dict) else {}), "MODEL_ID": str(name), "PORT": "5800"}
        place = document.place(f"models.{name}.cmd")
        text = _one_line(_expanded(model["cmd"], here))
        line = (place.line or 1) + (1 if "\n" in model["cmd"].strip() else 0)
        environment = _environment(document, str(name), model.get("env"))
        found += commands_of_shell(document.source._replace(text=text), context, environment=environment, first_line=line)
    return found


def _environment(document: Document, name: str, value: object) -> dict[str, Given]:
    found = {}
    for i, item in enumerate(value if isinstance(value, list) else []):
        key, equals, text = str(item).partition("=")
        if equals:
            found[key] = Given(text, document.place(f"models.{name}.env[{i}]")._replace(flag=key))
    return found


def _expanded(text: str, macros: dict[str, str]) -> str:
    """The text with `${macro}` put in; macros may use others."""
    for _ in range(_MOST_MACROS):
        following = re.sub(r"\$\{([\w-]+)\}", lambda match: macros.get(match[1], match.group()), text)
        if following == text:
            break
        text = following[: 1 << 16]
    return text


def _one_line(text: str) -> str:
    """The lines of a command joined by continuation, without those that are comments."""
    lines = ["" if line.lstrip().startswith("#") else line.rstrip().removesuffix("\\") for line in text.rstrip().split("\n")]
    return " \\\n".join(lines) + "\n"
