"""Files that somebody dropped on the page: model configs, headers of weights, job files, configurations of frameworks. They are read out of memory; nothing is
written anywhere.

A file may be only its first bytes with the size of the whole: of weights nothing but the header is read.
"""

from __future__ import annotations

import binascii
from contextlib import suppress
from math import prod
from typing import Any

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.checkpoint.json_file import CONFIG_LIMIT, read_json
from everybyte.checkpoint.read import read_folder
from everybyte.checkpoint.safetensors import INDEX_SUFFIX
from everybyte.checkpoint.source import Folder, Source
from everybyte.checkpoint.stored import Checkpoint, shown
from everybyte.job import job_to_dict
from everybyte.job.read import MOST_BYTES, parse
from everybyte.layers.network import Network
from everybyte.models.count import parameter_count
from everybyte.models.source import network_of
from everybyte.report.words import count
from everybyte.web.bodies import read
from everybyte.web.forms import DroppedFile, ReadAnswer, ReadAsked
from everybyte.web.replies import MoreNeeded

CONFIG = "config.json"
JOB_ENDINGS = (".yaml", ".yml", ".toml")
TEXT_ENDINGS = (*JOB_ENDINGS, ".json", ".sh", ".bash", ".sbatch", ".slurm", ".ps1", ".bat", ".service", "modelfile")
"""How files end that a framework is configured or started with."""
MODEL_KEYS = {"model_type", "architectures", "_class_name"}
"""Keys of a model's config.json."""
SLACK = 0.02
"""Share by which the parameters of config and weights may differ before a note says so: buffers and padding are stored too."""

# llama.cpp include/llama.h, enum llama_ftype
GGUF_FILE_TYPES = {
    0: "fp32",
    1: "fp16",
    2: "q4_0",
    3: "q4_1",
    7: "q8_0",
    8: "q5_0",
    9: "q5_1",
    10: "q2_k",
    11: "q3_k_s",
    12: "q3_k_m",
    13: "q3_k_l",
    14: "q4_k_s",
    15: "q4_k_m",
    16: "q5_k_s",
    17: "q5_k_m",
    18: "q6_k",
    19: "iq2_xxs",
    20: "iq2_xs",
    21: "q2_k_s",
    22: "iq3_xs",
    23: "iq3_xxs",
    24: "iq1_s",
    25: "iq4_nl",
    26: "iq3_s",
    27: "iq3_m",
    28: "iq2_s",
    29: "iq2_m",
    30: "iq4_xs",
    31: "iq1_m",
    32: "bf16",
    36: "tq1_0",
    37: "tq2_0",
    38: "mxfp4",
    39: "nvfp4",
}


