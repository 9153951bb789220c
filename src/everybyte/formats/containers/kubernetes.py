"""Kubernetes: manifests with containers (Deployment, StatefulSet, Pod, Job, LeaderWorkerSet, KServe), KubeAI models, Ray Serve, and the values of Helm charts.

The charts are those that start vLLM: production-stack and llm-d. Replicas are copies of one job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from everybyte.formats.bag import normal
from everybyte.formats.command import Command, Word
from everybyte.formats.containers.container import Container, gpu_of_label, of_kubernetes
from everybyte.formats.containers.container import commands_of as commands_of_container
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.finding import Finding
from everybyte.formats.place import Given, Place
from everybyte.formats.serving.flag_table import flag_table

_GPU_KEYS = ("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/gpu.shared", "gpu")
_DEEPEST = 12


def commands_of(document: Document, context: Context) -> list[Command]:
    """The commands of all containers of one manifest."""
    tree = document.value
    if not isinstance(tree, dict):
        return []
    found: list[Command] = []
    if tree.get("kind") == "Model" and "kubeai" in str(tree.get("apiVersion")):
        return commands_of_container(_kubeai(document, _part(tree, "spec")), document.source, context)
    for pod_path, pod, path, container in _containers(tree, {}, "", "", 0):
        found += commands_of_container(_container(document, pod_path, pod, path, container), document.source, context)
    for path, predictor in _models_of_kserve(tree, "", 0):
        found += commands_of_container(_kserve(document, path, predictor), document.source, context)
    for i, spec in enumerate(_items(document.get("servingEngineSpec.modelSpec"))):
        if isinstance(spec, dict):
            found += _production_stack(document, f"servingEngineSpec.modelSpec[{i}]", spec, context)
    if tree.get("kind") == "VLLMRuntime":
        found += commands_of_container(_vllm_runtime(document, _part(tree, "spec")), document.source, context)
    found += _ray(document, context)
    if not found:
        found += [
            command for path, values in _values(tree, "", 0) for command in commands_of_container(_of_values(document, path, values), document.source, context)
        ]
    return found


def _containers(
    tree: Any, pod: dict[str, Any], pod_path: str, path: str, depth: int,
) -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:  # fmt: skip
    """Every mapping with an image and something to start, with what it stands in: `containers`, a `runner`, the values of a chart."""
    if depth > _DEEPEST:
        return
    if isinstance(tree, list):
        for i, item in enumerate(tree):
            yield from _containers(item, pod, pod_path, f"{path}[{i}]", depth + 1)
    elif isinstance(tree, dict):
        if "image" in tree and any(key in tree for key in ("args", "command", "env", "modelCommand")):
            yield pod_path, pod, path, tree
        holds = any(key in tree for key in ("containers", "runner", "nodeSelector", "affinity"))
        pod, pod_path = (tree, path) if holds else (pod, pod_path)
        for key, value in tree.items():
            if key != "initContainers":
                yield from _containers(value, pod, pod_path, f"{path}.{key}" if path else str(key), depth + 1)


def _container(document: Document, pod_path: str, pod: dict[str, Any], path: str, container: dict[str, Any]) -> Container:
    environment = _environment(document, f"{path}.env", container.get("env"))
    words = [*_words(document, f"{path}.command", container.get("command"), environment), *_words(document, f"{path}.args", container.get("args"), environment)]
    words = _of_model_command(document, pod_path, container, words)
    image = container.get("image")
    if isinstance(image, dict):
        image = f"{image.get('repository') or image.get('name') or ''}:{image.get('tag', 'latest')}"
    return Container(str(image or ""), tuple(words), environment, _gpus(document, path, container), _gpu(document, pod_path, pod))


def _of_model_command(document: Document, pod_path: str, container: dict[str, Any], words: list[Word]) -> list[Word]:
    """llm-d: `modelCommand: vllmServe` puts `vllm serve MODEL` in front of the arguments, with the parallel sizes of the section."""
    if container.get("modelCommand") != "vllmServe":
        return words
    place = document.place(f"{pod_path}.containers[0].modelCommand")
    uri = str(document.get("modelArtifacts.uri") or document.get("modelArtifacts.name") or "")
    made = [Word("vllm", place), Word("serve", place), Word(_uri(uri), document.place("modelArtifacts.uri"))]
    for key, flag in (("tensor", "--tensor-parallel-size"), ("data", "--data-parallel-size")):
        size = document.get(f"{pod_path}.parallelism.{key}")
        if size is not None:
            where = document.place(f"{pod_path}.parallelism.{key}")
            made += [Word(flag, where), Word(str(size), where)]
    return [*made, *words]


def _uri(uri: str) -> str:
    """`hf://org/model` -> `org/model`."""
    return re.sub(r"^(hf|ollama|oci|pvc|modelcar)://", "", uri)


def _words(document: Document, path: str, value: Any, environment: dict[str, Given]) -> list[Word]:
    """A list of words with `$(NAME)` put in. A flag and its value in one string are two words."""
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    out: list[Word] = []
    for i, item in enumerate(items):
        place = document.place(f"{path}[{i}]" if isinstance(value, list) else path)
        text = of_kubernetes(_text(item), environment)
        unknown = re.search(r"\$\((\w+)\)", text)
        why = f"{unknown[1]} is not set in the manifest" if unknown else ""
        head, blank, rest = text.strip().partition(" ")
        if blank and head.startswith("--") and "=" not in head and not rest.lstrip().startswith("--"):
            out += [Word(head, place, why), Word(rest.strip().strip("\"'"), place, why)]
        elif blank and head.startswith("-") and not _in_shell(out) and "{" not in text:
            out += [Word(part.strip("\"'"), place, why) for part in text.split()]
        else:
            out.append(Word(text, place, why))
    return out


def _in_shell(words: list[Word]) -> bool:
    return any(re.fullmatch(r"-\w*c", word.text) for word in words[:4])


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _environment(document: Document, path: str, value: Any) -> dict[str, Given]:
    """`env` as a list of names and values (or a mapping); values from secrets and fields are not known."""
    found: dict[str, Given] = {}
    if isinstance(value, dict):
        return {
            str(name): Given(_text(item), document.place(f"{path}.{name}")._replace(flag=str(name)))
            for name, item in value.items()
            if not isinstance(item, dict)
        }
    for i, item in enumerate(value if isinstance(value, list) else []):
        if isinstance(item, dict) and "name" in item and item.get("value") is not None:
            name = str(item["name"])
            place = document.place(f"{path}[{i}]")
            found[name] = Given(of_kubernetes(_text(item["value"]), found), Place(place.source, place.line, name))
    return found


def _gpus(document: Document, path: str, container: dict[str, Any]) -> Word | None:
    """The GPUs that limits or requests ask for."""
    resources = container.get("resources")
    for part in ("limits", "requests"):
        asked = resources.get(part) if isinstance(resources, dict) else None
        for key in _GPU_KEYS:
            if isinstance(asked, dict) and key in asked and str(asked[key]).isdigit() and int(asked[key]) > 0:
                return Word(str(asked[key]), document.place(f"{path}.resources.{part}.{key}"))
    return None


def _gpu(document: Document, path: str, pod: dict[str, Any]) -> Given | None:
    """The GPU by the node's labels: a selector, or what an affinity asks for."""
    selector = pod.get("nodeSelector")
    where = document.place(f"{path}.nodeSelector")
    labels = list(selector.values()) if isinstance(selector, dict) else []
    labels += list(_labels(pod.get("affinity"), 0)) + list(_labels(pod.get("nodeSelectorTerms"), 0))
    return next((gpu for label in labels if (gpu := gpu_of_label(label, where)) is not None), None)


