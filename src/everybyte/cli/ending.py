"""How a command ends: exit codes, errors as one message, streams that take any character. Needs no parser of command lines."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable

from everybyte.basics.errors import BadInput, EverybyteError

FITS, DOES_NOT_FIT, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: yes; no, or a fault was found; input that cannot be answered; Ctrl-C."""

DEBUG = "EVERYBYTE_DEBUG"
"""Set to 1, an unexpected fault of the program shows its traceback."""


def ended(command: Callable[[], int]) -> int:
    """The exit code of a command. Whatever goes wrong becomes one message on standard error."""
    print_any_character()
    try:
        code = command()
        sys.stdout.flush()
    except EverybyteError as error:
        return refuse(told(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _let_go_of_stdout()
        return FITS
    except Exception as fault:  # noqa: BLE001  # the last line of defence: a person never sees a traceback unasked
        return refuse(unexpected(fault))
    return code


def refuse(message: str) -> int:
    """Prints an error; the exit code for it."""
    say(f"{_said('error:')} {_said(message)}", to_stderr=True)
    return BAD_INPUT


def say(text: str = "", *, to_stderr: bool = False) -> None:
    """Writes a line on standard output, or a note on standard error, which is told in the language in use."""
    if to_stderr:
        sys.stderr.write(f"{_said(text)}\n")
    else:
        sys.stdout.write(f"{text}\n")


def told(error: EverybyteError) -> str:
    """The message of an error in the language in use, its place as it is."""
    if isinstance(error, BadInput):
        return f"{error.path}: {_said(error.message)}" if error.path else _said(error.message)
    return _said(str(error))


def unexpected(fault: Exception) -> str:
    """What to say of an exception that nobody raised on purpose. Shows the traceback if the environment asks for it."""
    import traceback

    if os.environ.get(DEBUG) == "1":
        traceback.print_exception(fault)
    frame = traceback.extract_tb(fault.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"internal error: {type(fault).__name__}: {fault} ({place}). Please report it; {DEBUG}=1 shows the traceback"


PLAIN = {
    "·": "-",
    "×": "x",
    "–": "-",
    "—": "-",
    "−": "-",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "→": "->",
    "■": "*",
    "█": "#",
    "░": ".",
    "▓": "!",
    "²": "^2",
    "³": "^3",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
}
"""Characters of our texts and what an ASCII terminal gets for them."""


def print_any_character() -> None:
    """A terminal that lacks a character gets the nearest that it has, else a question mark, never a failure."""
    codecs.register_error("everybyte", _plainer)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="everybyte")


def _plainer(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(char, "?") for char in error.object[error.start : error.end]), error.end


def _let_go_of_stdout() -> None:
    """The reader of a pipe went away: nothing is flushed into it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _said(text: str) -> str:
    """A text in the language in use, which is not asked for where nothing is said."""
    from everybyte.report.language import said

    return said(text)