class Slice:
    """The first bytes of a file, or all of them."""

    def __init__(self, file: DroppedFile) -> None:
        self.place = shown(file.name).strip("'")
        try:
            self._data = binascii.a2b_base64(file.base64, strict_mode=True)
        except binascii.Error as error:
            raise BadInput(self.place, f"is not base64: {error}") from None
        self.size = len(self._data) if file.size is None else file.size
        if self.size < len(self._data):
            raise BadInput(self.place, f"brings {len(self._data):,} bytes, more than the {self.size:,} that it says the file has")

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`. Raises MoreNeeded beyond the slice, BadInput beyond the file."""
        end = offset + length
        if end > self.size:
            raise BadInput(self.place, f"ends at byte {self.size:,}, where {length:,} bytes from byte {offset:,} were expected: truncated")
        if end > len(self._data):
            raise MoreNeeded(self.place, f"its header goes on after the {len(self._data):,} bytes that were given; send the first {end:,}", end)
        return self._data[offset:end]


class Heap:
    """Dropped files side by side."""

    place = "the dropped files"

    def __init__(self, files: tuple[DroppedFile, ...]) -> None:
        self._files = {file.name.replace("\\", "/").rpartition("/")[2]: file for file in files}
        if len(self._files) < len(files):
            raise BadInput("files", "two of them have the same name")

    def names(self) -> list[str]:
        """Their names without folders, sorted."""
        return sorted(self._files)

    def open(self, name: str) -> Source:
        """The file called `name`."""
        if name not in self._files:
            raise BadInput(shown(name), "is not among the dropped files")
        return Slice(self._files[name])


def read_dropped(body: bytes) -> bytes:
    """What the dropped files say: a model and what goes with it, or a whole job. Raises BadInput with one clear message."""
    heap = Heap(read(body, ReadAsked).files)
    names = heap.names()
    alone = names[0] if len(names) == 1 else None
    if alone is not None and alone.lower().endswith(JOB_ENDINGS):
        return msgspec.json.encode(_job_or_configuration(heap, alone))
    if all(name.lower().endswith(TEXT_ENDINGS) for name in names) and not (alone or "").endswith(".json") and CONFIG not in names:
        return msgspec.json.encode(_configuration(heap, names))
    if alone is not None and alone.lower().endswith(".json") and not alone.endswith(INDEX_SUFFIX):
        return msgspec.json.encode(_json(heap, alone))
    return msgspec.json.encode(_checkpoint(read_folder(heap, _stem(names)), heap))


def _stem(names: list[str]) -> str:
    """How to call a model that lies in these files: by the weights, else by nothing."""
    weights = next((name for name in names if name.lower().endswith((".gguf", ".safetensors"))), "")
    return weights.rpartition(".")[0]


def _job(heap: Folder, name: str) -> ReadAnswer:
    job = parse(_text(heap, name), heap.open(name).place).job()
    return ReadAnswer(name=job.name or name.rpartition(".")[0], job=job_to_dict(job), notes=("a job file: all its settings are taken over",))


def _text(heap: Folder, name: str) -> str:
    """The text of a file, within bounds of size and as UTF-8."""
    file = heap.open(name)
    if file.size > MOST_BYTES:
        raise BadInput(file.place, f"is larger than {MOST_BYTES // 2**20} MiB, which no job file is")
    try:
        return file.read(0, file.size).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(file.place, f"is not UTF-8 text: byte {error.start}") from None


def _job_or_configuration(heap: Folder, name: str) -> ReadAnswer:
    """A job file, or the configuration of a framework."""
    try:
        return _job(heap, name)
    except BadInput as fault:
        try:
            return _configuration(heap, [name])
        except BadInput:
            raise fault from None


def _configuration(heap: Folder, names: list[str]) -> ReadAnswer:
    """Configurations and scripts that belong together, read as one job. Raises BadInput with the place."""
    from everybyte.formats.finish import finish
    from everybyte.formats.read import read as read_formats
    from everybyte.formats.source import Source as Text

    drafts = read_formats([Text(_text(heap, name), name) for name in names])
    imported = finish(drafts[0])
    notes = [f"read as {imported.framework}" + (f", the first of {len(drafts)} jobs" if len(drafts) > 1 else "")]
    notes += [f"{finding.severity}: {finding.place}: {finding.message}. {finding.remedy}".strip() for finding in imported.findings]
    notes += [f"missing: {missing.key}: {missing.message}" for missing in imported.missing]
    if imported.unknown:
        notes.append(f"unknown keys: {', '.join(unknown.key for unknown in imported.unknown)}")
    called = imported.name.rpartition(".")[0] or imported.name
    if "model" in imported.job:
        return ReadAnswer(name=called, job=imported.job, notes=tuple(notes))
    return ReadAnswer(name=called, train=imported.job.get("train"), serve=imported.job.get("serve"), notes=tuple(notes))


def _json(heap: Folder, name: str) -> ReadAnswer:
    """A JSON file is a job if it has a job's keys, a model's config if it says its type, else perhaps the configuration of a framework."""
    content = read_json(heap.open(name), CONFIG_LIMIT)
    if "model" in content and ("train" in content or "serve" in content):
        return _job(heap, name)
    if not MODEL_KEYS & content.keys():
        with suppress(BadInput):
            return _configuration(heap, [name])
    network = _network(content, name)
    stated = content.get("_name_or_path")
    called = stated if isinstance(stated, str) and stated and not stated.startswith((".", "/")) else "" if name == CONFIG else name.rpartition(".")[0]
    return ReadAnswer(name=called, model={"config": content}, notes=(f"config of {_sizes(network)}",))


def _checkpoint(found: Checkpoint, heap: Folder) -> ReadAnswer:
    if found.config is None:
        files = ", ".join(found.metadata["files"][:3])
        raise BadInput(files, "holds tensors and no config.json, and tensors alone do not say how they are used: drop its config.json with it")
    network = _network(found.config, found.name)
    notes = [f"{found.metadata['format']}: {_sizes(network)}", *_compared(found, network)]
    if found.metadata["format"] != "gguf":
        return ReadAnswer(name=found.name, model={"config": found.config}, notes=tuple(notes))
    size = sum(heap.open(name).size for name in found.metadata["files"])
    notes.append(f"{size:,} bytes in {len(found.metadata['files'])} file(s), {len(found.tensors):,} tensors")
    named, kind = found.metadata.get("general.name"), GGUF_FILE_TYPES.get(found.metadata.get("general.file_type", -1))
    if kind is None:
        notes.append("its kind of quantisation is not stated: choose serve.weights")
    serve = {"engine": "llama.cpp", **({"weights": kind} if kind else {})}
    return ReadAnswer(name=named if isinstance(named, str) else found.name, model={"config": found.config}, serve=serve, notes=tuple(notes))


def _network(config: dict[str, Any], name: str) -> Network:
    try:
        return network_of({"config": config}, name or CONFIG)
    except BadInput as error:
        raise type(error)(error.path.replace(".config", "", 1), error.message) from None


def _sizes(network: Network) -> str:
    return f"{count(parameter_count(network))} parameters in {network.layers} layers"


def _compared(found: Checkpoint, network: Network) -> list[str]:
    """A note where the weights hold another number of parameters than the config says."""
    stored, said = sum(prod(tensor.shape) for tensor in found.tensors), parameter_count(network)
    if not found.tensors or abs(stored - said) <= SLACK * said:
        return []
    what = "packed weights, several files of which not all are here, or another model" if stored < said else "more than the model, or another model"
    return [f"the weights given hold {count(stored)} values, the config says {count(said)} parameters: {what}"]
