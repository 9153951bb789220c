"""Callbacks that record a run of the Hugging Face Trainer, of Lightning, or of a loop with accelerate. Their libraries are imported when one is asked for."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

from everybyte.measure.recording.inside import Recorder


def trainer_callback(path: str | os.PathLike[str]) -> Any:
    """A TrainerCallback: `Trainer(..., callbacks=[trainer_callback("run.json")])`. Phases: train, eval, save. Raises ImportError without transformers."""
    from transformers import TrainerCallback

    class Record(TrainerCallback):  # type: ignore[misc]  # transformers' types are not read
        """Writes the record when training ends, and whatever comes before."""

        def __init__(self) -> None:
            self.run = Recorder(path)
            self._open: AbstractContextManager[None] | None = None

        def _enter(self, phase: str | None) -> None:
            if self._open is not None:
                self._open.__exit__(None, None, None)
            self._open = self.run.phase(phase) if phase else None
            if self._open is not None:
                self._open.__enter__()

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.run.__enter__()
            self._enter("train")

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            self._enter("train")

        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            if self._open is None or "eval" not in self.run.phases:
                self._enter("eval")

        def on_save(self, *_: Any, **__: Any) -> None:
            self._enter("train")

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self._enter(None)
            self.run.__exit__(None, None, None)

    return Record()


def lightning_callback(path: str | os.PathLike[str]) -> Any:
    """A Lightning Callback: `Trainer(callbacks=[lightning_callback("run.json")])`. Raises ImportError without lightning."""
    from lightning.pytorch.callbacks import Callback

    class Record(Callback):  # type: ignore[misc]  # lightning's types are not read
        """Writes the record when fitting ends."""

        def __init__(self) -> None:
            self.run = Recorder(path)

        def on_fit_start(self, *_: Any, **__: Any) -> None:
            self.run.__enter__()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self.run.__exit__(type(exception), exception, None)

        def on_fit_end(self, *_: Any, **__: Any) -> None:
            self.run.__exit__(None, None, None)

    return Record()
