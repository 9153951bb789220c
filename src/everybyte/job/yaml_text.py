"""YAML for job files: as PyYAML reads it, but duplicate keys are refused and aliases cannot recurse. Faults carry line and column."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from everybyte.basics.errors import BadInput

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader where PyYAML was built with it: many times faster."""


class _JobLoader(_Loader):  # type: ignore[misc]  # the base is chosen at import
    """Refuses what a mapping of settings cannot mean: the same key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r:.80} is given twice", key.start_mark)
                seen.add(key.value)
        built: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return built


def load(text: str, source: str) -> Any:
    """The value of one YAML document. Raises BadInput with `source:line:column`."""
    try:
        return yaml.load(text, Loader=_JobLoader)  # noqa: S506  # a safe loader by its base class
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise BadInput(place, f"not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise BadInput(source, f"not valid YAML: {' '.join(str(error).split())}") from None
    except (RecursionError, ValueError) as error:
        # ValueError: scalars that look like a date or a number and are none, such as 2024-99-99
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadInput(source, f"not valid YAML: {reason}") from None


def line_of(text: str, path: str) -> int | None:
    """The line (from 1) that holds the key path, or the nearest part of it that is written out; None if nothing of it is."""
    node = yaml.compose(text, Loader=_JobLoader)
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
