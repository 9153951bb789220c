"""Shapes of every parameter on a rank under tensor parallel and FSDP2 against PyTorch's own DTensor, on a mesh whose other ranks are not there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from everybyte.estimator import accounted
from everybyte.job import read_job

SCRIPT = """
import json, sys
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

class Attention(nn.Module):
    def __init__(self, h, A, K):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(i, n, bias=False) for i, n in ((h, A), (h, K), (h, K), (A, h)))


class FeedForward(nn.Module):
    def __init__(self, h, f):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(h, f, bias=False), nn.Linear(f, h, bias=False), nn.Linear(h, f, bias=False)


class Block(nn.Module):
    def __init__(self, h, f, A, K):
        super().__init__()
        self.attention, self.feed_forward = Attention(h, A, K), FeedForward(h, f)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(h), nn.RMSNorm(h)


class Model(nn.Module):
    def __init__(self, layers, h, f, A, K, V):
        super().__init__()
        self.tok_embeddings, self.norm, self.output = nn.Embedding(V, h), nn.RMSNorm(h), nn.Linear(h, V, bias=False)
        self.layers = nn.ModuleList(Block(h, f, A, K) for _ in range(layers))


def shapes(o):
    dist.init_process_group("fake", rank=0, world_size=o["tp"] * o["dp"], store=FakeStore())
    mesh = init_device_mesh("cpu", (o["dp"], o["tp"]), mesh_dim_names=("dp", "tp"))
    model = Model(o["layers"], o["hidden"], o["ffn"], o["q_width"], o["kv_width"], o["vocab"])
    if o["tp"] > 1:
        column, row = ColwiseParallel, RowwiseParallel
        parallelize_module(model, mesh["tp"], {"tok_embeddings": row(), "norm": SequenceParallel(), "output": column()})
        plan = {
            "attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel(), "attention.wq": column(), "attention.wk": column(),
            "attention.wv": column(), "attention.wo": row(), "feed_forward.w1": column(), "feed_forward.w3": column(), "feed_forward.w2": row(),
        }
        for block in model.layers:
            parallelize_module(block, mesh["tp"], plan)
    for block in model.layers:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    found = [list(p.to_local().shape) for p in model.parameters()]
    dist.destroy_process_group()
    return found


print(json.dumps([shapes(case) for case in json.loads(sys.argv[1])]))
"""

CASES = {"tp 4": (4, 1), "fsdp 4": (1, 4), "tp 2, fsdp 4": (2, 4), "tp 8, fsdp 2": (8, 2), "rows that do not divide": (2, 6)}
SIZES: dict[str, Any] = {"layers": 2, "hidden": 64, "ffn": 192, "vocab": 1008}
HEADS, KV_HEADS, WIDTH = 8, 8, 16


@pytest.fixture(scope="module")
def measured() -> dict[str, Counter[tuple[int, ...]]]:
    """Local shapes of rank 0, which holds whole rows, of each case."""
    cases = [{**SIZES, "q_width": HEADS * WIDTH, "kv_width": KV_HEADS * WIDTH, "tp": tp, "dp": dp} for tp, dp in CASES.values()]
    found = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(cases)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    return {name: Counter(tuple(shape) for shape in one) for name, one in zip(CASES, json.loads(found.stdout.splitlines()[-1]), strict=True)}


def predicted(tp: int, dp: int) -> Counter[tuple[int, ...]]:
    """Shapes of what the engine says that a rank holds."""
    shape = {**SIZES, "family": "llama", "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": WIDTH, "tied": False}
    version = "torchtitan 0.2.2"  # later ones join the projections of queries, keys and values
    train = {"framework": "torchtitan", "version": version, "micro_batch": 1, "seq_len": 64, "mesh": {"tp": tp, "dp_shard": dp}, "sharding": "fsdp2"}
    _, _, found = accounted(read_job({"model": {"shape": shape}, "hardware": {"gpus": tp * dp}, "train": train}))
    bill: Any = found.ranks[0].bill
    held = bill.layout.tensors(bill.network, bill.recipe.setup)
    return Counter(tuple(d.size for d in p.dims) for p in held if not p.buffer)


@pytest.mark.parametrize("name", CASES)
def test_shapes_of_a_rank(name: str, measured: dict[str, Counter[tuple[int, ...]]]) -> None:
    """torchtitan's plan, run by PyTorch, leaves a rank the parameters that the engine declares, each with its shape."""
    assert predicted(*CASES[name]) == measured[name]
