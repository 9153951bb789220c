"""The page of the Python interface."""

from __future__ import annotations

import inspect
import re
import sys

import msgspec

import everybyte
from everybyte.basics.origin import Setting
from everybyte.job.described import field_docs
from everybyte.ledger.answer import HardwareFacts, ModelFacts, RankAnswer
from everybyte.ledger.entry import Basis, Category, Entry, Phase
from everybyte.ledger.ledger import Ledger, PhaseTotal
from writers.markdown import block, docstring, page, table

INTRODUCTION = """\
What may be imported from `everybyte`; everything else may change. `import everybyte` loads nothing heavy: each name loads its part when it is first used."""
PARTS = (RankAnswer, Ledger, PhaseTotal, Entry, ModelFacts, HardwareFacts, Setting)
"""What an Answer is made of."""
WORDS = {"Category": Category, "Phase": Phase, "Basis": Basis}


def python_page() -> str:
    """All public names, then the parts of an answer."""
    names = [name for name in everybyte.__all__ if not name.startswith("__")]
    # by the door for lazy names, since `everybyte.trace` is the package of that name once a part of it was imported
    parts = [INTRODUCTION, *(described(name, everybyte.__getattr__(name)) for name in names), "## What an answer is made of"]
    parts += [described(cls.__name__, cls, level=3) for cls in PARTS]
    words = [(f"`{name}`", ", ".join(f"`{word}`" for word in kind.__args__)) for name, kind in WORDS.items()]
    return page("Python", *parts, "### Words", table(("type", "one of"), words))


def described(name: str, thing: object, level: int = 2) -> str:
    """One name with its signature or fields and its docstring."""
    title = f"{'#' * level} {name}"
    if not inspect.isclass(thing):
        assert callable(thing)
        return "\n\n".join([title, block(f"{name}{signature(thing)}", "text"), docstring(thing)])
    if issubclass(thing, msgspec.Struct | tuple) and name != "Job":
        return "\n\n".join([title, docstring(thing), fields(thing), *methods(thing)])
    extra = ["Its fields are the keys of [the job file](job-file.md)."] if name == "Job" else list(methods(thing))
    base = thing.__mro__[1].__name__
    kind = [f"A kind of `{base}`."] if issubclass(thing, Exception) else []
    return "\n\n".join([title, docstring(thing), *kind, *extra])


def signature(function: object) -> str:
    """The signature as it is written: names of types without their modules."""
    assert callable(function)
    return str(inspect.signature(function)).replace("'", "")


def fields(cls: type) -> str:
    """A table of the fields, in their order."""
    docs = field_docs(sys.modules[cls.__module__]).get(cls.__name__, {})
    types = {name: kind for base in reversed(cls.__mro__) for name, kind in getattr(base, "__annotations__", {}).items()}
    names = getattr(cls, "__struct_fields__", ()) or getattr(cls, "_fields", ())
    return table(("field", "type", "meaning"), [(f"`{name}`", f"`{written(types[name])}`", docs.get(name, "")) for name in names])


def written(kind: object) -> str:
    """A type as it stands in the code; a union with "or", since a bar would end the cell of a table."""
    text = kind.__name__ if isinstance(kind, type) else getattr(kind, "__forward_arg__", str(kind))
    return re.sub(r"\b[a-z_.]+\.(?=[A-Z])", "", text).replace(" | ", " or ")


def methods(cls: type) -> list[str]:
    """Public methods and properties of the class itself."""
    rows = []
    for name, member in vars(cls).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        call = f"{name}{signature(member)}".replace("(self, ", "(").replace("(self)", "()") if inspect.isfunction(member) else name
        rows.append((f"`{written(call)}`", " ".join(docstring(member).split())))
    return [table(("method or property", "meaning"), rows)] if rows else []
