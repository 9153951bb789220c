"""Kinds of Kubernetes with a form of their own: KubeAI models, KServe's predictors, the production-stack's VLLMRuntime, Ray Serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everybyte.formats.command import Command, Word
from everybyte.formats.containers.container import Container, gpu_of_label
from everybyte.formats.containers.container import commands_of as commands_of_container
from everybyte.formats.containers.manifest import (
    DEEPEST,
    environment_of,
    flag_of,
    flags_of,
    gpu_of,
    gpus_of,
    items_of,
    part_of,
    served,
    without_scheme,
    words_of,
)
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document


def kubeai(document: Document, spec: dict[str, Any]) -> Container:
    """KubeAI: `url: hf://...`, `engine: VLLM`, `resourceProfile: nvidia-gpu-l4:1`."""
    environment = environment_of(document, "spec.env", spec.get("env"))
    where = document.place("spec.url")
    url, engine = str(spec.get("url", "")), str(spec.get("engine", "")).casefold()
    model = without_scheme(url).partition("?")[0]
    start = {"ollama": ("ollama", "run")}.get(engine, ("vllm", "serve"))
    words = [Word(text, document.place("spec.engine")) for text in start]
    words += [Word(model, where), *words_of(document, "spec.args", spec.get("args"), environment)]
    profile, _, count = str(spec.get("resourceProfile", "")).rpartition(":")
    place = document.place("spec.resourceProfile")
    gpus = Word(count, place) if count.isdigit() and "cpu" not in profile else None
    return Container("", tuple(words), environment, gpus, gpu_of_label(profile, place) or gpu_of_label(profile.rpartition("gpu-")[2], place))


def models_of_kserve(tree: Any, path: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every `predictor: {model: {modelFormat: ...}}` and `spec.model.uri` of an LLMInferenceService."""
    if depth > DEEPEST or not isinstance(tree, dict):
        return
    model = tree.get("model")
    if isinstance(model, dict) and ("modelFormat" in model or "storageUri" in model):
        yield path, tree
    for key, value in tree.items():
        yield from models_of_kserve(value, f"{path}.{key}" if path else str(key), depth + 1)


def kserve(document: Document, path: str, predictor: dict[str, Any]) -> Container:
    """KServe's Hugging Face runtime, which is vLLM behind flags of its own."""
    model = predictor["model"]
    here = f"{path}.model"
    environment = environment_of(document, f"{here}.env", model.get("env"))
    place = document.place(f"{here}.modelFormat")
    own = words_of(document, f"{here}.args", model.get("args"), environment)
    words = [Word("vllm", place), Word("serve", place)]
    rest: list[Word] = []
    skip = False
    for i, word in enumerate(own):
        written, equals, inline = word.text.partition("=")
        name = written.lstrip("-").replace("-", "_")
        if skip:
            skip = False
        elif name in ("model_id", "model"):
            words.append(word._replace(text=inline) if equals else own[i + 1] if i + 1 < len(own) else word)
            skip = not equals
        elif name in ("model_name", "backend", "model_dir", "return_probabilities", "tokenizer_revision"):
            skip = not equals
        else:
            rest.append(word)
    uri = model.get("storageUri")
    if len(words) == 2 and uri:
        words.append(Word(without_scheme(str(uri)), document.place(f"{here}.storageUri")))
    return Container("", (*words, *rest), environment, gpus_of(document, here, model), gpu_of(document, path, predictor))


def vllm_runtime(document: Document, spec: dict[str, Any]) -> Container:
    """The production-stack's own kind: `model`, `vllmConfig` and `deploymentConfig`."""
    words = served(document, "spec.model.modelURL", part_of(spec, "model").get("modelURL"))
    for part in ("model", "vllmConfig"):
        words += flags_of(document, f"spec.{part}", part_of(spec, part))
    deployment = part_of(spec, "deploymentConfig")
    count = str(part_of(deployment, "resources").get("gpu", ""))
    gpus = Word(count, document.place("spec.deploymentConfig.resources.gpu")) if count.isdigit() else None
    return Container(str(part_of(deployment, "image").get("name", "")), tuple(words), {}, gpus)


def ray_commands(document: Document, context: Context) -> list[Command]:
    """Ray Serve: `applications[].args.llm_configs[]` with `engine_kwargs`, in a RayService or alone."""
    text = document.get("spec.serveConfigV2")
    tree = document
    if isinstance(text, str):
        from everybyte.formats.source import Source

        tree = context.documents(Source(text, f"{document.source.path} (serveConfigV2)"))[0]
    found: list[Command] = []
    for i, application in enumerate(items_of(tree.get("applications"))):
        arguments = application.get("args") if isinstance(application, dict) else None
        for j, config in enumerate(items_of(arguments.get("llm_configs")) if isinstance(arguments, dict) else []):
            if isinstance(config, dict):
                found += commands_of_container(ray_model(tree, f"applications[{i}].args.llm_configs[{j}]", config), document.source, context)
    return found


def ray_model(document: Document, path: str, config: dict[str, Any]) -> Container:
    """One model of Ray Serve."""
    loading = part_of(config, "model_loading_config")
    place = document.place(path)
    name = loading.get("model_source") or loading.get("model_id") or ""
    words = [Word("vllm", place), Word("serve", place), Word(str(name), document.place(f"{path}.model_loading_config"))]
    for key, value in part_of(config, "engine_kwargs").items():
        words += flag_of("--" + str(key).replace("_", "-"), value, document.place(f"{path}.engine_kwargs.{key}"))
    kind = config.get("accelerator_type")
    return Container("", tuple(words), {}, None, gpu_of_label(kind, document.place(f"{path}.accelerator_type")) if kind else None)
