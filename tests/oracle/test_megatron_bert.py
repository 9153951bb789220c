"""Shapes of every parameter on a rank against Megatron Core's own BertModel, built on the CPU in a group whose other ranks are not there.

Needs `megatron-core` (0.14 runs without a GPU); skipped where it is not installed.
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
from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.transformer.transformer_config import TransformerConfig

torch.Tensor.cuda = lambda self: self  # tied tables are summed on the GPU when the model is made


def shapes(o):
    dist.init_process_group("fake", rank=o["rank"], world_size=8, store=FakeStore())
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=o["tp"], pipeline_model_parallel_size=o["pp"], create_gloo_process_groups=False)
    c = TransformerConfig(
        num_layers=4, hidden_size=64, num_attention_heads=8, ffn_hidden_size=256, use_cpu_initialization=True, tensor_model_parallel_size=o["tp"],
        pipeline_model_parallel_size=o["pp"], pipeline_dtype=torch.float32,
    )
    stage = parallel_state.get_pipeline_model_parallel_rank()
    m = BertModel(
        c, 2 if o["order"] else 0, bert_layer_local_spec, vocab_size=1024, max_sequence_length=128, pre_process=stage == 0,
        post_process=stage == o["pp"] - 1, share_embeddings_and_output_weights=True, add_binary_head=o["order"],
    )
    found = [list(p.shape) for p in m.parameters()]
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return found


print(json.dumps([shapes(case) for case in json.loads(sys.argv[1])]))
"""

CASES: dict[str, dict[str, Any]] = {
    "whole": {"tp": 1, "pp": 1, "rank": 0, "order": True},
    "divided": {"tp": 2, "pp": 1, "rank": 0, "order": True},
    "first stage": {"tp": 2, "pp": 2, "rank": 0, "order": True},
    "last stage": {"tp": 2, "pp": 2, "rank": 7, "order": True},
    "without sentence order": {"tp": 4, "pp": 2, "rank": 7, "order": False},
}
SHAPE: dict[str, Any] = {"family": "bert", "layers": 4, "hidden": 64, "ffn": 256, "heads": 8, "vocab": 1024, "max_positions": 128}


@pytest.fixture(scope="module")
def measured() -> dict[str, Counter[tuple[int, ...]]]:
    """Shapes of the parameters on a rank of each case. Megatron Core keeps its groups in globals, so a process of its own builds them."""
    found = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(list(CASES.values()))], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    shapes = json.loads(found.stdout.splitlines()[-1])
    return {name: Counter(tuple(shape) for shape in one) for name, one in zip(CASES, shapes, strict=True)}


def predicted(case: dict[str, Any]) -> Counter[tuple[int, ...]]:
    """Shapes of the parameters that the layers declare."""
    network = network_of({"shape": SHAPE})
    stage = dealt(network.layers, Plan("1f1b", case["pp"], 1, 4, case["pp"]))[case["rank"] * case["pp"] // 8]
    local = stage_plan(network, stage, Split(case["tp"]), Style(te=False, binary_head=case["order"]), 1024, None, (0,)).network
    return Counter(tuple(d.size for d in p.dims) for p in tensors(local, Setup()))


@pytest.mark.parametrize("name", CASES)
def test_shapes_of_a_rank(name: str, measured: dict[str, Counter[tuple[int, ...]]]) -> None:
    """A rank declares the parameters that Megatron Core makes there, each with its shape."""
    assert predicted(CASES[name]) == measured[name]
