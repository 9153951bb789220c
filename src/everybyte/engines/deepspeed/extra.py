"""Keys of `extra` that the account of DeepSpeed reads."""

from __future__ import annotations

from everybyte.rules.from_job.adapters import AdapterKeys
from everybyte.rules.from_job.fsdp import FsdpKeys
from everybyte.rules.from_job.recipe import RecipeKeys
from everybyte.rules.from_job.sharding import DdpKeys
from everybyte.rules.from_job.zero import ZeroKeys

SECTIONS = (AdapterKeys, RecipeKeys, DdpKeys, FsdpKeys, ZeroKeys)
