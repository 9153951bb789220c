"""One run of a training framework while it is read: its keys, the job under construction, and the files beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.formats.bag import Bag, normal
from everybyte.formats.command import Command, Word
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.flags import PATH_END, Spelling, parse
from everybyte.formats.place import Given, Place
from everybyte.formats.source import Source
from everybyte.formats.table import Table
from everybyte.formats.values import boolean, number, whole

DATA_FILES = (".yaml", ".yml", ".json", ".toml")


class Run(NamedTuple):
    """What the rules of a reader look at."""

    bag: Bag
    draft: JobDraft
    context: Context
    command: Command | None = None
    words: tuple[Word, ...] = ()
    """Words of the command that are no flags and no files of settings."""
    path: str = ""
    """Of the file, or of the program."""

    @property
    def files(self) -> Mapping[str, Source]:
        """Files that the script wrote."""
        return self.command.files if self.command else {}

    def whole(self, *keys: str) -> int | None:
        """A whole number among the keys."""
        return whole(self.bag.value(*keys))

    def number(self, *keys: str) -> float | int | None:
        """A number among the keys."""
        return number(self.bag.value(*keys))

    def switch(self, *keys: str) -> bool | None:
        """A switch among the keys; None if it is not given."""
        value = self.bag.value(*keys)
        return None if value is None else boolean(value)

    def text(self, *keys: str) -> str | None:
        """A text among the keys."""
        value = self.bag.value(*keys)
        return value if isinstance(value, str) else None

    def place(self, *keys: str) -> Place:
        """Where the first given one of the keys was written."""
        found = next((self.bag.place(key) for key in keys if key in self.bag), None)
        return found or Place(self.path)

    def state(self, job_key: str, value: Any, *keys: str) -> None:
        """States a job key with the place of the first given one of the keys."""
        self.draft.state(job_key, value, self.place(*keys))

    def state_nodes(self, each: Given | None, nodes: Given | None) -> None:
        """The GPUs where a framework counts those of a node and the nodes; one node where no number is given."""
        count = whole(each.value) if each is not None else None
        machines = (whole(nodes.value) if nodes is not None else None) or 1
        if each is not None and count:
            self.draft.state("hardware.gpus", count * machines, each.place)
            if machines > 1:
                self.draft.state("hardware.gpus_per_node", count, each.place)


def of_document(document: Document, context: Context, framework: str) -> Run:
    """The run of a file."""
    return Run(document.bag(), JobDraft(framework, document.source.name), context, path=document.source.path)


def of_command(command: Command, context: Context, framework: str, spelling: Spelling, config_keys: Sequence[str] = ("config",)) -> Run:
    """The run of a command; the settings of a file that it names lie below its flags and its `key=value` words."""
    draft = JobDraft(framework, command.program.rpartition("/")[2])
    draft.findings += command.findings
    flags = parse(command.words[1:], spelling)
    draft.findings += flags.findings
    bag, rest = flags.bag, []
    for word in flags.positional:
        key, equals, value = word.text.partition("=")
        if equals and key and (not word.unknown or PATH_END.search(value)):
            bag = Bag({key.lstrip("+~"): Given(_hydra(value), word.place)}).over(bag)
        elif word.text.casefold().endswith(DATA_FILES):
            bag = bag.over(_file(word.text, word.place, command, context, draft))
        else:
            rest.append(word)
    for key in config_keys:
        named = bag.take(key)
        if named is not None and isinstance(named.value, str) and named.value.casefold().endswith(DATA_FILES):
            bag = bag.over(_file(named.value, named.place, command, context, draft))
    return Run(unfolded(bag), draft, context, command, tuple(rest), command.program)


def _hydra(value: str) -> Any:
    """The value of `key=value`: quotes are Hydra's own, `null` is nothing, `[a,b]` is a list."""
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text in ("null", "None", ""):
        return None
    if text.startswith("[") and text.endswith("]"):
        return [part.strip().strip("\"'") for part in text[1:-1].split(",") if part.strip()]
    return value


def _file(path: str, place: Place, command: Command, context: Context, draft: JobDraft) -> Bag:
    document = context.document(path, command.files)
    if document is not None:
        return document.bag()
    draft.find("file-not-given", "warning", place, f"the settings in {path} are not known, because the file was not given", "give it as well")
    return Bag()


def unfolded(bag: Bag) -> Bag:
    """The bag with JSON objects in its texts written out: `--gradient_checkpointing_kwargs '{"use_reentrant": false}'`."""
    from everybyte.job import json_text

    more: dict[str, Given] = {}
    for key in list(bag):
        given = bag.peek(key)
        if given is None or not isinstance(given.value, str) or not given.value.lstrip().startswith("{"):
            continue
        try:
            value = json_text.load(given.value, str(given.place))
        except BadInput:
            continue
        if isinstance(value, dict):
            bag.take(key)
            more.update({f"{key}.{normal(name)}": Given(inner, given.place) for name, inner in value.items()})
    return Bag(more).over(bag) if more else bag


def finished(run: Run) -> list[JobDraft]:
    """The draft, with what the launchers say and what nobody knew."""
    if run.command is not None:
        run.draft.take_given(run.command.settings)
        for key, reason in run.command.missing.items():
            run.draft.miss(key, reason)
    run.draft.report(run.bag)
    return [run.draft]


def spelling(table: Table, **more: Any) -> Spelling:
    """The flags of a framework whose table is known."""
    lists = frozenset(row.key for row in table.rows if row.kind == "names")
    return Spelling(known=table.known, lists=lists, **more)


def launcher_bag(run: Run, name: str) -> Bag:
    """The own flags of a launcher of the run, such as accelerate's."""
    launchers = run.command.launchers if run.command else ()
    found = next((launcher for launcher in launchers if launcher.name == name), None)
    return parse(found.words).bag if found is not None else Bag()
