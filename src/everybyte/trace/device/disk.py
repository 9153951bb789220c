"""What a program reads from and writes to the disk. Batches are loaded in its own process: the workers of a DataLoader, which are forked, would take the fake
device with them; pinned memory is the host's, and not counted. Checkpoints are not written: they have no values, and would replace real ones."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from everybyte.trace.hooks.on_import import patched
from everybyte.trace.hooks.patches import replaced

ALONE: dict[str, Any] = {
    "num_workers": 0,
    "pin_memory": False,
    "timeout": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "worker_init_fn": None,
}
SAVERS = {"safetensors.torch": ("save_file", "save_model"), "torch.distributed.checkpoint": ("save",)}
"""Functions that write tensors, beside torch.save, by their module."""
NOTE = "checkpoints are not written: a trace has no values"


class Disk:
    """Stands between a program and the disk, and hears whether it saves checkpoints."""

    def __init__(self) -> None:
        self.saved = False

    @contextlib.contextmanager
    def met(self) -> Iterator[None]:
        """While entered, every DataLoader works without workers, and nothing that holds tensors is saved."""
        before = DataLoader.__init__
        signature = inspect.signature(before)

        def made(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs)
            given.arguments.update({name: value for name, value in ALONE.items() if name in given.arguments})
            before(*given.args, **given.kwargs)

        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(DataLoader, __init__=made))
            stack.enter_context(replaced(torch, save=self._save))
            stack.enter_context(replaced(torch.Tensor, pin_memory=lambda tensor, *_, **__: tensor))
            for module, names in SAVERS.items():
                stack.enter_context(patched(module, partial(self._silenced, names)))
            yield

    def notes(self) -> tuple[str, ...]:
        """What the answer says of it."""
        return (NOTE,) if self.saved else ()

    def _silenced(self, names: tuple[str, ...], module: Any) -> contextlib.AbstractContextManager[None]:
        return replaced(module, **dict.fromkeys(names, self._save))

    def _save(self, *_: Any, **__: Any) -> None:
        self.saved = True
