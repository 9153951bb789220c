"""The `everybyte` command: thin modules that parse, call and show. Each subcommand loads only what it needs."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    from everybyte.cli.app import run

    sys.exit(run(sys.argv[1:]))
