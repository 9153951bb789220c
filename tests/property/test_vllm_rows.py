"""Rows of vLLM's answers: every formula, put into numbers, gives the row's bytes; figures are sums of rows; more memory never holds fewer tokens."""

from __future__ import annotations

from typing import Any

import pytest
from arithmetic_of_rows import calculate

from everybyte import estimate
from everybyte.basics.errors import BadInput, Unsupported

JOBS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dense": ("meta-llama/Meta-Llama-3.1-8B", 1, {"version": "0.19.0"}),
    "dense tp": ("Qwen/Qwen2.5-72B", 8, {"mesh": {"tp": 8}}),
    "few kv heads": ("Qwen/Qwen2.5-7B-Instruct", 4, {"mesh": {"tp": 4}, "version": "0.10.2"}),
    "pipeline": ("meta-llama/Meta-Llama-3.1-8B", 4, {"mesh": {"pp": 4}}),
    "experts": ("Qwen/Qwen3-30B-A3B", 4, {"mesh": {"tp": 4, "ep": 4}}),
    "latent": ("deepseek-ai/DeepSeek-V3", 8, {"mesh": {"tp": 8}, "draft": "mtp"}),
    "sparse": ("deepseek-ai/DeepSeek-V3.2", 8, {"mesh": {"tp": 8}, "kv_dtype": "fp8"}),
    "compressed": ("deepseek-ai/DeepSeek-V4-Flash", 4, {"mesh": {"tp": 4}, "kv_dtype": "fp8", "draft": "mtp"}),
    "windows": ("google/gemma-3-27b-it", 2, {"mesh": {"tp": 2}}),
    "mxfp4": ("openai/gpt-oss-20b", 1, {}),
    "delta nets": ("Qwen/Qwen3-Next-80B-A3B-Instruct", 4, {"mesh": {"tp": 4}, "extra": {"enable-prefix-caching": True}}),
    "mamba": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 1, {"kv_dtype": "fp8"}),
    "awq": ("Qwen/Qwen2.5-7B-Instruct", 1, {"weights": "awq", "cuda_graphs": False}),
    "nf4 with adapters": ("Qwen/Qwen3-4B", 1, {"weights": "nf4", "lora": {"rank": 32, "count": 4}}),
    "gguf": ("meta-llama/Llama-3.2-3B", 1, {"weights": "q8_0", "version": "0.8.2"}),
    "draft model": ("Qwen/Qwen3-32B", 2, {"mesh": {"tp": 2}, "draft": {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "tokens": 3}}),
    "V0": ("meta-llama/Meta-Llama-3.1-8B", 1, {"version": "0.6.6", "context": 16384}),
}


def job(name: str, **more: Any) -> dict[str, Any]:
    """A job of JOBS on H100s."""
    model, gpus, serve = JOBS[name]
    return {"model": model, "hardware": {"gpu": "h100", "gpus": gpus}, "serve": {"engine": "vllm", "context": 8192, **serve, **more}}


@pytest.mark.parametrize("name", JOBS)
def test_formulas_give_the_bytes(name: str) -> None:
    """For every entry of every stage; weights and activations are the sums of their rows."""
    found = estimate(job(name))
    for rank in found.ranks:
        for entry in rank.ledger:
            assert calculate(entry.formula, entry.symbols) == entry.bytes, entry
    sums = [sum(e.bytes for e in rank.ledger if e.id.startswith(("weights/", "lora/", "draft/"))) for rank in found.ranks]
    assert found.figures["weights"] in sums
    outside = [sum(e.bytes for e in rank.ledger if e.category == "context" and e.id != "context/cuda") for rank in found.ranks]
    assert found.figures["non_torch"] in outside


