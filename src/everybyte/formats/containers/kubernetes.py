"""Kubernetes: manifests with containers (Deployment, StatefulSet, Pod, Job, LeaderWorkerSet, KServe), KubeAI models, Ray Serve, and the values of Helm charts.

The charts are those that start vLLM: production-stack and llm-d. Replicas are copies of one job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everybyte.formats.command import Command
from everybyte.formats.containers.charts import of_model_command, of_values, production_stack, values_in
from everybyte.formats.containers.container import Container
from everybyte.formats.containers.container import commands_of as commands_of_container
from everybyte.formats.containers.kinds import kserve, kubeai, models_of_kserve, ray_commands, vllm_runtime
from everybyte.formats.containers.manifest import DEEPEST, environment_of, gpu_of, gpus_of, items_of, part_of, words_of
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document


def commands_of(document: Document, context: Context) -> list[Command]:
    """The commands of all containers of one manifest."""
    tree = document.value
    if not isinstance(tree, dict):
        return []
    found: list[Command] = []
    if tree.get("kind") == "Model" and "kubeai" in str(tree.get("apiVersion")):
        return commands_of_container(kubeai(document, part_of(tree, "spec")), document.source, context)
    for pod_path, pod, path, container in containers_in(tree, {}, "", "", 0):
        found += commands_of_container(container_of(document, pod_path, pod, path, container), document.source, context)
    for path, predictor in models_of_kserve(tree, "", 0):
        found += commands_of_container(kserve(document, path, predictor), document.source, context)
    for i, spec in enumerate(items_of(document.get("servingEngineSpec.modelSpec"))):
        if isinstance(spec, dict):
            found += production_stack(document, f"servingEngineSpec.modelSpec[{i}]", spec, context)
    if tree.get("kind") == "VLLMRuntime":
        found += commands_of_container(vllm_runtime(document, part_of(tree, "spec")), document.source, context)
    found += ray_commands(document, context)
    if not found:
        found += [
            command for path, values in values_in(tree, "", 0) for command in commands_of_container(of_values(document, path, values), document.source, context)
        ]
    return found


def containers_in(
    tree: Any,
    pod: dict[str, Any],
    pod_path: str,
    path: str,
    depth: int,
) -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:
    """Every mapping with an image and something to start, with what it stands in: `containers`, a `runner`, the values of a chart."""
    if depth > DEEPEST:
        return
    if isinstance(tree, list):
        for i, item in enumerate(tree):
            yield from containers_in(item, pod, pod_path, f"{path}[{i}]", depth + 1)
    elif isinstance(tree, dict):
        if "image" in tree and any(key in tree for key in ("args", "command", "env", "modelCommand")):
            yield pod_path, pod, path, tree
        holds = any(key in tree for key in ("containers", "runner", "nodeSelector", "affinity"))
        pod, pod_path = (tree, path) if holds else (pod, pod_path)
        for key, value in tree.items():
            if key != "initContainers":
                yield from containers_in(value, pod, pod_path, f"{path}.{key}" if path else str(key), depth + 1)


def container_of(document: Document, pod_path: str, pod: dict[str, Any], path: str, container: dict[str, Any]) -> Container:
    """A container with its pod."""
    environment = environment_of(document, f"{path}.env", container.get("env"))
    words = [
        *words_of(document, f"{path}.command", container.get("command"), environment),
        *words_of(document, f"{path}.args", container.get("args"), environment),
    ]
    words = of_model_command(document, pod_path, container, words)
    image = container.get("image")
    if isinstance(image, dict):
        image = f"{image.get('repository') or image.get('name') or ''}:{image.get('tag', 'latest')}"
    return Container(str(image or ""), tuple(words), environment, gpus_of(document, path, container), gpu_of(document, pod_path, pod))
