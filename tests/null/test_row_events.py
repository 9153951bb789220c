"""FSDP2's allocations by CUDA stream: what is made on which, and that everything is freed once."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte.allocator.reserved import Reserved, peak_reserved
from everybyte.basics.allocations import STREAM_BITS
from everybyte.basics.units import MiB
from everybyte.engines.registry import account
from everybyte.estimator import device_of
from everybyte.job import read_job
from everybyte.models.source import network_of
from everybyte.rules.sharding.fsdp2 import GATHER, REDUCE

LAYERS, GPUS = 4, 8
SHAPE = {"family": "llama", "layers": LAYERS, "hidden": 1024, "ffn": 4096, "heads": 16, "kv_heads": 4, "head_dim": 64, "vocab": 32000, "norm": "rmsnorm"}


def events(gpus: int = GPUS, **train: Any) -> list[tuple[int, int]]:
    """The script of a torchtitan step."""
    job = read_job(
        {
            "model": {"shape": SHAPE},
            "hardware": {"gpu": "h100", "gpus": gpus},
            "train": {"framework": "torchtitan", "micro_batch": 1, "seq_len": 1024, "loss": "standard", "recompute": "full", **train},
        }
    )
    return list(account(job, network_of(job.model, "model"), device_of(job)).ranks[0].bill.script())


def of(stream: int, rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The events of one stream."""
    return [row for row in rows if row[0] >> STREAM_BITS == stream]


def layer_numel() -> int:
    """Parameters of a block."""
    h, f, a, k = 1024, 4096, 1024, 256
    return 2 * h * a + 2 * h * k + 3 * h * f + 2 * h


def test_units_are_gathered_on_a_stream_of_their_own() -> None:
    """Forward and backward gather each of the blocks once a step, in bf16, into one buffer; a step gathers nothing on one GPU."""
    blocks = [size for _, size in of(GATHER, events()) if size == 2 * layer_numel()]
    assert len(blocks) == 2 * 2 * LAYERS
    assert not of(GATHER, events(gpus=1))


def test_shared_gradients_are_made_on_the_reduce_scatter_stream() -> None:
    """This rank's fp32 part of each unit's gradients, once a step."""
    parts = [size for _, size in of(REDUCE, events()) if size == 4 * layer_numel() // GPUS]
    assert len(parts) == 2 * LAYERS


@pytest.mark.parametrize("train", [{}, {"grad_accum": 2}, {"version": "2024-12"}, {"sharding": "fsdp2-no-reshard"}, {"mesh": {"dp_shard": 4, "cp": 2}}])
def test_what_is_made_for_a_layer_is_freed_once(train: dict[str, Any]) -> None:
    """No key is made twice while it lives or freed while it does not; after two steps weights, states, tables of positions (since 2026),
    the last batch and workspaces are left."""
    alive: dict[int, int] = {}
    for key, size in events(**train):
        assert (key in alive) == (size == 0)
        if size:
            alive[key] = size
        else:
            del alive[key]
    numel = LAYERS * layer_numel() + 2 * 32000 * 1024 + 1024
    tables = 0 if "version" in train else LAYERS * 131_072 * 64 * 4
    assert 0 <= sum(alive.values()) - 12 * numel // GPUS - tables < 72 * MiB


def test_peaks_of_streams_add_up() -> None:
    """Memory that one stream has freed does not serve another: 100 MiB on each of two streams, one after the other, are 200 MiB reserved."""
    size = 100 * MiB
    rows = [(1, size), (1, 0), ((1 << STREAM_BITS) + 2, size), ((1 << STREAM_BITS) + 2, 0)]
    assert peak_reserved(rows).peak == 2 * size
    assert peak_reserved([(1, size), (1, 0), (2, size), (2, 0)]).peak == size


def test_near_the_limit_free_memory_of_other_streams_is_given_back() -> None:
    """On a device of 150 MiB the same events are served, as no more than 100 MiB ever live; what cannot be served says how much is missing."""
    size = 100 * MiB
    rows = [(1, size), (1, 0), ((1 << STREAM_BITS) + 2, size), ((1 << STREAM_BITS) + 2, 0)]
    assert peak_reserved(rows, capacity=250 * MiB) == Reserved(2 * size)
    assert peak_reserved(rows, capacity=150 * MiB) == Reserved(size, retries=1, left=size)
    assert peak_reserved([(1, size), ((1 << STREAM_BITS) + 2, size)], capacity=150 * MiB) == Reserved(2 * size)
