"""The texts that are read: files, standard input, a command. Within bounds of size and as text."""

from __future__ import annotations

import sys
from os.path import basename
from typing import NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.formats.place import COMMAND, Place

MOST_BYTES = 4 * 2**20
"""Size of the largest file that is read: notebooks with pictures reach a megabyte."""

STDIN = "-"
STDIN_NAME = "standard input"


class Source(NamedTuple):
    """A text and what to call it: a path as it was given, `standard input`, or `command`."""

    text: str
    path: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return basename(self.path.replace("\\", "/"))

    @property
    def ending(self) -> str:
        """`.yaml`; empty for standard input, a command, and names without one."""
        stem, point, end = self.name.rpartition(".")
        return f".{end.casefold()}" if stem and point else ""

    def place(self, line: int | None = None, flag: str = "") -> Place:
        """A place in this text."""
        return Place(self.path, line, flag)


def command_source(text: str) -> Source:
    """A command that was handed over as text."""
    return Source(text, COMMAND)


def open_source(path: str) -> Source:
    """The text of a file or of standard input (`-`). Raises BadInput for what cannot be read, is too large, or is no text."""
    shown = STDIN_NAME if path == STDIN else path.replace("\x00", "\\0")
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(shown, f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise BadInput(repr(path), "is not a file name: it holds a NUL character") from None
    return Source(_text(data, shown), shown)


def _text(data: bytes, shown: str) -> str:
    if len(data) > MOST_BYTES:
        raise BadInput(shown, f"is larger than {MOST_BYTES // 2**20} MiB, which no configuration is")
    if data.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")):
        raise BadInput(shown, "is a pickle or archive (training_args.bin?), which can run code when it is opened; give the configuration as text")
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise BadInput(shown, f"is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}") from None
    if "\x00" in text:
        raise BadInput(shown, f"is not text: it holds a NUL character at position {text.index(chr(0))}")
    return text.replace("\r\n", "\n")
