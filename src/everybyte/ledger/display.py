"""How an answer and a ledger show themselves in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Forms = dict[str, Any]
"""What is shown, by type of content."""


def _nothing(thing: object) -> Forms:
    return {}


forms_of: Callable[[object], Forms] = _nothing
"""Makes the forms of a thing. The room of reports lies above this one, so it is not imported here: `everybyte/__init__.py`, which runs before any module of
the package, puts a function in this place that loads it when a notebook asks."""


class Displayed:
    """The two methods that notebooks ask for. They must be on the class: notebooks other than IPython look nowhere else."""

    __slots__ = ()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Forms:
        """Plain text, HTML and a Vega-Lite specification; the notebook takes the richest that it can show."""
        return forms_of(self)

    def _repr_html_(self) -> str | None:
        """HTML, for notebooks that do not ask for more."""
        return forms_of(self).get("text/html")
