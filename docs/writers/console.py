"""The output of commands in console blocks, run again."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH = 110


def with_output(page: str) -> str:
    """The page with the output of its commands as it is now."""
    return re.sub(r"(?<=```console\n)(.*?)(?=```)", lambda block: run_block(block[1]), page, flags=re.DOTALL)


def run_block(block: str) -> str:
    """A console block, its `$ everybyte` commands run again. A block with other commands stays as it is."""
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    if not commands or not all(command.startswith("$ everybyte ") for command in commands):
        return block
    return "\n\n".join(f"{command}\n{output_of(command[2:])}" for command in commands) + "\n"


def output_of(command: str) -> str:
    """What a command prints in the root of the project, without colour; of `everybyte ... | head -N` the first lines."""
    command, _, cut = command.partition(" | head -")
    words = [str(Path(sys.executable).with_name("everybyte")), *shlex.split(command)[1:]]
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": str(WIDTH)}
    done = subprocess.run(words, cwd=ROOT, env=env, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    return "\n".join(lines[: int(cut)] if cut else lines)
