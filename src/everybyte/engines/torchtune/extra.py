"""Keys of `extra` that torchtune reads."""

from __future__ import annotations

from everybyte.job.extra import Section
from everybyte.rules.from_job.adapters import AdapterKeys
from everybyte.rules.from_job.fsdp import FsdpKeys
from everybyte.rules.from_job.recipe import RecipeKeys
from everybyte.rules.from_job.sharding import DdpKeys
from everybyte.rules.from_job.zero import ZeroKeys


class Keys(Section, frozen=True, kw_only=True):
    """torchtune's own settings that are read."""

    custom_sharded_layers: tuple[str, ...] | None = None


SECTIONS = (Keys, AdapterKeys, RecipeKeys, DdpKeys, FsdpKeys, ZeroKeys)
