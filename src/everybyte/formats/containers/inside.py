"""Files of deployment tools that hold a launch as text, whatever their own form is: `start_command`, `run`, `cmd` of Truss, SkyPilot and the like."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.containers.container import gpu_of_label
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.launch_text import launch_texts
from everybyte.formats.place import Given
from everybyte.formats.shell.script import commands_of_shell

_ENVIRONMENTS = ("environment_variables", "envs", "env", "environment")
_ACCELERATORS = ("resources.accelerator", "resources.accelerators", "accelerator", "accelerators")


def commands_of(document: Document, context: Context) -> list[Command]:
    """The commands of all such texts, with the environment and the GPUs that the file states at its top."""
    environment = _environment(document)
    settings = _accelerators(document)
    found: list[Command] = []
    for path, text in launch_texts(document.value):
        line = document.place(path).line or 1
        first = line + 1 if "\n" in text.strip() else line
        commands = commands_of_shell(document.source._replace(text=text), context, environment=environment, first_line=first)
        found += [command._replace(settings={**settings, **command.settings}) for command in commands]
    return found


def _environment(document: Document) -> dict[str, Given]:
    for key in _ENVIRONMENTS:
        value = document.get(key)
        if isinstance(value, dict):
            texts = {str(name): item for name, item in value.items() if isinstance(item, str | int | float)}
            return {name: Given(str(item), document.place(f"{key}.{name}")._replace(flag=name)) for name, item in texts.items()}
    return {}


def _accelerators(document: Document) -> dict[str, Given]:
    """`accelerator: H100:4`."""
    for key in _ACCELERATORS:
        value = document.get(key)
        if isinstance(value, dict) and len(value) == 1:
            value = ":".join(str(part) for part in next(iter(value.items())))
        if isinstance(value, str) and value:
            name, _, count = value.partition(":")
            place = document.place(key)
            settings = {"hardware.gpus": Given(int(count), place)} if count.isdigit() else {}
            gpu = gpu_of_label(name, place)
            return {**settings, "hardware.gpu": gpu} if gpu is not None else settings
    return {}
