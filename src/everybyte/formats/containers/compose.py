"""docker-compose: every service whose image or command is an engine is a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everybyte.formats.command import Command, Word
from everybyte.formats.containers.container import Container, interpolated, split
from everybyte.formats.containers.container import commands_of as commands_of_container
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.place import Given, Place


def commands_of(document: Document, context: Context) -> list[Command]:
    """The commands of all services."""
    services = document.get("services")
    if not isinstance(services, dict):
        return []
    variables = _variables(context)
    found: list[Command] = []
    for name, service in services.items():
        if isinstance(service, dict):
            found += commands_of_container(_container(document, f"services.{name}", service, variables), document.source, context)
    return found


def _variables(context: Context) -> dict[str, str]:
    """What a `.env` file that was given beside says."""
    source = next((source for source in context.sources if source.name in (".env", "env") or source.name.endswith(".env")), None)
    if source is None:
        return {}
    context.claimed.add(source.path)
    pairs = (line.strip().removeprefix("export ").partition("=") for line in source.text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}


def _container(document: Document, path: str, service: dict[str, Any], variables: Mapping[str, str]) -> Container:
    environment = _environment(document, path, service.get("environment"), variables)
    words = [
        *_words(document, f"{path}.entrypoint", service.get("entrypoint"), variables),
        *_words(document, f"{path}.command", service.get("command"), variables),
    ]
    image, _ = interpolated(str(service.get("image") or ""), variables)
    return Container(image, tuple(words), environment, _gpus(document, path, service, environment, variables))


def _words(document: Document, path: str, value: Any, variables: Mapping[str, str]) -> list[Word]:
    """A list of words, or a text that compose splits like a shell."""
    if value is None:
        return []
    items = value if isinstance(value, list) else None
    out = []
    if items is None:
        text, unset = interpolated(str(value), variables)
        out = split(text, document.place(path))
        return [_marked(word, unset) for word in out]
    for i, item in enumerate(items):
        text, unset = interpolated(str(item), variables)
        out.append(_marked(Word(text, document.place(f"{path}[{i}]")), unset))
    return out


def _marked(word: Word, unset: tuple[str, ...]) -> Word:
    """The word with what is not known of it."""
    missing = [name for name in unset if f"${name}" in word.text or f"${{{name}" in word.text]
    return word._replace(unknown="; ".join(f"{name} is not set in the file" for name in missing)) if missing else word


def _environment(document: Document, path: str, value: Any, variables: Mapping[str, str]) -> dict[str, Given]:
    """A mapping, or a list of `NAME=value`; a name alone is passed through and not known."""
    found: dict[str, Given] = {}
    if isinstance(value, dict):
        pairs = [(str(name), item, document.place(f"{path}.environment.{name}")) for name, item in value.items()]
    elif isinstance(value, list):
        pairs = []
        for i, item in enumerate(value):
            name, equals, text = str(item).partition("=")
            pairs.append((name.strip(), text.strip() if equals else None, document.place(f"{path}.environment[{i}]")))
    else:
        pairs = []
    for name, item, place in pairs:
        if item is None:
            continue
        text, unset = interpolated(_text(item), variables)
        if not unset:
            found[name] = Given(text.strip("\"'"), Place(place.source, place.line, name))
    return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gpus(document: Document, path: str, service: dict[str, Any], environment: Mapping[str, Given], variables: Mapping[str, str]) -> Word | None:
    """`deploy.resources.reservations.devices`, the short `gpus`, or NVIDIA_VISIBLE_DEVICES."""
    where = f"{path}.deploy.resources.reservations.devices"
    devices = document.get(where) or service.get("gpus")
    if isinstance(devices, list):
        for i, device in enumerate(devices):
            if isinstance(device, dict) and ("gpu" in str(device.get("capabilities", "gpu")) or device.get("driver") == "nvidia"):
                return _device(document, f"{where}[{i}]", device, variables)
        return None
    if devices is not None:
        return Word(interpolated(str(devices), variables)[0], document.place(f"{path}.gpus"))
    visible = environment.get("NVIDIA_VISIBLE_DEVICES")
    if visible is not None and str(visible.value)[:1].isdigit():
        return Word(f"device={visible.value}", visible.place)
    return None


def _device(document: Document, where: str, device: dict[str, Any], variables: Mapping[str, str]) -> Word:
    if isinstance(device.get("device_ids"), list):
        ids = ",".join(interpolated(str(each), variables)[0] for each in device["device_ids"])
        count = len([each for each in ids.split(",") if each])
        return Word(str(count), document.place(f"{where}.device_ids"))
    asked, _ = interpolated(str(device.get("count", "all")), variables)
    return Word(asked, document.place(f"{where}.count"))
