"""Reads sources into drafts of jobs: recognises each, lets the reader of its format work, and lets files that belong together complete each other."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everybyte.basics.errors import BadInput
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.launch_text import launch_texts
from everybyte.formats.registry import COMPANIONS, STARTS_PROGRAMS, format_of_command, format_of_document, module_of, program_module
from everybyte.formats.source import Source

DATA_ENDINGS = (".yaml", ".yml", ".json", ".toml")
MOST_OF_A_SCRIPT = 512 * 2**10
"""Characters of the longest script that is followed."""
PYTHON_ENDINGS = (".py", ".ipynb")


def read(sources: Sequence[Source], *, as_format: str | None = None, version: str | None = None) -> list[JobDraft]:
    """The jobs of the sources, in their order. Raises BadInput with the place if none of them is anything known."""
    context = Context(sources, version)
    kinds, refused = _recognised(sources, as_format, context)
    drafts: list[JobDraft] = []
    for wanted in (_starts_programs, _is_whole, _is_companion):  # programs name their files, and files their companions
        for source, kind in kinds:
            if wanted(kind) and source.path not in context.claimed:
                drafts += _read_source(source, kind, context)
    for path, fault in refused.items():
        if path not in context.claimed:
            raise fault
    return drafts


def _recognised(sources: Sequence[Source], as_format: str | None, context: Context) -> tuple[list[tuple[Source, str]], dict[str, BadInput]]:
    """The sources with their formats, and the faults of those that are none: another file may name them, and then knows what they are."""
    kinds, refused = [], {}
    for source in sources:
        try:
            kinds.append((source, as_format or recognise(source, context)))
        except BadInput as fault:
            if len(sources) == 1:
                raise
            refused[source.path] = fault
    for source, kind in kinds:
        context.note_format(source, kind)
    return kinds, refused


def recognise(source: Source, context: Context) -> str:
    """The format of a source. Raises BadInput with the place if it is none."""
    if source.ending in PYTHON_ENDINGS:
        return "python"
    if source.ending not in DATA_ENDINGS and (special := _by_text(source)) is not None:
        return special
    try:
        documents = context.documents(source)
    except BadInput:
        if source.ending in DATA_ENDINGS or source.text.lstrip().startswith("{"):
            raise
        return "shell"
    names = [name for document in documents if (name := format_of_document(document)) is not None]
    if names:
        return names[0]
    if any(_is_plain_mapping(document.value) and next(launch_texts(document.value), None) for document in documents):
        return "launch-text"
    if source.ending in DATA_ENDINGS:
        raise BadInput(str(source.place(1)), f"is no format that is known here{_keys_of(documents)}; --as FORMAT says which it is")
    return "shell"


def _is_plain_mapping(value: object) -> bool:
    """A mapping whose keys are names, which no command line is by chance."""
    return isinstance(value, dict) and all(re.fullmatch(r"[\w./-]+", str(key)) for key in value)


def _by_text(source: Source) -> str | None:
    """Formats that are no YAML, JSON or TOML, by their lines."""
    has_base = re.search(r"(?im)^\s*FROM\s+\S+\s*$", source.text) and re.search(r"(?im)^\s*PARAMETER\s", source.text)
    if has_base or source.name.casefold().startswith("modelfile"):
        return "ollama"
    if re.search(r"(?m)^\s*ExecStart\s*=", source.text):
        return "systemd"
    if source.text.startswith("#!") or source.ending in (".sh", ".bash", ".sbatch", ".slurm", ".bat", ".cmd", ".ps1"):
        return "shell"
    return None


def _read_source(source: Source, kind: str, context: Context) -> list[JobDraft]:
    module = module_of(kind)
    if kind in STARTS_PROGRAMS:
        return _read_commands(_commands(module, source, kind, context), source, context)
    if hasattr(module, "read_text"):
        found: list[JobDraft] = module.read_text(source, context)
        return found
    drafts: list[JobDraft] = []
    for document in context.documents(source):
        drafts += module.read_document(document, context)
    return drafts


def _commands(module: object, source: Source, kind: str, context: Context) -> list[Command]:
    """The commands of a file that starts programs."""
    if hasattr(module, "commands_of_text"):
        if len(source.text) > MOST_OF_A_SCRIPT:
            raise BadInput(source.path, f"is larger than {MOST_OF_A_SCRIPT // 2**10} KiB, which no launch script is")
        found: list[Command] = module.commands_of_text(source, context)
        return found
    documents: list[Document] = context.documents(source)
    return [command for document in documents for command in module.commands_of(document, context)]  # type: ignore[attr-defined]  # the protocol of registry.py


def _read_commands(commands: Sequence[Command], source: Source, context: Context) -> list[JobDraft]:
    """The jobs of those commands whose program is known. Raises BadInput if none is."""
    drafts: list[JobDraft] = []
    for command in commands:
        if (name := format_of_command(command)) is not None:
            drafts += program_module(name).read_command(command, context)
    if not drafts:
        seen = ", ".join(dict.fromkeys(command.program for command in commands if command.program)) or "no command"
        place = str(commands[0].place) if commands else source.path
        raise BadInput(place, f"starts no program that is known here; it starts {seen[:200]!r}. Nothing of it was run")
    return drafts


def _keys_of(documents: Sequence[Document]) -> str:
    keys = [str(key) for document in documents if isinstance(document.value, dict) for key in document.value]
    return f": its keys are {', '.join(keys[:8])!r}" if keys else ": it holds no mapping with keys"


def _starts_programs(kind: str) -> bool:
    return kind in STARTS_PROGRAMS


def _is_companion(kind: str) -> bool:
    return kind in COMPANIONS


def _is_whole(kind: str) -> bool:
    return kind not in STARTS_PROGRAMS and kind not in COMPANIONS
