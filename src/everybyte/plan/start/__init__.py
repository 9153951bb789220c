"""What a person means who leaves settings open: framework, settings of its official example, layout over several GPUs. Each with its origin."""

from __future__ import annotations

from everybyte.plan.start.start import Started, started
from everybyte.plan.start.taken import Taken

__all__ = ["Started", "Taken", "started"]
