"""One file a family: what a config.json says -> a Network.

`everybyte.models("qwen3 moe")` is the function of `library`, a search in the catalogue: this package can be called, since a person who writes
`everybyte.models` means that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everybyte.catalog.models import ModelRow


class _CalledModule(ModuleType):
    """This package, callable."""

    def __call__(self, words: str = "") -> Sequence[ModelRow]:
        """The models of the catalogue that match all words; all of them without one."""
        from everybyte.catalog.models import search_models

        return search_models(words)


sys.modules[__name__].__class__ = _CalledModule