def _labels(tree: Any, depth: int) -> Iterator[str]:
    """The values of every `values` below."""
    if depth > _DEEPEST:
        return
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == "values" and isinstance(value, list):
                yield from map(str, value)
            else:
                yield from _labels(value, depth + 1)
    elif isinstance(tree, list):
        for item in tree:
            yield from _labels(item, depth + 1)


def _kubeai(document: Document, spec: dict[str, Any]) -> Container:
    """KubeAI: `url: hf://...`, `engine: VLLM`, `resourceProfile: nvidia-gpu-l4:1`."""
    environment = _environment(document, "spec.env", spec.get("env"))
    where = document.place("spec.url")
    url, engine = str(spec.get("url", "")), str(spec.get("engine", "")).casefold()
    model = _uri(url).partition("?")[0]
    start = {"ollama": ("ollama", "run")}.get(engine, ("vllm", "serve"))
    words = [Word(text, document.place("spec.engine")) for text in start]
    words += [Word(model, where), *_words(document, "spec.args", spec.get("args"), environment)]
    profile, _, count = str(spec.get("resourceProfile", "")).rpartition(":")
    place = document.place("spec.resourceProfile")
    gpus = Word(count, place) if count.isdigit() and "cpu" not in profile else None
    return Container("", tuple(words), environment, gpus, gpu_of_label(profile, place) or gpu_of_label(profile.rpartition("gpu-")[2], place))