@pytest.mark.parametrize("name", JOBS)
def test_the_pool_is_what_the_budget_leaves(name: str) -> None:
    """A given pool decides tokens; given parts decide the pool, byte by byte."""
    parts = {"weights": 9 * 2**30, "activation_peak": 2 * 2**30, "non_torch": 2**29, "cuda_graphs_estimate": 2**28, "budget": 70 * 2**30}
    found = estimate({**job(name), "given": parts})
    taken = parts["weights"] + parts["activation_peak"] + parts["non_torch"]
    assert found.figures["kv.pool"] - (parts["budget"] - taken) in (0, -parts["cuda_graphs_estimate"])
    fixed = estimate({**job(name), "given": {"kv.pool": 30 * 2**30}}).figures
    assert fixed["kv.blocks"] == estimate({**job(name, memory_fraction=0.5), "given": {"kv.pool": 30 * 2**30}}).figures["kv.blocks"]


@pytest.mark.parametrize("name", JOBS)
def test_a_larger_share_of_the_device_holds_no_fewer_tokens(name: str) -> None:
    """Blocks grow with gpu_memory_utilization."""
    blocks = [estimate(job(name, memory_fraction=share)).figures["kv.blocks"] for share in (0.5, 0.7, 0.9, 0.95)]
    assert blocks == sorted(blocks)


def test_keys_and_values_are_repeated_where_there_are_fewer_heads_than_ranks() -> None:
    """Four heads of keys on eight ranks: every rank has one."""
    two, four, eight = (
        estimate(
            {
                **job("dense"),
                "model": "Qwen/Qwen2.5-7B-Instruct" if tp < 8 else "Qwen/Qwen3-32B",
                "hardware": {"gpu": "h100", "gpus": tp},
                "serve": {"engine": "vllm", "context": 8192, "mesh": {"tp": tp}},
            }
        ).figures["kv.bytes_per_token"]
        for tp in (2, 4, 8)
    )
    assert (two, four, eight) == (28 * 2 * 2 * 128 * 2, 28 * 2 * 1 * 128 * 2, 64 * 2 * 1 * 128 * 2)


def test_latents_are_whole_on_every_rank() -> None:
    """The cache of multi-head latent attention does not shrink with tensor parallelism."""
    assert estimate(job("latent", draft=None)).figures["kv.bytes_per_token"] == 61 * 576 * 2


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"mesh": {"tp": 3}}, "serve.mesh"),
        ({"kv_dtype": "q8_0"}, "serve.kv_dtype"),
        ({"weights": "int3x"}, "serve.weights.format"),
        ({"extra": {"VLLM_USE_V1": 2}}, "serve.extra.VLLM_USE_V1"),
        ({"extra": {"dtype": "float8"}}, "serve.extra.dtype"),
        ({"extra": {"cpu-offload-gb": -1}}, "serve.extra.cpu-offload-gb"),
        ({"mesh": {"tp": 2}}, "serve.mesh"),
        ({"mesh": {"pp": 1}, "extra": {"VLLM_PP_LAYER_PARTITION": "1,2"}}, "serve.extra.VLLM_PP_LAYER_PARTITION"),
    ],
)
def test_bad_settings_are_named(more: dict[str, Any], path: str) -> None:
    """One message with the key's path."""
    with pytest.raises((BadInput, Unsupported), match=path.replace(".", r"\.")):
        estimate(job("dense", **more))


def test_cross_attention_on_v0_is_profiled_with_an_item_for_each_sequence() -> None:
    """V0's profiling run hands max_num_seqs items to the encoder at once; with a given pool its blocks are those of one request's cache."""
    asked = {**job("dense", version="0.6.6", cuda_graphs=False), "model": "openai/whisper-base"}
    asked["serve"]["context"] = 448
    few, many = (estimate({**asked, "serve": {**asked["serve"], "sequences": count}}).figures["activation_peak"] for count in (128, 256))
    assert many - few == pytest.approx(128 * 1500 * 2 * (2 * 512 + 2 * 2048), rel=0.01)
    found = estimate({**asked, "given": {"kv.pool": 2**30}})
    assert found.figures["kv.blocks"] == 2**30 // (found.figures["kv.bytes_per_token"] * found.figures["kv.block_size"])


