"""Lines that a scheduler reads (`#SBATCH --gres=gpu:a100:4`, `#PBS -l select=2:ngpus=4`) and the variables that it sets for the script."""

from __future__ import annotations

import re

from everybyte.formats.command import Launcher, Word
from everybyte.formats.shell.launchers import value_of
from everybyte.formats.source import Source

_SLURM = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_PBS = re.compile(r"^#PBS[ \t]+-l[ \t]+select=(\d+):(\S*)", re.MULTILINE)


def launcher_of(source: Source) -> Launcher | None:
    """The header of a batch script as the flags of `sbatch`; None if there is none."""
    words: list[Word] = []
    for match in _SLURM.finditer(source.text):
        place = source.place(source.text.count("\n", 0, match.start()) + 1)
        text = re.sub(r"[ \t]+#.*", "", match[1])
        words += [Word(part.strip("\"'"), place) for part in re.findall(r"(?:[^\s\"']|\"[^\"]*\"|'[^']*')+", text)]
    if not words:
        words = _of_pbs(source)
    return Launcher("sbatch", tuple(words)) if words else None


def _of_pbs(source: Source) -> list[Word]:
    match = _PBS.search(source.text)
    gpus = re.search(r"ngpus=(\d+)", match[2]) if match else None
    if match is None or gpus is None:
        return []
    place = source.place(source.text.count("\n", 0, match.start()) + 1)
    return [Word(f"--nodes={match[1]}", place), Word(f"--gpus-per-node={gpus[1]}", place)]


def variables(launcher: Launcher) -> dict[str, Word]:
    """The variables that Slurm sets from its flags."""
    found: dict[str, Word] = {}
    for names, flags in _VARIABLES:
        word = value_of(launcher.words, *flags)
        if word is None:
            continue
        number = re.search(r"(\d+)$", word.text)
        for name in names:
            found[name] = word._replace(text=number[1]) if number else word
    per_node, nodes = found.get("SLURM_NTASKS_PER_NODE"), found.get("SLURM_NNODES")
    if "SLURM_NTASKS" not in found and per_node is not None and nodes is not None and per_node.text.isdigit() and nodes.text.isdigit():
        total = per_node._replace(text=str(int(per_node.text) * int(nodes.text)))
        found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = total
    return found


_VARIABLES = (
    (("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), ("nodes", "N")),
    (("SLURM_NTASKS", "SLURM_NPROCS"), ("ntasks", "n")),
    (("SLURM_NTASKS_PER_NODE",), ("ntasks_per_node",)),
    (("SLURM_CPUS_PER_TASK",), ("cpus_per_task", "c")),
    (("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), ("gpus_per_node", "gres")),
    (("SLURM_GPUS",), ("gpus", "G")),
)
