"""The `everybyte` command: thin modules that parse, call and show. Each subcommand loads only what it needs."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Python looks for garbage every 700 objects; a command makes its objects once, keeps most of them, and ends."""
JSON = "--json"


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    _load_msgspec()
    code = _run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Taking the interpreter apart module by module would cost a tenth of a short answer; output is written and files are closed.
        os._exit(code)


def _run(args: Sequence[str]) -> int:
    """The exit code. What a program asks, `estimate JOB... --json`, needs no parser of command lines, which costs as much as a start of Python."""
    if args[:1] == ["estimate"] and JSON in args:
        jobs = [arg for arg in args[1:] if arg != JSON]
        if jobs and not any(job.startswith("-") and job != "-" for job in jobs):
            from everybyte.cli.answers import Options, answer_files
            from everybyte.cli.ending import ended

            return ended(lambda: answer_files(jobs, Options(as_json=True)))
    from everybyte.cli.app import run

    return run(args)


def _load_msgspec() -> None:
    """Loads msgspec without typing_extensions, where that is installed: since Python 3.11 `typing` has what msgspec takes from it, and it loads inspect,
    ast, dis and tokenize, a start of Python."""
    name = "typing_extensions"
    if name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]  # how Python marks a module that cannot be imported
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules[name]
