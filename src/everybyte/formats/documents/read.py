"""Chooses the reader of a document: by the ending of its name, else by how it begins."""

from __future__ import annotations

import re

from everybyte.formats.documents.document import Document
from everybyte.formats.source import Source

_TOML_TABLE = re.compile(r"\[{1,2}[\w.\"' -]+\]{1,2}\s*(#.*)?")


def documents_of(source: Source) -> list[Document]:
    """The documents of a text. Raises BadInput with `path:line:column`."""
    kind = language(source)
    if kind == "json":
        from everybyte.formats.documents import json_tree as reader
    elif kind == "toml":
        from everybyte.formats.documents import toml_tree as reader  # type: ignore[no-redef]  # three modules with the same function
    else:
        from everybyte.formats.documents import yaml_tree as reader  # type: ignore[no-redef]
    return reader.documents(source)


def language(source: Source) -> str:
    """`json`, `toml` or `yaml`."""
    if source.ending in (".json", ".toml"):
        return source.ending[1:]
    if source.ending in (".yaml", ".yml"):
        return "yaml"
    start = source.text.lstrip()
    if start.startswith('{"') or re.match(r"\{\s*(\"|\})", start):
        return "json"
    first = next((line for line in start.split("\n") if line.strip() and not line.lstrip().startswith("#")), "")
    return "toml" if _TOML_TABLE.fullmatch(first.strip()) else "yaml"
