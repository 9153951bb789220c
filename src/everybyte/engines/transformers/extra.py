"""Keys of `extra` that the account of transformers reads, and of the frameworks that train with its models."""

from __future__ import annotations

from everybyte.job.extra import Section
from everybyte.job.form import Count
from everybyte.rules.from_job.adapters import AdapterKeys
from everybyte.rules.from_job.fsdp import FsdpKeys
from everybyte.rules.from_job.preference import PreferenceKeys
from everybyte.rules.from_job.recipe import RecipeKeys
from everybyte.rules.from_job.sharding import DdpKeys
from everybyte.rules.from_job.zero import ZeroKeys


class ServeKeys(Section, frozen=True, kw_only=True):
    """Settings of inference."""

    library: str = "transformers"
    use_cache: bool | None = None
    """Given: one forward pass over the whole context, with a cache or without one."""
    new_tokens: Count = 1
    """Tokens that are generated."""
    encoder_tokens: Count | None = None
    """Positions of the encoder that cross-attention reads."""


SECTIONS = (AdapterKeys, RecipeKeys, DdpKeys, FsdpKeys, ZeroKeys, PreferenceKeys)
SERVE_SECTIONS = (ServeKeys,)
