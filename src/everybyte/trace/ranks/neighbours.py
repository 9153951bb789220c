"""Asks other ranks of a pipeline for the shapes that they send: each is a process of its own, which ends when it has told them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from everybyte.trace.ranks.pipelines import UnknownShapes
from everybyte.trace.recording.clock import EnoughSteps
from everybyte.trace.request import Failed, Traced, TraceRequest


class Neighbours:
    """The other ranks of a traced one. What a stage sends is found out once, and lies in a folder for all that ask."""

    def __init__(self, asked: TraceRequest) -> None:
        self.asked = asked
        self._own = tempfile.TemporaryDirectory(prefix="everybyte-shapes-")
        self.folder = Path(asked.shapes or self._own.name)

    def told(self, stage: int, shapes: Any) -> None:
        """Keeps what a stage of this rank sends. Raises EnoughSteps if that is all that was wanted."""
        self._file(stage).write_bytes(pickle.dumps(shapes))
        if stage == self.asked.until_stage:
            raise EnoughSteps

    def asks(self, stage: int, rank: int) -> Any:
        """What a stage of another rank sends. Raises UnknownShapes if it fails before."""
        if not self._file(stage).exists():
            self._run(stage, rank)
        return pickle.loads(self._file(stage).read_bytes())  # noqa: S301  # our own process has written it

    def _file(self, stage: int) -> Path:
        return self.folder / f"stage-{stage}"

    def _run(self, stage: int, rank: int) -> None:
        wanted = msgspec.structs.replace(self.asked, rank=rank, shapes=str(self.folder), until_stage=stage)
        result = self.folder / f"result-{stage}"
        with open(os.devnull, "wb") as ear:
            # in this process' own session: it goes when this one is ended
            subprocess.run(
                [sys.executable, "-m", "everybyte.trace.worker", str(result), str(ear.fileno())],
                input=msgspec.json.encode(wanted),
                pass_fds=(ear.fileno(),),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        if self._file(stage).exists():
            return
        found = msgspec.msgpack.decode(result.read_bytes(), type=Traced | Failed) if result.exists() else None
        why = f": {found.message}" if isinstance(found, Failed) else ""
        raise UnknownShapes(
            f"stage {stage} of the pipeline, on rank {rank}, does not come to say which shapes it sends{why}; "
            "give PipelineStage input_args and output_args (and input_grads and output_grads if they are DTensors)"
        )
