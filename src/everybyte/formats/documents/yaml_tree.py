"""YAML of strangers: several documents, merge keys, numbers as keys; aliases are counted as they are used, and no tag builds an object."""

from __future__ import annotations

from typing import Any

import yaml

from everybyte.formats.documents.document import Document
from everybyte.formats.source import Source
from everybyte.job.plain import MOST_DEPTH
from everybyte.job.yaml_text import Builder, compose_all

MOST_MERGES = 200
_MERGE = "tag:yaml.org,2002:merge"


def documents(source: Source) -> list[Document]:
    """The documents of a YAML text that are not empty. Raises BadInput with `path:line:column`."""
    found = []
    for node in compose_all(source.text, source.path):
        builder = _TreeBuilder(source.path)
        value = builder.value(node, 0)
        if value is not None:
            found.append(Document(value, builder.lines, source))
    return found


class _TreeBuilder(Builder):
    """Remembers the line of each path."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.lines: dict[str, int] = {}
        self.path = ""
        self.merges = 0

    def value(self, node: yaml.Node | None, depth: int) -> Any:
        """As the base class, with the paths of list items."""
        if not isinstance(node, yaml.SequenceNode) or not node.tag.endswith(":seq"):
            return super().value(node, depth)
        self.left -= 1
        if depth > MOST_DEPTH or self.left < 0:
            return super().value(node, depth)  # which refuses it
        outer, items = self.path, []
        for index, item in enumerate(node.value):
            self.path = f"{outer}[{index}]"
            self.lines.setdefault(self.path, item.start_mark.line + 1)
            items.append(self.value(item, depth + 1))
        self.path = outer
        return items

    def mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        """Keys are text, whatever YAML takes them for; the last of two equal keys holds, as PyYAML has it."""
        built: dict[str, Any] = {}
        outer = self.path
        for key_node, value_node in self._merged(node, depth):
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.fault(key_node, "a key is not text")
            key = key_node.value
            self.path = f"{outer}.{key}" if outer else key
            self.lines[self.path] = key_node.start_mark.line + 1
            built[key] = self.value(value_node, depth + 1)
        self.path = outer
        return built

    def _merged(self, node: yaml.MappingNode, depth: int) -> list[tuple[yaml.Node, yaml.Node]]:
        """The pairs of a mapping, those of its merge keys (`<<: *common`) first, so that its own replace them."""
        own, merged = [], []
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE:
                own.append((key_node, value_node))
                continue
            parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            for part in parts:
                merged += self._merge(part, depth)
        return merged + own

    def _merge(self, part: yaml.Node, depth: int) -> list[tuple[yaml.Node, yaml.Node]]:
        self.merges += 1
        if not isinstance(part, yaml.MappingNode):
            raise self.fault(part, "a merge key (<<) takes a mapping")
        if self.merges > MOST_MERGES or depth > MOST_MERGES:
            raise self.fault(part, f"more than {MOST_MERGES} merge keys: an alias expands without end")
        return self._merged(part, depth + 1)
