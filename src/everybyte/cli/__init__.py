"""The `everybyte` command: thin modules that parse, call and show. Each subcommand loads only what it needs."""

from __future__ import annotations

import gc
import os
import sys

OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Python looks for garbage every 700 objects; a command makes its objects once, keeps most of them, and ends."""


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    from everybyte.cli.app import run

    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Taking the interpreter apart module by module would cost a tenth of a short answer; output is written and files are closed.
        os._exit(code)
