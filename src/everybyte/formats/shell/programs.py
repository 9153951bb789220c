"""Small programs whose output follows from their arguments and input alone: `echo`, `printf`, `expr`, `seq`, `basename`, `tr`, `wc` and the like.

Each is worked out here, never run. What is asked of them in another way than below is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from everybyte.formats.shell.arithmetic import NotANumber, evaluate
from everybyte.formats.shell.values import Piece, Text, plain

_ESCAPE = re.compile(r"\\([\\abefnrtv]|0[0-7]{0,3}|x[0-9a-fA-F]{1,2})")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_FORMAT = re.compile(r"%(?:%|[-+ 0#]*\d*(?:\.\d+)?[sdibxofeg])")
_MOST = 10_000

Program = Callable[[list[str], Text | None], str | None]


def escapes(text: str) -> str:
    r"""The text with `\\n` and its kin turned into what they stand for."""

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "0":
            return chr(int(code or "0", 8))
        return chr(int(code[1:], 16)) if code[0] == "x" else _LETTERS[code]

    return _ESCAPE.sub(one, text)


def echo(arguments: list[Text]) -> Text:
    """What `echo` prints; pieces keep their lines."""
    newline, escaped, rest = True, False, list(arguments)
    while rest and re.fullmatch(r"-[neE]+", plain(rest[0])):
        option = plain(rest.pop(0))
        newline &= "n" not in option
        escaped = "e" in option or (escaped and "E" not in option)
    pieces: list[Piece] = []
    for i, text in enumerate(rest):
        pieces += [Piece(" ", text[0].line if text else 0)] if i else []
        pieces += [Piece(escapes(piece.text), piece.line) for piece in text] if escaped else text
    return (*pieces, Piece("\n", pieces[-1].line if pieces else 0)) if newline else tuple(pieces)


def printf(arguments: list[str]) -> str | None:
    """What `printf` prints."""
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments:
        return None
    form, rest = escapes(arguments[0]), list(arguments[1:])
    out = []
    for _ in range(_MOST):
        try:
            out.append(_FORMAT.sub(lambda match: _formatted(match.group(), rest), form))
        except (ValueError, NotANumber):
            return None
        if not rest or not _FORMAT.search(form.replace("%%", "")):
            break
    return "".join(out)


def _formatted(form: str, rest: list[str]) -> str:
    if form == "%%":
        return "%"
    argument = rest.pop(0) if rest else ""
    kind = form[-1]
    if kind in "sb":
        return (form[:-1] + "s") % (escapes(argument) if kind == "b" else argument)
    return form % (int(argument or "0", 0) if kind in "dixo" else float(argument or "0"))


def expr(arguments: list[str], _: Text | None) -> str | None:
    """`expr 16 / 4`: sums, comparisons, `length`."""
    if arguments[:1] == ["length"] and len(arguments) == 2:
        return f"{len(arguments[1])}\n"
    if len(arguments) == 3 and arguments[1] in ("=", "!=") and not all(each.lstrip("-").isdigit() for each in arguments[::2]):
        return f"{int((arguments[0] == arguments[2]) == (arguments[1] == '='))}\n"
    words = ["==" if word == "=" else word for word in arguments]
    if not all(re.fullmatch(r"-?\d+|[-+*/%()<>]|[<>=!]=", word) for word in words):
        return f"{arguments[0]}\n" if len(arguments) == 1 else None
    try:
        return f"{evaluate(' '.join(word.lstrip('0') or '0' if word.isdigit() else word for word in words), lambda _: None, lambda *_: None)}\n"
    except NotANumber:
        return None


def seq(arguments: list[str], _: Text | None) -> str | None:
    """`seq 1 8`."""
    separator = "\n"
    if arguments[:1] == ["-s"] and len(arguments) > 1:
        separator, arguments = arguments[1], arguments[2:]
    if not 1 <= len(arguments) <= 3 or not all(re.fullmatch(r"-?\d+", word) for word in arguments):
        return None
    numbers = [int(word) for word in arguments]
    first, step, last = (1, 1, numbers[0]) if len(numbers) == 1 else (numbers[0], 1, numbers[1]) if len(numbers) == 2 else numbers
    if step == 0 or abs(last - first) // abs(step) > _MOST:
        return None
    made = range(first, last + (1 if step > 0 else -1), step)
    return separator.join(map(str, made)) + "\n" if made else ""


def basename(arguments: list[str], _: Text | None) -> str | None:
    """The last part of a path, without a suffix."""
    if arguments[:1] == ["-s"]:
        arguments = [*arguments[2:], arguments[1]]
    if not 1 <= len(arguments) <= 2 or arguments[0].startswith("-"):
        return None
    name = arguments[0].rstrip("/").rsplit("/", 1)[-1] or "/"
    suffix = arguments[1] if len(arguments) == 2 else ""
    return (name.removesuffix(suffix) if suffix and name != suffix else name) + "\n"


def dirname(arguments: list[str], _: Text | None) -> str | None:
    """All but the last part of a path."""
    if len(arguments) != 1:
        return None
    head, slash, _last = arguments[0].rstrip("/").rpartition("/")
    return (head.rstrip("/") or ("/" if slash else ".")) + "\n"


def _characters(text: str) -> str:
    text = text.replace("[:upper:]", "A-Z").replace("[:lower:]", "a-z").replace("[:digit:]", "0-9").replace("[:space:]", " \\t\\n\\r")
    return re.sub(r"(\w)-(\w)", lambda match: "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1))), escapes(text))


def tr(arguments: list[str], given: Text | None) -> str | None:
    """`tr a b`, `tr -d a`."""
    if given is None or not arguments or (arguments[0] != "-d" and arguments[0].startswith("-")):
        return None
    text = plain(given)
    if arguments[0] == "-d":
        return text.translate({ord(char): None for char in _characters(arguments[1])}) if len(arguments) == 2 else None
    if len(arguments) != 2:
        return None
    old, new = _characters(arguments[0]), _characters(arguments[1])
    return text.translate({ord(char): new[min(i, len(new) - 1)] for i, char in enumerate(old)}) if new else None


def wc(arguments: list[str], given: Text | None) -> str | None:
    """`wc -l`, `-w`, `-c` of its input."""
    if given is None or len(arguments) != 1:
        return None
    text = plain(given)
    counts = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text.encode()), "-m": len(text)}
    return f"{counts[arguments[0]]}\n" if arguments[0] in counts else None


def cut(arguments: list[str], given: Text | None) -> str | None:
    """`cut -d, -f1`."""
    if given is None:
        return None
    match = re.fullmatch(r"-d ?(.) ?-f ?(\d+)|-f ?(\d+) -d ?(.)", " ".join(arguments))
    if not match:
        return None
    separator, number = match[1] or match[4], int(match[2] or match[3])
    lines = []
    for line in plain(given).splitlines():
        fields = line.split(separator)
        lines.append(line if len(fields) == 1 else fields[number - 1] if number <= len(fields) else "")
    return "".join(f"{line}\n" for line in lines)


def head(arguments: list[str], given: Text | None) -> str | None:
    """`head -n 1`."""
    match = re.fullmatch(r"-n? ?(\d+)", " ".join(arguments) or "-10")
    return "".join(plain(given).splitlines(keepends=True)[: int(match[1])]) if match and given is not None else None


def tail(arguments: list[str], given: Text | None) -> str | None:
    """`tail -n 1`."""
    match = re.fullmatch(r"-n? ?(\d+)", " ".join(arguments) or "-10")
    return "".join(plain(given).splitlines(keepends=True)[-int(match[1]) :]) if match and given is not None and int(match[1]) else None


def awk(arguments: list[str], given: Text | None) -> str | None:
    """`awk -F, '{print NF}'` and `'{print $1}'`, with which scripts count GPUs."""
    match = re.fullmatch(r"(?:-F ?(.) )?\{ ?print (NF|\$\d+) ?;? ?\}", " ".join(arguments))
    if given is None or not match:
        return None
    out = []
    for line in plain(given).splitlines():
        fields = line.split(match[1])
        number = 0 if match[2] == "NF" else int(match[2][1:])
        out.append(str(len(fields)) if match[2] == "NF" else line if number == 0 else fields[number - 1] if number <= len(fields) else "")
    return "".join(f"{each}\n" for each in out)


def grep(arguments: list[str], given: Text | None) -> str | None:
    """`grep -o ,` and `grep -c .`, with which scripts count GPUs."""
    if given is None or len(arguments) != 2 or arguments[0] not in ("-o", "-c") or re.search(r"[^\w, .]", arguments[1]):
        return None
    if arguments[0] == "-o":
        return "".join(f"{match}\n" for match in re.findall(arguments[1], plain(given)))
    return f"{sum(bool(re.search(arguments[1], line)) for line in plain(given).splitlines())}\n"


def bc(_: list[str], given: Text | None) -> str | None:
    """Sums of whole numbers."""
    text = plain(given).strip() if given is not None else ""
    if not text or not re.fullmatch(r"[\d\s()+*/%-]+", text):
        return None
    try:
        return f"{evaluate(text, lambda _: None, lambda *_: None)}\n"
    except NotANumber:
        return None


def sed(arguments: list[str], given: Text | None) -> str | None:
    """`sed s/a/b/` of plain text."""
    match = re.fullmatch(r"(?:-e )?s([/|,#])([\w ,.:=/-]*)\1([\w ,.:=/-]*)\1(g?)", " ".join(arguments))
    if given is None or not match or match[1] in match[2] + match[3]:
        return None
    lines = plain(given).splitlines(keepends=True)
    return "".join(re.sub(match[2], lambda _: match[3], line, count=0 if match[4] else 1) for line in lines)


def xargs(arguments: list[str], given: Text | None) -> str | None:
    """`xargs` alone: its input on one line."""
    return None if arguments or given is None else " ".join(plain(given).split()) + "\n"


PROGRAMS: dict[str, Program] = {
    "expr": expr,
    "seq": seq,
    "basename": basename,
    "dirname": dirname,
    "tr": tr,
    "wc": wc,
    "cut": cut,
    "head": head,
    "tail": tail,
    "awk": awk,
    "grep": grep,
    "bc": bc,
    "sed": sed,
    "xargs": xargs,
}
"""By name: a function of the arguments and the input, None where the output is not known."""

SILENT = frozenset(
    (
        "mkdir",
        "rm",
        "cp",
        "mv",
        "touch",
        "ln",
        "chmod",
        "chown",
        "sleep",
        "kill",
        "pkill",
        "wait",
        "cd",
        "pushd",
        "popd",
        "ulimit",
        "module",
        "pip",
        "pip3",
        "apt-get",
        "apt",
        "git",
        "wget",
        "curl",
        "trap",
        "umask",
        "alias",
        "unalias",
        "shopt",
        "hash",
        "sync",
        "clear",
        "stty",
    )
)
"""Programs that start no model; they are passed over."""
