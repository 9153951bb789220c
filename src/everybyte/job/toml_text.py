"""TOML for job files."""

from __future__ import annotations

import tomllib
from typing import Any

from everybyte.basics.errors import BadInput


def load(text: str, source: str) -> Any:
    """The value of a TOML text. Raises BadInput; the message of the parser names line and column."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(source, f"not valid TOML: {error}") from None
    except RecursionError:
        raise BadInput(source, "not valid TOML: nested too deeply") from None
    except ValueError:  # Python refuses to convert thousands of digits
        raise BadInput(source, "not valid TOML: a number has too many digits") from None
