"""JSON out of untrusted files: bounded in size and depth, one value a key, no NaN."""

from __future__ import annotations

import json
import re
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.checkpoint.source import Source
from everybyte.checkpoint.stored import shown

CONFIG_LIMIT = 16 * 2**20
"""Bytes of the largest config.json that is read; published ones have some kB."""

INDEX_LIMIT = 100_000_000
"""Bytes of the largest safetensors index or header: the limit of the format itself, MAX_HEADER_SIZE in safetensors src/tensor.rs."""

_MOST_BRACKETS = 2_000_000
"""Lists and objects in one file; the largest header, of half a million tensors, has three for each. It bounds the memory that a hostile file can take."""

_WHOLE_DIGITS = 20  # 2^64 has 20 digits: no size or count needs more
_HALF_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(source: Source, limit: int) -> dict[str, Any]:
    """The JSON object in `source`. Raises BadInput naming file and position."""
    if source.size > limit:
        raise BadInput(source.place, f"has {source.size:,} bytes, more than the {limit:,} that such a file may have")
    return parse_json(source.read(0, source.size), source.place)


def parse_json(data: bytes, place: str) -> dict[str, Any]:
    """The JSON object in `data`. Raises BadInput: not UTF-8, not JSON, not an object, too deep, a key twice, NaN, a number beyond all sizes."""
    if data.count(b"[") + data.count(b"{") > _MOST_BRACKETS:
        raise BadInput(place, f"holds more than {_MOST_BRACKETS:,} lists and objects")
    try:
        text = data.decode("utf-8")
        value = _DECODER.decode(text)
        if _HALF_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{place}, byte {error.start}", "is not UTF-8 text, so not JSON") from None
    except UnicodeEncodeError:
        raise BadInput(place, "a text in it holds half of a surrogate pair, which is no character") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"{place}, line {error.lineno}, column {error.colno}", f"is not JSON: {error.msg}") from None
    except RecursionError:
        raise BadInput(place, "is nested too deeply") from None
    except ValueError as error:  # raised by the hooks below
        raise BadInput(place, str(error)) from None
    if not isinstance(value, dict):
        raise BadInput(place, f"holds {_KINDS[type(value)]}, where a JSON object {{...}} is expected")
    return value


_KINDS: dict[type, str] = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {shown(twice)} stands twice in one object")
    return result


def _constant(text: str) -> float:
    # Published configs hold Infinity (`time_step_limit` of Mamba-2); NaN means nothing anywhere.
    if text == "NaN":
        raise ValueError("NaN is no value")
    return float(text)


def _whole(text: str) -> int:
    if len(text) > _WHOLE_DIGITS:
        raise ValueError(f"the number {text[:_WHOLE_DIGITS]}... has {len(text)} digits, more than any size")
    return int(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_whole)
