"""The body of a request: JSON into one of the forms, with the key path of what is wrong in it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job.fault import find_fault
from everybyte.job.json_text import load as load_json

Form = TypeVar("Form", bound=msgspec.Struct)
BODY = "request"
"""What messages call the body of a request."""


def read(body: bytes, form: type[Form]) -> Form:
    """The body of a request as a form. Raises BadInput with the key path."""
    raw = mapping(body)
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError as error:
        raise find_fault(raw, form) or _misfit(error) from None


def _misfit(error: msgspec.ValidationError) -> BadInput:
    """A fault that only msgspec names: `Expected `array` of length >= 1 - at `$.files``."""
    says, _, place = str(error).partition(" - at `$")
    return BadInput(place.strip(".`") or BODY, says)


def mapping(body: bytes) -> dict[str, Any]:
    """The body of a request as a JSON object. Raises BadInput for anything else."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BadInput(BODY, f"is not UTF-8 text: byte {error.start} is {body[error.start]:#04x}") from None
    raw = load_json(text, BODY)
    if not isinstance(raw, dict):
        raise BadInput(BODY, "is not a JSON object {...}")
    return raw
