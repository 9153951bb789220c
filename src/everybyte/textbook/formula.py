"""The form of an entry in the formula book: an equation as printed, its letters, the function that computes it, and when it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from everybyte.basics.citation import Citation
from everybyte.basics.errors import BadInput, did_you_mean

LETTERS: dict[str, str] = {
    "a": "attention (query) heads",
    "A": "width of the queries, heads x head size",
    "b": "micro-batch: sequences a data-parallel rank computes at once",
    "B": "elements a block that share one scale",
    "bits": "bits a weight",
    "C": "channels",
    "C_in": "input channels",
    "C_out": "output channels",
    "d": "size of an attention head",
    "D": "data-parallel ranks that share the shards",
    "e": "bytes an element",
    "E": "experts a layer",
    "f": "width of the feed-forward network",
    "g": "weights a quantisation group",
    "h": "hidden size",
    "H": "height",
    "i": "pipeline stage, 0 is the first",
    "k": "key/value heads",
    "K": "bytes a parameter of optimizer state, master weights included",
    "kernel": "kernel size of a convolution",
    "kv_lora": "width of the compressed keys and values",
    "L": "layers",
    "largest": "parameters of the largest layer",
    "live": "parameters gathered at once",
    "m": "micro-batches a step",
    "N": "images a batch",
    "p": "pipeline stages",
    "P": "parameters",
    "r": "rank of the adapter or projection",
    "rope": "width of the shared rotary key",
    "rows": "rows of the weight matrix",
    "cols": "columns of the weight matrix",
    "n": "matrices of this shape",
    "s": "sequence length in tokens",
    "states": "bytes of weights, gradients and optimizer states",
    "t": "tensor-parallel ranks",
    "top": "experts a token visits",
    "v": "virtual stages (chunks) a pipeline rank",
    "V": "vocabulary",
    "w": "sliding window in tokens",
    "W": "width",
    "weights": "bytes of the weights",
}
"""What each letter means. A letter means one thing in the whole book."""


CHAPTERS: tuple[str, ...] = ("parameters", "states", "quantized", "zero", "activations", "inference", "compute", "quick")
"""The order of the book; a chapter is a module."""


class Formula(NamedTuple):
    """A published equation. `function` takes the letters as keyword arguments (int) and returns an int."""

    name: str
    chapter: str
    letters: dict[str, str]
    text: str
    """The equation in its letters, as printed; the letters are whole words, so that numbers can be put in."""
    summary: str
    citation: Citation
    function: Callable[..., int]
    wrong_when: str
    """The case in which the equation misleads, in a sentence."""
    unit: str
    """What the result counts: bytes, parameters, FLOPs ..."""


F = TypeVar("F", bound=Callable[..., int])
_BOOK: dict[str, Formula] = {}


def formula(name: str, text: str, citation: Citation, wrong_when: str, unit: str = "bytes") -> Callable[[F], F]:
    """Enters the decorated function into the book. Summary and letters are read from the function itself, so they cannot drift."""

    def enter(function: F) -> F:
        letters = {letter: LETTERS[letter] for letter in function.__annotations__ if letter != "return"}
        summary = (function.__doc__ or "").strip().splitlines()[0]
        if name in _BOOK:
            raise ValueError(f"formula {name!r} is defined twice")
        _BOOK[name] = Formula(name, function.__module__.rpartition(".")[2], letters, text, summary, citation, function, wrong_when, unit)
        return function

    return enter


def all_formulas() -> tuple[Formula, ...]:
    """The formulas entered so far, in the order of the book."""
    return tuple(sorted(_BOOK.values(), key=lambda entry: CHAPTERS.index(entry.chapter)))


def find_formula(name: str) -> Formula:
    """The formula called `name`, without regard to case, spaces and underscores. Raises BadInput with the nearest names."""
    folded = "-".join(name.casefold().replace("_", " ").replace("-", " ").split())
    if folded not in _BOOK:
        raise BadInput("formula", f"there is no formula {name!r}{did_you_mean(folded, _BOOK, count=5)}")
    return _BOOK[folded]


def evaluate(entry: Formula, values: dict[str, Any]) -> int:
    """The result for `values`, a whole number of 0 or more for each letter. Raises BadInput that names a letter that is missing, unknown or negative."""
    for letter in values:
        if letter not in entry.letters:
            raise BadInput(f"{entry.name}.{letter}", f"is no letter of {entry.text}; it has {', '.join(entry.letters)}")
    for letter, meaning in entry.letters.items():
        value = values.get(letter)
        if value is None:
            raise BadInput(f"{entry.name}.{letter}", f"is missing ({meaning})")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise BadInput(f"{entry.name}.{letter}", f"must be a whole number of 0 or more, got {value!r} ({meaning})")
    try:
        return entry.function(**values)
    except ZeroDivisionError:
        zero = ", ".join(letter for letter, value in values.items() if value == 0)
        raise BadInput(entry.name, f"divides by zero: {zero} is 0") from None
