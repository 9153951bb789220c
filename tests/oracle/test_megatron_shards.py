"""Shapes of every parameter on a rank against Megatron Core's own GPTModel, built on the CPU in a group whose other ranks are not there.

Skipped where there is no `megatron-core`: it has wheels for Linux on x86-64 alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from everybyte.engines.megatron.network import stage_plan
from everybyte.engines.megatron.sizes import Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording.setup import Setup
from everybyte.models.count import tensors
from everybyte.models.source import network_of
from everybyte.rules.parallel.schedules import Plan
from everybyte.rules.parallel.stages import dealt

pytest.importorskip("megatron.core")

SCRIPT = """
import json, sys
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig


def shapes(o):
    dist.init_process_group("fake", rank=o["rank"], world_size=o["world"], store=FakeStore())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=o["tp"], pipeline_model_parallel_size=o["pp"], expert_model_parallel_size=o["ep"],
        expert_tensor_parallel_size=o["etp"], create_gloo_process_groups=False,
    )
    experts, gated = o.get("experts"), o["gated"]
    c = TransformerConfig(
        num_layers=o["layers"], hidden_size=64, num_attention_heads=8, num_query_groups=o["kv_heads"], ffn_hidden_size=256, use_cpu_initialization=True,
        tensor_model_parallel_size=o["tp"], pipeline_model_parallel_size=o["pp"], pipeline_dtype=torch.float32, sequence_parallel=False,
        num_moe_experts=experts, expert_model_parallel_size=o["ep"], expert_tensor_parallel_size=o["etp"], moe_ffn_hidden_size=96 if experts else None,
        gated_linear_unit=gated, activation_func=torch.nn.functional.silu if gated else torch.nn.functional.gelu, add_bias_linear=o["bias"],
    )
    stage = parallel_state.get_pipeline_model_parallel_rank()
    m = GPTModel(
        c, get_gpt_layer_local_spec(num_experts=experts), vocab_size=1024, max_sequence_length=128, pre_process=stage == 0,
        post_process=stage == o["pp"] - 1, share_embeddings_and_output_weights=o["tied"], position_embedding_type=o["position"],
    )
    found = [list(p.shape) for p in m.parameters()]
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return found


print(json.dumps([shapes(case) for case in json.loads(sys.argv[1])]))
"""

CASES: dict[str, dict[str, Any]] = {
    "dense": {"tp": 2, "pp": 1, "ep": 1, "etp": 2},
    "first stage": {"tp": 2, "pp": 2, "ep": 1, "etp": 2, "rank": 0},
    "last stage": {"tp": 2, "pp": 2, "ep": 1, "etp": 2, "rank": 7},
    "tied": {"tp": 2, "pp": 1, "ep": 1, "etp": 2, "tied": True},
    "gated without biases": {"tp": 4, "pp": 1, "ep": 1, "etp": 4, "gated": True, "bias": False, "position": "rope"},
    "experts": {"tp": 1, "pp": 1, "ep": 2, "etp": 1, "experts": 4, "gated": True, "bias": False, "position": "rope"},
    "divided experts": {"tp": 2, "pp": 2, "ep": 1, "etp": 2, "experts": 4, "rank": 7, "bias": False},
}
USUAL: dict[str, Any] = {
    "rank": 0,
    "world": 8,
    "layers": 4,
    "kv_heads": 4,
    "gated": False,
    "bias": True,
    "tied": False,
    "position": "learned_absolute",
    "experts": None,
}


@pytest.fixture(scope="module")
def measured() -> dict[str, Counter[tuple[int, ...]]]:
    """Shapes of the parameters on a rank of each case. Megatron Core keeps its groups in globals, so a process of its own builds them."""
    cases = [{**USUAL, **case} for case in CASES.values()]
    found = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(cases)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    shapes = json.loads(found.stdout.splitlines()[-1])
    return {name: Counter(tuple(shape) for shape in one) for name, one in zip(CASES, shapes, strict=True)}


def predicted(case: dict[str, Any]) -> Counter[tuple[int, ...]]:
    """Shapes of the parameters that the layers declare."""
    shape: dict[str, Any] = {
        "family": "moe" if case["experts"] else "gpt",
        "layers": case["layers"],
        "hidden": 64,
        "ffn": 256,
        "heads": 8,
        "kv_heads": case["kv_heads"],
        "head_dim": 8,
        "vocab": 1024,
        "tied": case["tied"],
        "activation": "swiglu" if case["gated"] else "gelu",
        "norm": "layernorm",
        "position": "rope" if case["position"] == "rope" else "learned",
        "max_positions": 128,
        "bias": case["bias"],
    }
    if case["experts"]:
        shape |= {"experts": case["experts"], "top_k": 2, "moe_ffn": 96}
    network = network_of({"shape": shape})
    stages = dealt(network.layers, Plan("1f1b", case["pp"], 1, 4, case["pp"]))
    split = Split(case["tp"], False, 1, case["ep"], case["etp"])
    local = stage_plan(network, stages[case["rank"] * case["pp"] // case["world"]], split, Style(te=False), 1024, None, (0,)).network
    return Counter(tuple(d.size for d in p.dims) for p in tensors(local, Setup()))


@pytest.mark.parametrize("name", CASES)
def test_shapes_of_a_rank(name: str, measured: dict[str, Counter[tuple[int, ...]]]) -> None:
    """A rank declares the parameters that Megatron Core makes there, each with its shape."""
    assert predicted({**USUAL, **CASES[name]}) == measured[name]
