"""Pages, groups, blocks, tokens and concurrency equal what vLLM's own code makes of the same config (data recorded by record_vllm.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everybyte.basics.dtypes import BF16
from everybyte.engines.vllm.caches import layers_of
from everybyte.engines.vllm.network import fields_of
from everybyte.engines.vllm.pages import Demand, Plan, plan_of
from everybyte.engines.vllm.settings import settings_of
from everybyte.job import read_job
from everybyte.models.source import network_of
from everybyte.rules.accounting.account import Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

DATA = json.loads((Path(__file__).parent / "data" / "vllm_pages.json").read_text())
ROWS = DATA["rows"]


def plan_and_demand(row: dict[str, Any]) -> tuple[Plan, Demand]:
    """Ours for the recorded settings."""
    extra = {**row["arguments"], "mamba_ssm_cache_dtype": row["state_dtype"]}
    job = read_job(
        {
            "model": row["model"],
            "serve": {
                "engine": "vllm",
                "version": DATA["vllm"],
                "weights": "bf16",
                "context": row["context"],
                "sequences": 256,
                "batched_tokens": DATA["batched_tokens"],
                "block_size": 16,
                "extra": extra,
            },
        }
    )
    network = network_of(row["model"])
    s = settings_of(job, network, Device("", 0, "8.0"), BF16, ResolvedSettings())
    return plan_of(layers_of(network, s, fields_of(job)).specs, padding=1.5, joined=False), Demand(row["context"], row["in_flight"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['arguments'] or ''}")
def test_the_pool_is_divided_as_vllm_divides_it(row: dict[str, Any]) -> None:
    """Groups, blocks, tokens and concurrency of a pool of 40 GiB."""
    plan, demand = plan_and_demand(row)
    blocks = plan.blocks(DATA["pool"])
    concurrency = blocks / plan.request(demand)
    assert (len(plan.groups), blocks, int(concurrency * row["context"])) == (row["groups"], row["blocks"], row["tokens"])
    assert concurrency == pytest.approx(row["concurrency"], rel=1e-12)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['arguments'] or ''}")
def test_pages_have_the_length_that_vllm_gives_them(row: dict[str, Any]) -> None:
    """Bytes of a page by layer, before groups are formed: the longest of ours is the longest of vLLM's."""
    plan, _ = plan_and_demand(row)
    assert max(group.spec.page for group in plan.groups) == max(page for _, page, _ in row["layers"])


def test_twenty_architectures_are_recorded() -> None:
    """The recorded data covers networks of every layer kind."""
    assert len({row["model"] for row in ROWS}) >= 20
    assert {kind for row in ROWS for kind, _, _ in row["layers"]} >= {"FullAttentionSpec", "SlidingWindowSpec", "MLAAttentionSpec", "MambaSpec"}
