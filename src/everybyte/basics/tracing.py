"""Whether this program is being traced."""

from __future__ import annotations

import os

TRACING = "EVERYBYTE_TRACING"
"""Set to 1 in the process of a trace."""


def tracing() -> bool:
    """Whether this program runs under `everybyte trace`: its tensors have shapes and no values. Where it asks for values, it can leave that out."""
    return os.environ.get(TRACING) == "1"
