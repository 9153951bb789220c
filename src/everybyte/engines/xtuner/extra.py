"""Keys of `extra` that the account of xtuner reads."""

from __future__ import annotations

from everybyte.rules.from_job.adapters import AdapterKeys
from everybyte.rules.from_job.recipe import RecipeKeys

SECTIONS = (AdapterKeys, RecipeKeys)
