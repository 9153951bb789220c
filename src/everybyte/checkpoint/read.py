"""From what a person points at to a checkpoint: config.json, folder, safetensors, index, GGUF, or a repository of the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.checkpoint.gguf import config_from_gguf
from everybyte.checkpoint.gguf_file import read_gguf, read_split, split_names
from everybyte.checkpoint.hub import HubFolder
from everybyte.checkpoint.json_file import CONFIG_LIMIT, read_json
from everybyte.checkpoint.safetensors import INDEX_SUFFIX, read_files, read_header, read_index
from everybyte.checkpoint.source import Folder, LocalFile, LocalFolder, printable
from everybyte.checkpoint.stored import Checkpoint, shown

_CONFIG, _PIPELINE = "config.json", "model_index.json"
_ONE_OF_A_PIPELINE = "is a diffusers pipeline; give one of its folders, such as transformer, unet or vae"
_STEMS = ("model", "diffusion_pytorch_model")  # what transformers and diffusers call their weights
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read_checkpoint(where: str, *, endpoint: str | None = None) -> Checkpoint:
    """The checkpoint at `where`, by headers alone; weights are never read, pickles never loaded.

    `where` is a path to a config.json (or another .json of that form), a folder, a .safetensors or its index, a .gguf (of a split one, any part), or
    `hf:ORG/NAME[@REVISION][::FOLDER]`, asked at `endpoint`, else at HF_ENDPOINT, else at huggingface.co.
    Raises BadInput naming file and position for whatever is missing, damaged or hostile, and MissingExtra for `hf:` without huggingface_hub.
    """
    if where.startswith("hf:"):
        repository = HubFolder(where.removeprefix("hf:"), endpoint)
        return read_folder(repository, repository.model_name)
    path = _path(where)
    if _is_folder(path):
        return read_folder(LocalFolder(path), path.resolve().name)
    for suffix, read in _READERS.items():
        if path.name.lower().endswith(suffix):
            return read(LocalFolder(path.parent), path)
    if path.name.lower().endswith(_PICKLES):
        raise BadInput(printable(path), f"is a pickle, which runs code when loaded and is never read; {_AWAY_FROM_PICKLES}")
    LocalFile(path)  # a path that is not there is told before its name is judged
    raise BadInput(printable(path), "is none of config.json, .safetensors, .safetensors.index.json, .gguf, or a folder of them")


_AWAY_FROM_PICKLES = "convert the weights to safetensors, or give the config.json"


def _path(where: str) -> Path:
    if not where.strip() or "\0" in where:
        raise BadInput("model", f"{shown(where)} is no path")
    try:
        return Path(where).expanduser()
    except RuntimeError as error:  # ~NAME of somebody unknown
        raise BadInput(where, str(error)) from None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:  # no permission, a name too long
        raise BadInput(printable(path), f"cannot be read: {error.strerror}") from None


def read_folder(folder: Folder, name: str) -> Checkpoint:
    """The checkpoint that lies in `folder`, which need not be on a disk; `name` is what to call it. Raises as `read_checkpoint`."""
    names = folder.names()
    config = read_json(folder.open(_CONFIG), CONFIG_LIMIT) if _CONFIG in names else None
    found = _find_weights(folder, names)
    if found is None:
        return _without_weights(folder, names, name, config)
    if found.endswith(".gguf"):
        return _read_gguf_parts(folder, found, name)
    if found.endswith(INDEX_SUFFIX):
        tensors, metadata, files = read_index(folder, found)
        return Checkpoint(name, config, tensors, {**metadata, "format": "safetensors", "files": [found, *files]})
    files = _same_set(found, names)
    return Checkpoint(name, config, read_files(folder, files), {"format": "safetensors", "files": files})


def _find_weights(folder: Folder, names: list[str]) -> str | None:
    """The file to begin with: an index, the usual name, the first of a set, the only one. None if there are only other kinds or none."""
    indices = [n for n in names if n.endswith(INDEX_SUFFIX)]
    weights = [n for n in names if n.endswith(".safetensors")]
    preferred = [stem + INDEX_SUFFIX for stem in _STEMS] + [f"{stem}.safetensors" for stem in _STEMS]
    first = next((n for n in preferred if n in names), None)
    if first is not None:
        return first
    if len(indices) > 1:
        raise BadInput(folder.place, f"holds {len(indices)} index files; give the one that you mean, such as {shown(indices[0])}")
    if indices:
        return indices[0]
    # Mistral ships consolidated.safetensors beside the same weights in model-*.safetensors; adapters lie beside their base
    sets = [n for n in weights if "-of-" in n] or [n for n in weights if not n.startswith(("consolidated", "adapter_"))] or weights
    if sets and sets[0].startswith("adapter_"):
        raise BadInput(folder.place, "holds an adapter alone; give its base model, and the adapter as train.adapter or serve.lora")
    if sets:
        return sets[0]
    ggufs = [n for n in names if n.lower().endswith(".gguf") and not n.lower().startswith("mmproj")]
    if ggufs and len(ggufs) > len(split_names(ggufs[0])):
        raise BadInput(folder.place, f"holds {len(ggufs)} .gguf files; give the one that you mean, such as {shown(ggufs[0])}")
    return ggufs[0] if ggufs else None


def _same_set(found: str, names: list[str]) -> list[str]:
    """All files of the set that `found` is the first of: `model-00001-of-00003.safetensors` and its like; without numbers, all plain ones."""
    if any(found == f"{stem}.safetensors" for stem in _STEMS):
        return [found]
    stem, of, _ = found.partition("-of-")
    if of:
        prefix = stem.rpartition("-")[0]
        return [n for n in names if n.endswith(".safetensors") and "-of-" in n and n.partition("-of-")[0].rpartition("-")[0] == prefix]
    return [
        n for n in names if n.endswith(".safetensors") and not n.startswith("adapter_") and n.startswith("consolidated") == found.startswith("consolidated")
    ]


def _without_weights(folder: Folder, names: list[str], name: str, config: dict[str, Any] | None) -> Checkpoint:
    pickles = [n for n in names if n.lower().endswith(_PICKLES)]
    if config is not None:
        return Checkpoint(name, config, (), {"format": "config", "files": [_CONFIG], "unread": pickles})
    if _PIPELINE in names:
        raise BadInput(folder.place, _ONE_OF_A_PIPELINE)
    if pickles:
        raise BadInput(folder.place, f"holds pickles only ({shown(pickles[0])}), which run code when loaded and are never read; {_AWAY_FROM_PICKLES}")
    raise BadInput(folder.place, "holds no config.json, .safetensors or .gguf")


def _read_index_path(folder: Folder, path: Path) -> Checkpoint:
    tensors, metadata, files = read_index(folder, path.name)
    return Checkpoint(path.resolve().parent.name, _config_beside(folder), tensors, {**metadata, "format": "safetensors", "files": [path.name, *files]})


def _read_safetensors_path(folder: Folder, path: Path) -> Checkpoint:
    tensors, metadata = read_header(folder.open(path.name))
    return Checkpoint(path.stem, _config_beside(folder), tensors, {**metadata, "format": "safetensors", "files": [path.name]})


def _config_beside(folder: Folder) -> dict[str, Any] | None:
    """The config.json in the same folder, which is where transformers looks for it."""
    return read_json(folder.open(_CONFIG), CONFIG_LIMIT) if _CONFIG in folder.names() else None


def _read_gguf_path(folder: Folder, path: Path) -> Checkpoint:
    return _read_gguf_parts(folder, path.name, path.stem)


def _read_gguf_parts(folder: Folder, first: str, name: str) -> Checkpoint:
    files = split_names(first)
    metadata, tensors = read_gguf(folder.open(first)) if len(files) == 1 else read_split(folder, files)
    config = config_from_gguf(metadata, tensors, folder.open(files[0]).place)
    size = sum(folder.open(file).size for file in files)
    return Checkpoint(name, config, tensors, {**metadata, "format": "gguf", "files": files, "file_bytes": size})


def _read_json_path(folder: Folder, path: Path) -> Checkpoint:
    if path.name == _PIPELINE:
        raise BadInput(printable(path), _ONE_OF_A_PIPELINE)
    content = read_json(folder.open(path.name), CONFIG_LIMIT)
    if isinstance(content.get("weight_map"), dict):
        return _read_index_path(folder, path)
    name = path.resolve().parent.name if path.name == _CONFIG else path.stem
    return Checkpoint(name, content, (), {"format": "config", "files": [path.name]})


_READERS: dict[str, Callable[[Folder, Path], Checkpoint]] = {
    INDEX_SUFFIX: _read_index_path,
    ".safetensors": _read_safetensors_path,
    ".gguf": _read_gguf_path,
    ".json": _read_json_path,
}
