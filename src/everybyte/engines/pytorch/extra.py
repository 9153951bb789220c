"""Keys of `extra` that a plain loop reads."""

from __future__ import annotations

from everybyte.job.extra import Section
from everybyte.rules.from_job.adapters import AdapterKeys
from everybyte.rules.from_job.fsdp import FsdpKeys
from everybyte.rules.from_job.recipe import RecipeKeys
from everybyte.rules.from_job.sharding import DdpKeys
from everybyte.rules.from_job.zero import ZeroKeys


class Keys(Section, frozen=True, kw_only=True):
    """a plain loop's own settings that are read."""

    padded: bool = False
    """Batches have padding, so that SDPA gets a mask."""
    empty_cache: bool = False
    """The loop calls torch.cuda.empty_cache() between steps."""
    keeps_outputs: bool = True
    """The model's output, logits included, is held while backward runs."""
    use_cache: bool = False
    """config.use_cache stays on, as transformers has it, so that forward fills a cache of keys and values."""
    library: str = "transformers"
    """Whose model it is; of a pipeline's script more models are on the device."""


SECTIONS = (Keys, AdapterKeys, RecipeKeys, DdpKeys, FsdpKeys, ZeroKeys)
