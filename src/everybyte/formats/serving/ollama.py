"""ollama: Modelfiles, commands, and the variables of its server."""

from __future__ import annotations

import re

from everybyte.formats.bag import Bag
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given
from everybyte.formats.serving.engine_reading import Reading
from everybyte.formats.serving.flag_table import flag_table
from everybyte.formats.serving.reading import finished, model, of_command
from everybyte.formats.source import Source
from everybyte.formats.values import boolean

FILE = "ollama.csv"
_LINE = re.compile(r"[ \t]*(FROM|PARAMETER|ADAPTER|TEMPLATE|SYSTEM|LICENSE|MESSAGE|REQUIRES|RENDERER|PARSER|DRAFT)[ \t]+", re.IGNORECASE)
_UNKNOWN = re.compile(r"OLLAMA_\w+")


def read_text(source: Source, context: Context) -> list[JobDraft]:
    """A Modelfile. Texts in triple quotes may hold any words."""
    return _modelfile(source, Reading("ollama", JobDraft("ollama"), flag_table(FILE), Bag()))


def _modelfile(source: Source, reading: Reading) -> list[JobDraft]:
    """A Modelfile, with what is known of the server that runs it."""
    draft, table = reading.draft, reading.table
    draft.infer("serve.engine", "ollama", "a Modelfile")
    given: dict[str, Given] = {}
    for instruction, text, line in instructions(source.text):
        place = source.place(line, instruction.upper())
        if instruction == "from":
            model(reading, Given(text.strip("\"'"), place))
        elif instruction == "adapter":
            draft.state("serve.lora", True, place)
        elif instruction == "draft":
            draft.state("serve.draft.model", text.strip("\"'"), place)
        elif instruction == "parameter":
            name, _, value = text.partition(" ")
            given[name.casefold()] = Given(value.strip().strip('"'), source.place(line, name))
    return _read(reading._replace(bag=table.settled(given, draft).over(_variables(reading))))


def read_document(document: object, context: Context) -> list[JobDraft]:
    """Nothing but Modelfiles and commands is ollama's."""
    return []


def instructions(text: str) -> list[tuple[str, str, int]]:
    """The instructions of a Modelfile: (name in lower case, text, line)."""
    found = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        line, first = lines[number], number + 1
        number += 1
        match = _LINE.match(line)
        if match is None or line.lstrip().startswith("#"):
            continue
        rest = line[match.end() :].strip()
        if '"""' in rest and rest.count('"""') % 2:
            while number < len(lines) and '"""' not in lines[number]:
                number += 1
            number += 1
        found.append((match[1].casefold(), rest, first))
    return found


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`ollama serve` with its variables, `ollama run MODEL`, `ollama create NAME -f Modelfile`."""
    verb = command.words[1].text if len(command.words) > 1 else ""
    if verb in ("pull", "list", "ls", "ps", "stop", "rm", "show", "push", "cp", "signin", "signout", "help", "--version", "-v"):
        return []
    reading = of_command("ollama", FILE, command, 2, context)
    if verb == "create":
        return _create(reading, context)
    if verb in ("run", "launch") and reading.positional:
        model(reading, Given(reading.positional[0].text, reading.positional[0].place))
    if verb == "run":
        reading.bag.ignore(("verbose", "format", "keepalive", "insecure", "nowordwrap", "think", "hidethinking", "truncate", "dimensions"))
    return _read(reading._replace(bag=reading.bag.over(_variables(reading))))


def _create(reading: Reading, context: Context) -> list[JobDraft]:
    """The Modelfile that a command makes a model of, if it was given or written before."""
    path = reading.bag.value("f", "file")
    files = reading.command.files if reading.command is not None else {}
    source = context.find(str(path or "Modelfile"), files)
    return _modelfile(source, reading) if source is not None else []


def _variables(reading: Reading) -> Bag:
    return reading.table.settled({name: given for name, given in reading.environment.items() if name.startswith("OLLAMA_")}, reading.draft)


def _read(reading: Reading) -> list[JobDraft]:
    draft, bag = reading.draft, reading.bag
    flash = bag.take("OLLAMA_FLASH_ATTENTION")
    if flash is not None and boolean(flash.value) is not None:
        draft.state("serve.attention", "flash" if boolean(flash.value) else "eager", flash.place)
    for name, given in [(key, bag.peek(key)) for key in bag]:
        if given is not None and _UNKNOWN.fullmatch(name) and name not in reading.table.names:
            bag.take(name)
            message = f"{name} is no variable that ollama reads: it has no effect"
            remedy = "set num_gpu in the Modelfile or in the request" if name == "OLLAMA_NUM_GPU" else "leave it out"
            draft.find("variable-without-effect", "warning", given.place, message, remedy)
    return finished(reading)
