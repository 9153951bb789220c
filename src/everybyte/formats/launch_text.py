"""Texts inside a file that start a program that is known: how they are told from other texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_LAUNCH = re.compile(
    r"\bvllm serve\b|\bvllm\.entrypoints\b|\bsglang\.launch_server\b|\bsglang serve\b|\bllama-server\b|\btrtllm-serve\b|\btext-generation-launcher\b"
    r"|\blmdeploy serve\b|\bollama serve\b|\btorchrun\b|\baccelerate launch\b|\bdeepspeed \S|\bswift (?:sft|pt|rlhf)\b|\bmain_ppo\b|\bllamafactory-cli\b"
)
_DEEPEST = 8


def launch_texts(tree: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """The texts of a tree that start something, with their paths."""
    if depth > _DEEPEST:
        return
    if isinstance(tree, str) and _LAUNCH.search(tree):
        yield path, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from launch_texts(value, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(tree, list):
        for i, item in enumerate(tree):
            yield from launch_texts(item, f"{path}[{i}]", depth + 1)
