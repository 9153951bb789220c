"""One launch: the words of a program, the launchers around it, the environment it sees. What the safe shell and the readers of container files hand over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from everybyte.formats.finding import Finding
from everybyte.formats.place import Given, Place
from everybyte.formats.source import Source


class Word(NamedTuple):
    """An argument after all expansion."""

    text: str
    place: Place
    unknown: str = ""
    """Why (a part of) it cannot be known, such as `$1 is not set`; empty if all of it is known."""


class Launcher(NamedTuple):
    """A program that starts another, with its own words only: `torchrun --nproc_per_node 8`."""

    name: str
    """`torchrun`, `accelerate`, `deepspeed`, `srun`, `sbatch`, `mpirun`, `docker` ..."""
    words: tuple[Word, ...]


class Command(NamedTuple):
    """A program with its arguments.

    `words[0]` is the program: a command (`vllm`), a module without `python -m` (`verl.trainer.main_ppo`), or a script without `python` (`trl/scripts/sft.py`).
    Wrappers (`nohup`, `uv run`, `numactl`), redirects and `&` are gone; launchers are in `launchers`, the outermost first.
    """

    words: tuple[Word, ...]
    place: Place
    launchers: tuple[Launcher, ...] = ()
    env: Mapping[str, Given] = {}
    """What the program sees: exported variables and assignments in front of the command."""
    files: Mapping[str, Source] = {}
    """Files that the script wrote before (here-documents), by the path it gave them."""
    settings: Mapping[str, Given] = {}
    """Job keys that launchers, schedulers or a container's resources say: `hardware.gpus`, `hardware.gpus_per_node`, `hardware.gpu`, `serve.version`, ..."""
    missing: Mapping[str, str] = {}
    """Job keys that they should say and cannot: key -> reason (`hardware.gpus` -> `$(nvidia-smi | wc -l) is never run`)."""
    findings: tuple[Finding, ...] = ()

    @property
    def program(self) -> str:
        """The first word."""
        return self.words[0].text if self.words else ""

    def environment(self, name: str) -> Any:
        """The value of a variable that the program sees, or None."""
        given = self.env.get(name)
        return None if given is None else given.value
