"""Writes tests/oracle/data/deepspeed_zero.json: what DeepSpeed itself holds of a small Llama-like model, on CPU with two and three ranks.

Run it where DeepSpeed is installed (pip install deepspeed, no compiled operations needed): `python tests/oracle/record_deepspeed.py`. It reads sizes
out of the engine, and after each module that is entered how many numbers its coordinator has gathered.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.checkpoint import checkpoint

OUT = Path(__file__).parent / "data" / "deepspeed_zero.json"
HIDDEN, FFN, VOCAB, KV, LAYERS = 64, 176, 1000, 32, 6
CUT = {
    "a": {
        "stage3_prefetch_bucket_size": 3600,
        "stage3_param_persistence_threshold": 100,
        "sub_group_size": 30_000,
        "stage3_max_live_parameters": 60_000,
        "stage3_max_reuse_distance": 20_000,
    },
    "b": {
        "stage3_prefetch_bucket_size": 20_000,
        "stage3_param_persistence_threshold": 2100,
        "sub_group_size": 10**9,
        "stage3_max_live_parameters": 10**9,
        "stage3_max_reuse_distance": 10**9,
    },
    "c": {
        "stage3_prefetch_bucket_size": 0,
        "stage3_param_persistence_threshold": 0,
        "sub_group_size": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    },
}
RECOMPUTE = {"": "none", "n": "non-reentrant", "r": "reentrant"}


def linear(rows: int, columns: int) -> nn.Linear:
    """A weight without bias."""
    return nn.Linear(columns, rows, bias=False)


class Attention(nn.Module):
    """Projections in the order of a Llama's."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = linear(HIDDEN, HIDDEN), linear(KV, HIDDEN), linear(KV, HIDDEN), linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Something that uses all of them in order."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(q + torch.cat([k, v], -1))


class Mlp(nn.Module):
    """Gate, up and down."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(FFN, HIDDEN), linear(FFN, HIDDEN), linear(HIDDEN, FFN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A gated product."""
        return self.down_proj(self.gate_proj(x) * self.up_proj(x))


class Layer(nn.Module):
    """A block."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = nn.RMSNorm(HIDDEN), Attention()
        self.post_attention_layernorm, self.mlp = nn.RMSNorm(HIDDEN), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As transformers writes it."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Inner(nn.Module):
    """The model without its head."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode, self.embed_tokens = mode, nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Blocks, recomputed or not."""
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.mode == "r") if self.mode else layer(x)
        return self.norm(x)


class Model(nn.Module):
    """With its head and a loss."""

    def __init__(self, mode: str = "") -> None:
        super().__init__()
        self.model, self.lm_head = Inner(mode), linear(VOCAB, HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """A number to go back from."""
        return self.lm_head(self.model(ids)).float().logsumexp(-1).mean()


def engine(model: nn.Module, zero: dict[str, Any]) -> Any:
    """DeepSpeed around a model."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"reduce_bucket_size": 20_000, **zero},
    }
    return deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)[0]


def flat(stage: int) -> dict[str, Any]:
    """Sizes of stages 1 and 2."""
    optimizer = engine(Model(), {"stage": stage}).optimizer
    own = sum(p.numel() for p in optimizer.params_in_partition[0])
    return {"partition": optimizer.single_partition_of_fp32_groups[0].numel(), "flat": optimizer.bit16_groups_flat[0].numel(), "own": own}


def cut(mode: str, zero: dict[str, int]) -> dict[str, Any]:
    """Sizes of stage 3, and the numbers gathered after each module is entered, in the fourth step, when the trace is complete."""
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator

    deepspeed_engine = engine(Model(mode), {"stage": 3, **zero})
    available: list[int] = []
    original = Coordinator._fetch_sub_module_impl

    def watched(self: Any, *args: Any) -> None:
        original(self, *args)
        available.append(int(self._PartitionedParameterCoordinator__n_available_params))

    Coordinator._fetch_sub_module_impl = watched
    for _ in range(4):
        available.clear()
        deepspeed_engine.backward(deepspeed_engine(torch.randint(0, VOCAB, (1, 8))))
        deepspeed_engine.step()
    Coordinator._fetch_sub_module_impl = original
    optimizer = deepspeed_engine.optimizer
    return {
        "settings": zero,
        "recompute": RECOMPUTE[mode],
        "persistent": sum(p.ds_numel for p in optimizer.persistent_parameters),
        "available": available,
        "sub_groups": list(optimizer.fp16_partitioned_groups_flat_numel),
        "flat": optimizer.lp_param_buffer.numel(),
        "gradients": optimizer.grad_partitions_flat_buffer.numel(),
    }


def rank(index: int, world: int, results: Any) -> None:
    """All cases on one rank."""
    port = str(29_600 + world)
    os.environ.update(RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, DS_ACCELERATOR="cpu")
    torch.set_num_threads(1)
    import deepspeed

    deepspeed.init_distributed("gloo", verbose=False)
    found: dict[str, Any] = {f"stage{stage}": flat(stage) for stage in (1, 2)}
    found |= {name + mode: cut(mode, zero) for mode in RECOMPUTE for name, zero in CUT.items()}
    results.put((index, found))
    torch.distributed.barrier()


def main() -> None:
    """Two and three ranks."""
    import deepspeed

    source = f"deepspeed {deepspeed.__version__} on CPU with gloo, torch {torch.__version__.partition('+')[0]}; written by tests/oracle/record_deepspeed.py"
    out: dict[str, Any] = {"source": source, "flat": {}, "cut": {}}
    for world in (2, 3):
        context = mp.get_context("spawn")
        results = context.Queue()
        processes = [context.Process(target=rank, args=(index, world, results)) for index in range(world)]
        for process in processes:
            process.start()
        found = dict(results.get(timeout=600) for _ in processes)
        for process in processes:
            process.join()
        for stage in ("stage1", "stage2"):
            first = found[0][stage]
            out["flat"][f"{stage}/{world}"] = {**first, "own": {str(index): found[index][stage]["own"] for index in sorted(found)}}
        for name, case in found[0].items():
            if "available" in case:
                sizes = {key: case.pop(key) for key in ("sub_groups", "flat", "gradients")}
                out["cut"].setdefault(name, {**case, "ranks": {}})["ranks"][str(world)] = sizes
    OUT.write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