def _models_of_kserve(tree: Any, path: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every `predictor: {model: {modelFormat: ...}}` and `spec.model.uri` of an LLMInferenceService."""
    if depth > _DEEPEST or not isinstance(tree, dict):
        return
    model = tree.get("model")
    if isinstance(model, dict) and ("modelFormat" in model or "storageUri" in model):
        yield path, tree
    for key, value in tree.items():
        yield from _models_of_kserve(value, f"{path}.{key}" if path else str(key), depth + 1)


def _kserve(document: Document, path: str, predictor: dict[str, Any]) -> Container:
    """KServe's Hugging Face runtime, which is vLLM behind flags of its own."""
    model = predictor["model"]
    here = f"{path}.model"
    environment = _environment(document, f"{here}.env", model.get("env"))
    place = document.place(f"{here}.modelFormat")
    own = _words(document, f"{here}.args", model.get("args"), environment)
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
        words.append(Word(_uri(str(uri)), document.place(f"{here}.storageUri")))
    return Container("", (*words, *rest), environment, _gpus(document, here, model), _gpu(document, path, predictor))


def _production_stack(document: Document, path: str, spec: dict[str, Any], context: Context) -> list[Command]:
    """vLLM's production-stack: `modelURL`, `requestGPU`, `vllmConfig` with names in camelCase."""
    place = document.place(f"{path}.modelURL")
    words = [Word("vllm", place), Word("serve", place), Word(_uri(str(spec.get("modelURL", ""))), place)]
    config = spec.get("vllmConfig")
    environment = _environment(document, f"{path}.env", spec.get("env"))
    for key, value in config.items() if isinstance(config, dict) else ():
        where = document.place(f"{path}.vllmConfig.{key}")
        if key == "extraArgs":
            words += _words(document, f"{path}.vllmConfig.extraArgs", value, environment)
        elif key == "v1":
            environment["VLLM_USE_V1"] = Given(str(value), where)
        else:
            words += _flag(_kebab(str(key)), value, where)
    count = spec.get("requestGPU")
    gpus = Word(str(count), document.place(f"{path}.requestGPU")) if str(count).isdigit() and count else None
    image = f"{spec.get('repository', 'vllm/vllm-openai')}:{spec.get('tag', 'latest')}"
    container = Container(image, tuple(words), environment, gpus, _gpu(document, path, spec))
    return [
        command._replace(findings=(*command.findings, *_lmcache(document, path, spec)))
        for command in commands_of_container(container, document.source, context)
    ]


def _vllm_runtime(document: Document, spec: dict[str, Any]) -> Container:
    """The production-stack's own kind: `model`, `vllmConfig` and `deploymentConfig`."""
    words = _served(document, "spec.model.modelURL", _part(spec, "model").get("modelURL"))
    for part in ("model", "vllmConfig"):
        words += _flags(document, f"spec.{part}", _part(spec, part))
    deployment = _part(spec, "deploymentConfig")
    count = str(_part(deployment, "resources").get("gpu", ""))
    gpus = Word(count, document.place("spec.deploymentConfig.resources.gpu")) if count.isdigit() else None
    return Container(str(_part(deployment, "image").get("name", "")), tuple(words), {}, gpus)


def _part(tree: dict[str, Any], key: str) -> dict[str, Any]:
    part = tree.get(key)
    return part if isinstance(part, dict) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _served(document: Document, path: str, model: Any) -> list[Word]:
    place = document.place(path)
    return [Word("vllm", place), Word("serve", place), *([Word(_uri(str(model)), place)] if model else [])]


def _flags(document: Document, path: str, values: dict[str, Any]) -> list[Word]:
    """The keys of a mapping that vLLM has as flags, from camelCase."""
    known = flag_table("vllm.csv").names
    out: list[Word] = []
    for key, value in values.items():
        flag = _kebab(str(key))
        if key == "extraArgs":
            out += _words(document, f"{path}.extraArgs", value, {})
        elif normal(flag) in known and normal(flag) != "model":
            out += _flag(flag, value, document.place(f"{path}.{key}"))
    return out


_CAMEL = frozenset(("maxModelLen", "tensorParallelSize", "gpuMemoryUtilization", "maxNumSeqs", "maxNumBatchedTokens"))


def _values(tree: Any, path: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The values of a chart in which vLLM's flags are written in camelCase."""
    if depth > _DEEPEST or not isinstance(tree, dict):
        return
    if len(_CAMEL & set(tree)) >= 2:
        yield path, tree
        return
    for key, value in tree.items():
        yield from _values(value, f"{path}.{key}" if path else str(key), depth + 1)


def _of_values(document: Document, path: str, values: dict[str, Any]) -> Container:
    model = next((values[key] for key in ("modelURL", "modelId", "modelID", "modelName", "model") if isinstance(values.get(key), str)), None)
    named = values.get("model")
    if model is None and isinstance(named, dict):
        model = next((named[key] for key in ("id", "name", "repository", "uri", "url") if isinstance(named.get(key), str)), None)
    words = [*_served(document, path, model), *_flags(document, path, values)]
    image = _part(values, "image")
    return Container(
        f"{image.get('repository', '')}:{image.get('tag', 'latest')}", tuple(words), {}, _gpus(document, path, values), _gpu(document, path, values)
    )


def _lmcache(document: Document, path: str, spec: dict[str, Any]) -> list[Finding]:
    config = spec.get("lmcacheConfig")
    if not isinstance(config, dict) or not config.get("enabled"):
        return []
    size = config.get("cpuOffloadingBufferSize")
    message = f"LMCache keeps parts of the KV cache in host memory ({size} GB a replica)" if size else "LMCache keeps parts of the KV cache outside the GPU"
    remedy = "count this host memory on top; the KV cache on the GPU stays as it is"
    return [Finding(id="lmcache", severity="note", place=str(document.place(f"{path}.lmcacheConfig")), message=message + " (lmcacheConfig)", remedy=remedy)]


def _kebab(name: str) -> str:
    return "--" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).casefold().replace("_", "-")


def _flag(name: str, value: Any, place: Place) -> list[Word]:
    """A key of a mapping as a flag."""
    if value is None or value == "":
        return []
    if isinstance(value, bool):
        return [Word(name if value else "--no-" + name[2:], place)]
    if isinstance(value, dict | list):
        import json

        return [Word(name, place), Word(json.dumps(value), place)]
    return [Word(name, place), Word(str(value), place)]


def _ray(document: Document, context: Context) -> list[Command]:
    """Ray Serve: `applications[].args.llm_configs[]` with `engine_kwargs`, in a RayService or alone."""
    text = document.get("spec.serveConfigV2")
    tree = document
    if isinstance(text, str):
        from everybyte.formats.source import Source

        tree = context.documents(Source(text, f"{document.source.path} (serveConfigV2)"))[0]
    found: list[Command] = []
    for i, application in enumerate(_items(tree.get("applications"))):
        arguments = application.get("args") if isinstance(application, dict) else None
        for j, config in enumerate(_items(arguments.get("llm_configs")) if isinstance(arguments, dict) else []):
            if isinstance(config, dict):
                found += commands_of_container(_ray_model(tree, f"applications[{i}].args.llm_configs[{j}]", config), document.source, context)
    return found


def _ray_model(document: Document, path: str, config: dict[str, Any]) -> Container:
    loading = _part(config, "model_loading_config")
    place = document.place(path)
    name = loading.get("model_source") or loading.get("model_id") or ""
    words = [Word("vllm", place), Word("serve", place), Word(str(name), document.place(f"{path}.model_loading_config"))]
    for key, value in _part(config, "engine_kwargs").items():
        words += _flag("--" + str(key).replace("_", "-"), value, document.place(f"{path}.engine_kwargs.{key}"))
    kind = config.get("accelerator_type")
    return Container("", tuple(words), {}, None, gpu_of_label(kind, document.place(f"{path}.accelerator_type")) if kind else None)
