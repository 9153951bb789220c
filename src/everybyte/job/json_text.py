"""JSON for job files: duplicate keys and NaN are refused."""

from __future__ import annotations

import json
from typing import Any

from everybyte.basics.errors import BadInput


def load(text: str, source: str) -> Any:
    """The value of a JSON text. Raises BadInput with `source:line:column`."""

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for i, key in enumerate(keys) if key in keys[:i])
            raise BadInput(source, f"the key {twice!r:.80} is given twice")
        return built

    def constant(word: str) -> None:
        raise BadInput(source, f"{word} is not a number of JSON")

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise BadInput(f"{source}:{error.lineno}:{error.colno}", f"not valid JSON: {error.msg}") from None
    except RecursionError:
        raise BadInput(source, "not valid JSON: nested too deeply") from None
    except ValueError:  # Python refuses to convert thousands of digits
        raise BadInput(source, "not valid JSON: a number has too many digits") from None
