"""Values of Helm charts that start vLLM: production-stack, llm-d, and charts with vLLM's flags in camelCase."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everybyte.formats.command import Command, Word
from everybyte.formats.containers.container import Container
from everybyte.formats.containers.container import commands_of as commands_of_container
from everybyte.formats.containers.manifest import DEEPEST, environment_of, flag_of, flags_of, gpu_of, gpus_of, kebab, part_of, served, without_scheme, words_of
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.finding import Finding
from everybyte.formats.place import Given


def production_stack(document: Document, path: str, spec: dict[str, Any], context: Context) -> list[Command]:
    """vLLM's production-stack: `modelURL`, `requestGPU`, `vllmConfig` with names in camelCase."""
    place = document.place(f"{path}.modelURL")
    words = [Word("vllm", place), Word("serve", place), Word(without_scheme(str(spec.get("modelURL", ""))), place)]
    config = spec.get("vllmConfig")
    environment = environment_of(document, f"{path}.env", spec.get("env"))
    for key, value in config.items() if isinstance(config, dict) else ():
        where = document.place(f"{path}.vllmConfig.{key}")
        if key == "extraArgs":
            words += words_of(document, f"{path}.vllmConfig.extraArgs", value, environment)
        elif key == "v1":
            environment["VLLM_USE_V1"] = Given(str(value), where)
        else:
            words += flag_of(kebab(str(key)), value, where)
    count = spec.get("requestGPU")
    gpus = Word(str(count), document.place(f"{path}.requestGPU")) if str(count).isdigit() and count else None
    image = f"{spec.get('repository', 'vllm/vllm-openai')}:{spec.get('tag', 'latest')}"
    container = Container(image, tuple(words), environment, gpus, gpu_of(document, path, spec))
    return [
        command._replace(findings=(*command.findings, *lmcache(document, path, spec))) for command in commands_of_container(container, document.source, context)
    ]


def lmcache(document: Document, path: str, spec: dict[str, Any]) -> list[Finding]:
    """What LMCache keeps outside the GPU."""
    config = spec.get("lmcacheConfig")
    if not isinstance(config, dict) or not config.get("enabled"):
        return []
    size = config.get("cpuOffloadingBufferSize")
    message = f"LMCache keeps parts of the KV cache in host memory ({size} GB a replica)" if size else "LMCache keeps parts of the KV cache outside the GPU"
    remedy = "count this host memory on top; the KV cache on the GPU stays as it is"
    return [Finding(id="lmcache", severity="note", place=str(document.place(f"{path}.lmcacheConfig")), message=message + " (lmcacheConfig)", remedy=remedy)]


_CAMEL = frozenset(("maxModelLen", "tensorParallelSize", "gpuMemoryUtilization", "maxNumSeqs", "maxNumBatchedTokens"))


def values_in(tree: Any, path: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The values of a chart in which vLLM's flags are written in camelCase."""
    if depth > DEEPEST or not isinstance(tree, dict):
        return
    if len(_CAMEL & set(tree)) >= 2:
        yield path, tree
        return
    for key, value in tree.items():
        yield from values_in(value, f"{path}.{key}" if path else str(key), depth + 1)


def of_values(document: Document, path: str, values: dict[str, Any]) -> Container:
    """A part of values as the container it describes."""
    model = next((values[key] for key in ("modelURL", "modelId", "modelID", "modelName", "model") if isinstance(values.get(key), str)), None)
    named = values.get("model")
    if model is None and isinstance(named, dict):
        model = next((named[key] for key in ("id", "name", "repository", "uri", "url") if isinstance(named.get(key), str)), None)
    words = [*served(document, path, model), *flags_of(document, path, values)]
    image = part_of(values, "image")
    return Container(
        f"{image.get('repository', '')}:{image.get('tag', 'latest')}", tuple(words), {}, gpus_of(document, path, values), gpu_of(document, path, values)
    )


def of_model_command(document: Document, pod_path: str, container: dict[str, Any], words: list[Word]) -> list[Word]:
    """llm-d: `modelCommand: vllmServe` puts `vllm serve MODEL` in front of the arguments, with the parallel sizes of the section."""
    if container.get("modelCommand") != "vllmServe":
        return words
    place = document.place(f"{pod_path}.containers[0].modelCommand")
    uri = str(document.get("modelArtifacts.uri") or document.get("modelArtifacts.name") or "")
    made = [Word("vllm", place), Word("serve", place), Word(without_scheme(uri), document.place("modelArtifacts.uri"))]
    for key, flag in (("tensor", "--tensor-parallel-size"), ("data", "--data-parallel-size")):
        size = document.get(f"{pod_path}.parallelism.{key}")
        if size is not None:
            where = document.place(f"{pod_path}.parallelism.{key}")
            made += [Word(flag, where), Word(str(size), where)]
    return [*made, *words]
