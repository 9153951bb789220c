"""YAML for job files. libyaml parses; the values are built here, so that duplicate keys, aliases without end and tags that run code have no way in.

PyYAML's own constructor takes the last of two equal keys, expands merge keys without limit, and fails in many ways on wrong tags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from everybyte.basics.errors import BadInput
from everybyte.job.plain import MOST_DEPTH, MOST_VALUES

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it: many times faster."""

_TAG = "tag:yaml.org,2002:"


def load(text: str, source: str) -> Any:
    """The value of one YAML document. Raises BadInput with `source:line:column`."""
    return Builder(source).value(compose(text, source), 0)


def line_of(text: str, path: str) -> int | None:
    """The line (from 1) that holds the key path, or the nearest part of it that is written out; None if nothing of it is."""
    node = yaml.compose(text, Loader=_Loader)
    line = None
    rest = path.replace("[", ".").replace("]", "")
    while rest and isinstance(node, yaml.MappingNode):
        found = next(((key, value) for key, value in node.value if rest == key.value or rest.startswith(f"{key.value}.")), None)
        if found is None:
            break
        key, node = found
        line = key.start_mark.line + 1
        rest = rest[len(key.value) + 1 :]
    return line


def compose(text: str, source: str) -> yaml.Node | None:
    """The tree of one YAML document; None for an empty text. Raises BadInput with `source:line:column`."""
    nodes = compose_all(text, source)
    if len(nodes) > 1:
        mark = nodes[1].start_mark
        raise BadInput(f"{source}:{mark.line + 1}:{mark.column + 1}", "not valid YAML: expected a single document, and another document begins here")
    return nodes[0] if nodes else None


def compose_all(text: str, source: str) -> list[yaml.Node]:
    """The trees of all YAML documents of a text. Raises BadInput with `source:line:column`."""
    try:
        return list(yaml.compose_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise BadInput(place, f"not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(source, f"not valid YAML: {' '.join(str(error).split())}") from None


class Builder:
    """Turns nodes into plain data. Counts each use of an alias, so that nine short lines cannot stand for a billion values."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.left = MOST_VALUES
        scalars = yaml.constructor.SafeConstructor()
        self.scalar: dict[str, Callable[[Any], Any]] = {
            _TAG + "null": lambda _: None,
            _TAG + "str": lambda node: node.value,
            _TAG + "timestamp": lambda node: node.value,  # a version such as 2026-01-15 is text
            _TAG + "bool": scalars.construct_yaml_bool,
            _TAG + "int": scalars.construct_yaml_int,
            _TAG + "float": scalars.construct_yaml_float,
        }

    def value(self, node: yaml.Node | None, depth: int) -> Any:
        """The value of a node at a depth of nesting."""
        if node is None:
            return None
        self.left -= 1
        if self.left < 0:
            raise self.fault(node, f"more than {MOST_VALUES:,} values (aliases counted each time they are used)")
        if depth > MOST_DEPTH:
            raise self.fault(node, f"nested more than {MOST_DEPTH} levels deep")
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, depth + 1) for item in node.value]
        build = self.scalar.get(node.tag) if isinstance(node, yaml.ScalarNode) else None
        if build is None:
            kind = node.tag.removeprefix(_TAG)
            raise self.fault(node, f"a job holds no {kind}; if it is meant as text, put it in quotes")
        try:
            return build(node)
        except (ValueError, KeyError, IndexError):
            raise self.fault(node, f"{node.value!r:.80} is not of its tag {node.tag.removeprefix(_TAG)}") from None

    def mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        """The mapping of a node; keys are text and none comes twice."""
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                raise self.fault(key_node, "merge keys (<<) are not part of a job; write the keys out")
            if key_node.tag != _TAG + "str":
                raise self.fault(key_node, "a key is not text; put it in quotes")
            if key_node.value in built:
                raise self.fault(key_node, f"the key {key_node.value!r:.80} is given twice")
            built[key_node.value] = self.value(value_node, depth + 1)
        return built

    def fault(self, node: yaml.Node, message: str) -> BadInput:
        """A refusal at the place of a node."""
        mark = node.start_mark
        return BadInput(f"{self.source}:{mark.line + 1}:{mark.column + 1}", message)
