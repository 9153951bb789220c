"""Generation by transformers (transformers/generation/utils.py), which asks for values: whether prompts are padded, and after each token whether all sequences
have ended. On fake tensors no prompt is padded, and no sequence ends before its greatest length."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from everybyte.trace.hooks.on_import import patched
from everybyte.trace.hooks.patches import replaced

UTILS, OURS = "transformers.generation.utils", "everybyte.trace."
ASKING = ("generate", "_get_logits_processor")
"""Functions that ask: for padding on the right, then, where it has the name `using_static_cache`, whether the whole mask is 1; for ids below 0."""


@contextlib.contextmanager
def generation() -> Iterator[None]:
    """While entered, `generate` has these answers."""
    before = torch.Tensor.__bool__

    def answered(self: torch.Tensor) -> bool:
        frame: Any = sys._getframe(1)
        while frame.f_globals.get("__name__", "").startswith(OURS):
            frame = frame.f_back
        if isinstance(self, FakeTensor) and frame.f_globals.get("__name__") == UTILS and frame.f_code.co_name in ASKING:
            return "using_static_cache" in frame.f_locals
        return bool(before(self))

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(torch.Tensor, __bool__=answered))
        stack.enter_context(patched(UTILS, _to_the_longest))
        yield


@contextlib.contextmanager
def _to_the_longest(utils: Any) -> Iterator[None]:
    """Stops by the criterion of the length alone."""
    has_full_length = False
    before = utils.MaxLengthCriteria.__call__

    def of_length(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal has_full_length
        has_full_length = input_ids.shape[1] >= self.max_length
        done: torch.Tensor = before(self, input_ids, *args, **kwargs)
        return done

    def stops(self: Any, unfinished_sequences: torch.Tensor, *args: Any) -> bool:
        """Makes the tensors by which it is asked."""
        _ = unfinished_sequences.max() == 0
        return has_full_length

    with replaced(utils.MaxLengthCriteria, __call__=of_length), replaced(utils.StopCheck, __call__=stops):
        yield
