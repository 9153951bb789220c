"""Scripts of the shell as commands: every program that a script would start, without launchers, with environment, written files and what launchers say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from everybyte.formats.command import Command, Launcher, Word
from everybyte.formats.containers.images import Image, image_of
from everybyte.formats.context import Context
from everybyte.formats.finding import Finding
from everybyte.formats.place import Given, Place
from everybyte.formats.registry import format_of_command
from everybyte.formats.shell import counts, headers
from everybyte.formats.shell.dialects import dialect_of
from everybyte.formats.shell.interpreter import Interpreter
from everybyte.formats.shell.launchers import Peeled, peel, program_name
from everybyte.formats.shell.outcome import Note
from everybyte.formats.shell.state import State, WrittenFile
from everybyte.formats.shell.tidy import tidy
from everybyte.formats.shell.values import Piece, Text, Unknown, Unknowns, Variable, first_line, plain, without_marks
from everybyte.formats.source import Source

_MOST_NESTED = 8
_WHY = {
    "unset": "{} is not set in the script",
    "argument": "{} is an argument of the script",
    "output": "{} is never run",
    "placeholder": "{} waits to be filled in",
    "input": "{} is read while the script runs",
}
_SELF = frozenset(
    ("echo", "env", "export", "pwd", "ls", "date", "hostname", "nvidia-smi", "scontrol", "which", "uname", "whoami", "make", "cmake", "docker", "deactivate")
)


class _Around(NamedTuple):
    """What surrounds a text of commands: launchers, the environment, the files and where it stands."""

    source: Source
    context: Context
    launchers: tuple[Launcher, ...] = ()
    environment: Mapping[str, Given] = {}
    arguments: tuple[Word, ...] = ()
    files: Mapping[str, WrittenFile] = {}
    first_line: int = 1
    depth: int = 0
    image: Image | None = None
    unknowns: Unknowns | None = None
    exported: Mapping[str, Text] = {}
    """The environment with the marks of what is unknown in it, for scripts that are started inside."""


def commands_of_text(source: Source, context: Context) -> list[Command]:
    """The commands of a script or of a command that was handed over, in bash, PowerShell or cmd. Raises BadInput with the line."""
    source = tidy(source)
    dialect = dialect_of(source)
    if dialect is not None:
        return [made for words, environment in dialect.launches(source) for made in _command(_Around(source, context), words, environment, {}, {}, ())]
    return commands_of_shell(source, context)


def commands_of_shell(
    source: Source,
    context: Context,
    *,
    environment: Mapping[str, Given] | None = None,
    launchers: tuple[Launcher, ...] = (),
    first_line: int = 1,
) -> list[Command]:
    """The commands of a text in bash; `environment` is what a container or service sets before it starts."""
    header = headers.launcher_of(source)
    around = _Around(source, context, launchers if header is None else (*launchers, header), environment or {}, first_line=first_line)
    return _chosen(_of_text(source.text, around))


def _chosen(commands: list[tuple[Command, bool]]) -> list[Command]:
    """The commands of the branches that are taken; those of others only where a known program starts there and nowhere else."""
    commands = _each_once(commands)
    taken = [command for command, alternative in commands if not alternative and program_name(command.program) not in _SELF]
    others = [command for command, alternative in commands if alternative]
    if not _some_known(taken) and (not taken or _some_known(others)):
        return [command for command in others if program_name(command.program) not in _SELF] or taken or [command for command, _ in commands]
    return taken


def _each_once(commands: list[tuple[Command, bool]]) -> list[tuple[Command, bool]]:
    """Without commands that come a second time, word for word: those of loops and retries."""
    found: dict[tuple[bool, tuple[str, ...]], tuple[Command, bool]] = {}
    for command, alternative in commands:
        found.setdefault((alternative, tuple(word.text for word in command.words)), (command, alternative))
    return list(found.values())


def _some_known(commands: list[Command]) -> bool:
    return any(format_of_command(command) is not None for command in commands)


def commands_of_words(
    words: tuple[Word, ...],
    source: Source,
    context: Context,
    *,
    environment: Mapping[str, Given] | None = None,
    launchers: tuple[Launcher, ...] = (),
    image: str = "",
) -> list[Command]:
    """The commands of words that need no shell: of a container's `command` and `args`, a service's ExecStart. `image` starts its own program before them."""
    around = _Around(source, context, launchers, environment or {})
    known = image_of(image) if image else None
    return _command(around._replace(image=known), words, environment or {}, {}, {}, ())


def _of_text(text: str, around: _Around) -> list[tuple[Command, bool]]:
    """The commands of a text, each with whether it stands in a branch that is not taken."""
    state = State([(Piece(word.text, word.place.line or around.first_line),) for word in around.arguments])
    for name, given in around.environment.items():
        state.variables[name] = Variable((Piece(str(given.value), given.place.line or 1),), exported=True)
    for launcher in around.launchers:
        for name, word in headers.variables(launcher).items() if launcher.name in ("sbatch", "srun") else ():
            state.variables.setdefault(name, Variable((Piece(word.text, word.place.line or 1),), exported=True))
    state.files = dict(around.files)
    for name, value in around.exported.items():
        state.variables[name] = Variable(value, exported=True)
    shell = Interpreter(around.source.path, state, lambda path: _given_text(around.context, path), around.unknowns)
    shell.follow(shell.parse_leniently(without_marks(text), around.first_line))
    findings = _findings(shell.notes, around.source)
    commands: list[tuple[Command, bool]] = []
    for started in shell.started:
        words = tuple(word_of(word, shell.unknowns, around.source, started.line) for word in started.words)
        environment = _values(started.environment, shell.unknowns, around.source)
        plain_ones = _values(started.plain_variables, shell.unknowns, around.source)
        here = around._replace(unknowns=shell.unknowns, exported=started.environment)
        before = tuple(each for each in findings if each.id != "assumed-condition" or _line_of(each) <= started.line)
        commands += [(made, started.alternative) for made in _command(here, words, environment, plain_ones, started.files, before)]
    return commands


def _given_text(context: Context, path: str) -> str | None:
    """The text of a script or file that was given beside this one."""
    source = context.find(path)
    return source.text if source is not None else None


def word_of(text: Text, unknowns: Unknowns, source: Source, default: int) -> Word:
    """A word as readers see it: unknown parts as the script writes them, with the reason."""
    whole = plain(text)
    unknown = unknowns.of(whole)
    return Word(unknowns.shown(whole), source.place(first_line(text, default)), reason(unknown) if unknown else "")


def reason(unknown: tuple[Unknown, ...]) -> str:
    """Why something is not known."""
    return "; ".join(dict.fromkeys(_WHY[each.why].format(each.written[:80]) for each in unknown))


def _values(variables: Mapping[str, Text], unknowns: Unknowns, source: Source) -> dict[str, Given]:
    return {name: Given(unknowns.shown(plain(text)), Place(source.path, first_line(text, 0) or None, name)) for name, text in variables.items()}


def _line_of(finding: Finding) -> int:
    line = finding.place.rpartition(":")[2]
    return int(line) if line.isdigit() else 0


_MOST_ASSUMED = 10


def _findings(notes: list[Note], source: Source) -> tuple[Finding, ...]:
    """The notes of a script as findings; of many assumed conditions the first."""
    assumed = [note for note in notes if note.kind == "assumed"]
    shown = [note for note in notes if note.kind != "assumed"] + assumed[:_MOST_ASSUMED]
    found = [_finding(note.kind, source.place(note.line or None), note.text) for note in shown]
    if len(assumed) > _MOST_ASSUMED:
        found.append(_finding("assumed", source.place(), f"{len(assumed) - _MOST_ASSUMED} further conditions are read the same way"))
    return tuple(found)


def _finding(kind: str, place: Place, text: str) -> Finding:
    ids = {"broken": "broken-continuation", "assumed": "assumed-condition", "limit": "script-too-long", "passed": "lines-passed-over"}
    return Finding(id=ids[kind], severity="note" if kind == "assumed" else "warning", place=str(place), message=text)


def _command(
    around: _Around,
    words: tuple[Word, ...],
    environment: Mapping[str, Given],
    plain_ones: Mapping[str, Given],
    files: Mapping[str, WrittenFile],
    findings: tuple[Finding, ...],
) -> list[Command]:
    """The command without its launchers; several if it starts a script of its own."""
    peeled = peel(words)
    launchers = (*around.launchers, *peeled.launchers)
    image = image_of(peeled.image.text) if peeled.image is not None else around.image
    inside = _container_environment(peeled.launchers) if peeled.image is not None else dict(environment)
    assigned = {}
    for word in peeled.assignments:
        name, _, value = word.text.partition("=")
        assigned[name] = Given(value, word.place._replace(flag=name))
    inside = {**inside, **assigned}
    exported = {} if peeled.image is not None else {name: text for name, text in around.exported.items() if name not in assigned}
    inner = around._replace(launchers=launchers, environment=inside, exported=exported, files=files, depth=around.depth + 1, image=image)
    if (peeled.script is not None or peeled.file is not None) and around.depth < _MOST_NESTED:
        nested = _nested(peeled, inner)
        if nested is not None:
            return [command._replace(findings=(*findings, *command.findings)) for command in nested]
    if peeled.file is not None:
        peeled = peeled._replace(words=(peeled.file, *peeled.words))
    own = _with_image(peeled.words, image, peeled.image.place if peeled.image is not None else around.source.place())
    if not own:
        return []
    counted = counts.counted(launchers, inside, own)
    settings = dict(counted.settings)
    if image is not None and image.version:
        place = peeled.image.place if peeled.image is not None else own[0].place
        settings["serve.version"] = Given(image.version, place)
    notes = (*findings, *counted.findings, *_not_exported(plain_ones, launchers))
    sources = {name: Source(file.text, f"{around.source.path}:{file.line} ({name})") for name, file in files.items()}
    return [Command(own, own[0].place, launchers, inside, sources, settings, counted.missing, notes)]


def _nested(peeled: Peeled, inner: _Around) -> list[Command] | None:
    """The commands of `bash -c TEXT` or of a script that is known; None if the script is not."""
    if peeled.script is not None:
        made = _of_text(peeled.script.text, inner._replace(first_line=peeled.script.place.line or 1, arguments=peeled.words[1:]))
        return [command for command, alternative in made if not alternative] or [command for command, _ in made]
    assert peeled.file is not None
    written = inner.files.get(peeled.file.text)
    source = None if written is not None else inner.context.find(peeled.file.text)
    if written is None and source is None:
        return None
    text, line = (written.text, written.line) if written is not None else (source.text if source else "", 1)
    around = inner._replace(first_line=line, arguments=peeled.words, source=source or inner.source)
    header = headers.launcher_of(source) if source is not None else None
    if header is not None:
        around = around._replace(launchers=(header, *around.launchers))
    made = _of_text(text, around)
    return [command for command, alternative in made if not alternative] or [command for command, _ in made]


def _with_image(words: tuple[Word, ...], image: Image | None, where: Place) -> tuple[Word, ...]:
    """The words with the program that an image starts by itself in front, where they are flags only."""
    if image is None or not image.program:
        return words
    if words and not words[0].text.startswith("-") and not _is_argument(words[0], image):
        return _ollama(words, image)
    place = words[0].place if words else where
    return (*(Word(text, place) for text in image.program), *words)


def _is_argument(word: Word, image: Image) -> bool:
    """Whether the first word of a container is an argument of the image's program: a model's name for `vllm serve`."""
    return word.unknown != "" or (image.program[-1] == "serve" and "/" in word.text and not word.text.startswith(("/bin", "/usr", "./", "/app", "/opt")))


def _ollama(words: tuple[Word, ...], image: Image) -> tuple[Word, ...]:
    """ollama's settings are variables: a script of one's own around it starts the same server."""
    if image.engine != "ollama" or program_name(words[0].text) == "ollama":
        return words
    return tuple(Word(text, words[0].place) for text in image.program)


def _container_environment(launchers: tuple[Launcher, ...]) -> dict[str, Given]:
    """`docker run -e NAME=value`."""
    found = {}
    for launcher in launchers:
        for i, word in enumerate(launcher.words):
            if launcher.name not in ("docker", "kubectl", "apptainer", "udocker"):
                continue
            written, equals, inline = word.text.partition("=")
            text = inline if equals and written == "--env" else ""
            if word.text in ("-e", "--env") and i + 1 < len(launcher.words):
                text = launcher.words[i + 1].text
            elif written.startswith("-e") and len(written) > 2 and not written.startswith("--") and written[2:].isidentifier():
                text = word.text[2:]
            name, equals, value = text.partition("=")
            if equals:
                found[name] = Given(value, word.place._replace(flag=name))
    return found


_READ_BY_PROGRAMS = ("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "FORCE_TORCHRUN", "VLLM_ATTENTION_BACKEND")
_READ_BY_STARTERS = ("NPROC_PER_NODE", "NNODES")


def _not_exported(plain_ones: Mapping[str, Given], launchers: tuple[Launcher, ...]) -> list[Finding]:
    """Variables that the program would read and that are set without being exported. Where a launcher counts processes, the script uses some itself."""
    found = []
    counts_itself = any(launcher.name in ("torchrun", "accelerate", "deepspeed", "mpirun") for launcher in launchers)
    for name in _READ_BY_PROGRAMS if counts_itself else _READ_BY_STARTERS + _READ_BY_PROGRAMS:
        if name in plain_ones:
            message = f"{name}={plain_ones[name].value} is set for the script alone: the program does not see it"
            remedy = f"write `export {name}=...`, or end the line with a backslash so that it stands in front of the command"
            found.append(Finding(id="not-exported", severity="warning", place=str(plain_ones[name].place), message=message, remedy=remedy))
    return found