@pytest.mark.parametrize(
    ("model", "version", "extra", "falls_back"),
    [
        ("openai/whisper-base", "0.8.0", {}, True),
        ("openai/whisper-base", "0.11.0", {}, False),
        ("state-spaces/mamba-130m-hf", "0.9.0", {}, True),
        ("Qwen/Qwen3-0.6B", "0.8.5", {"task": "embed"}, True),
        ("Qwen/Qwen3-0.6B", "0.8.5", {}, False),
        ("Qwen/Qwen3-0.6B", "0.10.0", {"task": "embed"}, False),
    ],
)
def test_what_falls_back_to_v0(model: str, version: str, extra: dict[str, Any], falls_back: bool) -> None:
    """vLLM 0.8 to 0.10 run some models and tasks with the first engine, and the answer says why."""
    asked = {"model": model, "hardware": {"gpu": "a100-80gb", "gpus": 1}, "serve": {"engine": "vllm", "version": version, "extra": extra}}
    assert any("falls back to its engine V0" in text for text in estimate(asked).assumptions) is falls_back


def test_slots_for_adapters_of_experts() -> None:
    """From 0.11.1 each slot holds factors for the three projections of every expert: 3·(h + f) numbers a rank, layer and expert."""
    asked = {"model": "Qwen/Qwen3-30B-A3B", "hardware": {"gpu": "h200", "gpus": 1}}
    serve = {"engine": "vllm", "lora": {"rank": 64, "count": 4}}
    old, new = (estimate({**asked, "serve": {**serve, "version": version}}).figures["weights"] for version in ("0.11.0", "0.24.0"))
    assert new - old == pytest.approx(4 * 48 * 128 * 64 * 2 * 3 * (2048 + 768), rel=0.001)


def test_hybrid_networks_need_a_block_of_state_for_each_sequence() -> None:
    """From 0.20 more sequences than blocks are refused where whole steps are captured; fewer, or eager mode, start."""
    asked = {"model": "Qwen/Qwen3.5-27B", "hardware": {"gpu": "rtx-pro-6000-blackwell-workstation", "gpus": 1}}
    serve = {"engine": "vllm", "version": "0.20.2", "context": 8192}
    refused = estimate({**asked, "serve": serve})
    assert not refused.fits
    assert "--sequences <=" in refused.warnings[0]
    for more in ({"sequences": 256}, {"cuda_graphs": False}, {"version": "0.19.0"}):
        assert estimate({**asked, "serve": {**serve, **more}}).fits


def test_modalities_that_are_limited_to_none_are_not_profiled() -> None:
    """The encoder's budget is that of the largest kind of item; kinds with a limit of 0 do not count."""

    def peak(**extra: Any) -> int:
        serve = {"engine": "vllm", "version": "0.23.0", "context": 65536, "extra": extra}
        asked = {"model": "Qwen/Qwen2.5-VL-7B-Instruct", "hardware": {"gpu": "h200", "gpus": 1}, "serve": serve}
        return int(estimate(asked).figures["activation_peak"])

    video, image, none = peak(), peak(limit_mm_per_prompt={"video": 0}), peak(limit_mm_per_prompt='{"image": 0, "video": {"count": 0}}')
    assert video > 3 * image
    assert image > none


def test_the_range_of_a_fraction_keeps_its_decimals() -> None:
    """One and a half sequences at full context lie between fractions, not between 0 and 2; tokens are whole."""
    found = estimate(job("dense"))
    held, (low, high) = found.figures["kv.concurrency"], found.range["kv.concurrency"]
    assert low <= held <= high
    assert (low, high) != (int(low), int(high))
    assert all(isinstance(end, int) for end in found.range["kv.tokens"])
