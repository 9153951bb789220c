"""Files that hold the flags of several engines side by side: srt-slurm recipes with `prefill` and `decode`, Dynamo, and the like. Each part is a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.registry import format_of_document, module_of

_ENGINES = ("vllm", "sglang", "tensorrt-llm")
_DEEPEST = 6
_MODELS = ("model.path", "model", "model_path", "model.name", "backend.model")
_GPUS = ("resources.gpu_type", "gpu_type", "resources.gpu")


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A job for every mapping that holds an engine's flags, with the model and the GPU that the file names once."""
    drafts: list[JobDraft] = []
    for path, name in _parts(document, document.value, "", 0):
        for draft in module_of(name).read_document(document.part(path), context):
            draft.name = path
            _common(document, draft)
            drafts.append(draft)
    return drafts


def _parts(document: Document, tree: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    """Paths of mappings that hold an engine's flags, with the engine."""
    if depth > _DEEPEST or not isinstance(tree, dict):
        return
    if path:
        name = format_of_document(document.part(path))
        if name in _ENGINES and not any(
            isinstance(value, dict) and format_of_document(document.part(f"{path}.{key}")) in _ENGINES for key, value in tree.items()
        ):
            yield path, name
            return
    for key, value in tree.items():
        if "." not in str(key):
            yield from _parts(document, value, f"{path}.{key}" if path else str(key), depth + 1)


def _common(document: Document, draft: JobDraft) -> None:
    """What the whole file says once."""
    for path in _MODELS:
        if "model" not in draft and isinstance(value := document.get(path), str):
            draft.state("model", value, document.place(path))
    for path in _GPUS:
        if "hardware.gpu" not in draft and isinstance(value := document.get(path), str):
            draft.state("hardware.gpu", value, document.place(path))
