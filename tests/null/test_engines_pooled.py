"""TensorRT-LLM, TGI, LMDeploy, ExLlama and MLX: the share of free memory, pages, cache formats, weights, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput

LLAMA = "meta-llama/Meta-Llama-3.1-8B"
TOKEN = 131_072
"""Bytes of a token of it in 16 bits."""


def ask(engine: str, model: str = LLAMA, gpu: str | None = "a100-80gb", given: dict[str, int] | None = None, **serve: Any) -> Any:
    made: dict[str, Any] = {"model": model, "hardware": {"gpus": 1}, "serve": {"engine": engine, **serve}}
    if gpu:
        made["hardware"]["gpu"] = gpu
    return estimate(made | ({"given": given} if given else {}))


def test_tensorrt_llm_gives_nine_tenths_of_free_memory_to_the_cache() -> None:
    """Free after the engine, its execution context and the decoder's buffers (24 bytes a sequence and word), times the fraction, in blocks."""
    given = {"free_before_load": 70 * 10**9, "weights": 16 * 10**9, "activation_peak": 4 * 10**9}
    figures = ask("tensorrt-llm", version="0.18", sequences=64, given=given).figures
    assert figures["kv.tokens"] == int((50 * 10**9 - 24 * 64 * 128_256) * 0.9) // (32 * TOKEN) * 32
    half = ask("tensorrt-llm", version="0.18", sequences=64, memory_fraction=0.45, given=given).figures
    assert half["kv.tokens"] == pytest.approx(figures["kv.tokens"] / 2, abs=32)


def test_tgi_keeps_a_twentieth_of_the_device() -> None:
    """free - (1 - fraction)·total after a warm-up of max_batch_prefill_tokens."""
    found = ask("tgi", version="3.0", batched_tokens=4096)
    rows = {entry.id: entry.bytes for entry in found.worst.ledger}
    expected = found.hardware.capacity * 0.95 - rows["context/cuda"] - found.figures["weights"] - rows["activation/prompt"] - rows["workspace/cublas"]
    assert found.figures["kv.pool"] == pytest.approx(expected, abs=2 * TOKEN)


@pytest.mark.parametrize(("word", "token"), [("auto", TOKEN), ("int8", 2 * 32 * 8 * (128 + 4)), ("int4", 2 * 32 * 8 * (64 + 4))])
def test_lmdeploy_cache_formats(word: str, token: int) -> None:
    """8 or 4 bits with a scale and a zero point of 16 bits for each head and token."""
    assert ask("lmdeploy", kv_dtype=word).figures["kv.bytes_per_token"] == token


def test_lmdeploy_keeps_logits_free() -> None:
    """The PyTorch engine: 2 bytes a logit of a prefill and two rows a sequence from 0.10 on, 7 bytes a logit before."""
    new = ask("lmdeploy", version="0.12", batched_tokens=4096, sequences=128, extra={"backend": "pytorch"})
    old = ask("lmdeploy", version="0.9", batched_tokens=4096, sequences=128, extra={"backend": "pytorch"})
    assert new.figures["activation_peak"] == 2 * (4096 + 256) * 128_256
    assert old.figures["activation_peak"] == 7 * 4096 * 128_256


def test_a_share_of_all_memory_in_old_lmdeploy() -> None:
    """Before 0.2.2 cache_max_entry_count was of the whole device, 0.5 by default."""
    assert ask("lmdeploy", version="0.2.1").figures["kv.pool"] < ask("lmdeploy", version="0.6").figures["kv.pool"]


@pytest.mark.parametrize(("kv", "token"), [("fp16", 32 * 2048 * 2), ({"k": "q4", "v": "q4"}, 32 * 2 * 32 * 18), ({"k": "q8", "v": "q4"}, 32 * 32 * (34 + 18))])
def test_exllama_cache_formats(kv: Any, token: int) -> None:
    """k bits a number and a 16-bit scale for 32 of them, keys and values each their own."""
    assert ask("exllama", gpu="rtx-4090", weights={"format": "exl3", "bits": 4}, kv_dtype=kv, context=8192).figures["kv.bytes_per_token"] == token


def test_exllama_weights() -> None:
    """A trellis of so many bits, two signs a matrix, the head in 6 bits, the embedding in host memory."""
    found = ask("exllama", gpu="rtx-4090", weights={"format": "exl3", "bits": 3.5}, context=8192)
    blocks = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336)
    head = 128_256 * 4096
    assert found.figures["weights"] == pytest.approx(blocks * 3.5 / 8 + head * 6 / 8, rel=0.003)
    assert found.figures["host.bytes"] == 2 * head
    wider = ask("exllama", gpu="rtx-4090", weights={"format": "exl3", "bits": 4.25}, context=8192)
    assert wider.figures["weights"] - found.figures["weights"] == pytest.approx(blocks * 0.75 / 8, rel=0.05)


def test_mlx_weights_and_cache() -> None:
    """Numbers of 4 bits with a scale and a bias of 16 bits for 64; a cache that grows by 256 tokens."""
    found = ask("mlx", gpu="Apple-M4-Max-128GB", weights={"format": "int4"}, context=1000)
    linear = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336) + 128_256 * 4096
    assert found.figures["weights"] == pytest.approx(linear * 4.5 / 8 + 2 * 128_256 * 4096, rel=0.001)
    assert found.figures["kv.bytes"] == 1024 * TOKEN
    assert ask("mlx", gpu=None, context=1000, extra={"kv_bits": 8}).figures["kv.bytes"] == 1024 * 2 * 32 * (1024 + 2 * 2 * 16)


def test_mlx_may_not_use_all_memory() -> None:
    """The GPU's working set is a share of the machine's memory, taken once; the wired limit raises it, and the verdict goes by it."""
    small = ask("mlx", "Qwen/Qwen2.5-72B", "Apple-M4-Max-128GB", weights={"format": "bf16"})
    assert not small.fits
    assert "iogpu.wired_limit_mb" in small.warnings[0]
    assert small.hardware is not None
    assert small.hardware.capacity == 96 * 2**30
    wired = ask("mlx", "Qwen/Qwen2.5-72B", "Apple-M4-Max-128GB", weights={"format": "bf16"}, extra={"iogpu.wired_limit_mb": 180 * 1024})
    assert wired.hardware is not None
    assert wired.hardware.capacity == 180 * 2**30
    assert wired.fits
    by_size = ask("mlx", gpu={"memory_bytes": 128 * 2**30, "name": "a Mac"})
    assert by_size.hardware is not None
    assert by_size.hardware.capacity == 96 * 2**30


def test_mlx_makes_the_scores_of_heads_that_are_not_fused() -> None:
    """Heads of 256 numbers have no fused kernel for a prompt: 2 bytes for each head, query of a step and token; heads of 128 have one."""
    rows = {row.id: row.bytes for row in ask("mlx", "google/gemma-2-2b", gpu=None, context=8192).worst.ledger}
    assert rows["activation/scores"] == 2 * 8 * 2048 * 8192
    assert not any(row.id == "activation/scores" for row in ask("mlx", gpu=None, context=8192).worst.ledger)


@pytest.mark.parametrize("engine", ["tensorrt-llm", "tgi", "lmdeploy"])
def test_no_gpu_no_pool(engine: str) -> None:
    """Without a device there are weights and a price, and it is said why there is no pool."""
    found = ask(engine, gpu=None)
    assert found.fits is None
    assert "kv.pool" not in found.figures
    assert any("hardware.gpu" in text for text in found.assumptions)


@pytest.mark.parametrize("engine", ["tensorrt-llm", "tgi", "lmdeploy"])
def test_a_model_that_is_too_large(engine: str) -> None:
    """No page of cache is left."""
    found = ask(engine, "Qwen/Qwen2.5-72B")
    assert not found.fits
    assert "no room" in found.warnings[0]


@pytest.mark.parametrize(
    ("engine", "serve", "path"),
    [
        ("lmdeploy", {"kv_dtype": "fp8"}, "serve.kv_dtype"),
        ("exllama", {"kv_dtype": "nvfp4"}, "serve.kv_dtype"),
        ("exllama", {"weights": {"format": "awq"}}, "serve.weights.format"),
        ("mlx", {"weights": {"format": "fp8"}}, "serve.weights.format"),
        ("tgi", {"extra": {"max_batch_prefill_tokens": "many"}}, "serve.extra.max_batch_prefill_tokens"),
    ],
)
def test_bad_settings(engine: str, serve: dict[str, Any], path: str) -> None:
    """What an engine does not have is refused at its key."""
    with pytest.raises(BadInput) as refused:
        ask(engine, **serve)
    assert refused.value.path == path


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "tgi", "lmdeploy", "exllama", "mlx"])
def test_rows_are_the_sum(engine: str) -> None:
    """The rows of a phase add up to the phase."""
    found = ask(engine)
    for phase in found.worst.phases:
        assert sum(e.bytes for e in found.worst.ledger if phase.name in e.phases and e.category != "context") == phase.allocated


@pytest.mark.parametrize(
    ("version", "share", "of_card"),
    [("1.4.0", 1.0, False), ("2.2.0", 0.95, False), ("2.4.0", 0.90, False), ("3.0.0", 0.95, True), ("3.1.0", 0.93, True), ("3.3.0", 0.90, True)],
)
def test_tgi_leaves_room_by_version(version: str, share: float, of_card: bool) -> None:
    """Blocks take a share of what the warm-up leaves, beside those of its own tokens; since 3.0 the share is of the whole card."""
    settings = {"batched_tokens": 4000, "context": 4000}
    found = ask("tgi", version=version, **settings)
    assert found.hardware is not None
    rows = {row.id: row.bytes for row in found.worst.ledger if row.category in ("activation", "context", "workspace")}
    left = found.hardware.capacity - found.figures["weights"] - sum(rows.values())
    warm = 4000 * TOKEN
    expected = left - found.hardware.capacity * (1 - share) if of_card else (left - warm) * share + warm
    assert found.figures["kv.pool"] == pytest.approx(expected, abs=16 * TOKEN)
    assert found.fits or share == 1.0


def test_tgi_warms_up_with_log_probabilities_until_three() -> None:
    """2 bytes a token and word for the logits, as much for their copy; one GPU makes none since 2.4, and 3.0 asks for none."""

    def rows(version: str, **more: Any) -> dict[str, int]:
        ledger = ask("tgi", version=version, batched_tokens=4000, **more).worst.ledger
        return {row.id: row.bytes for row in ledger if row.id.startswith("activation/log")}

    logits = 2 * 4000 * 128_256
    assert rows("2.2.0") == {"activation/logits": logits, "activation/logprobs": logits}
    assert rows("2.4.0") == {"activation/logits": logits}
    assert rows("3.0.0") == {}


def test_exllama_packs_the_head_of_a_tied_model() -> None:
    """The shared table stays on the host in 16 bits; the GPU has a head of 6 bits made from it."""
    found = ask("exllama", "google/gemma-3-1b-it", gpu="rtx-4090", weights={"format": "exl3", "bits": 4}, context=2048)
    rows = {row.id: row.bytes for row in found.worst.ledger}
    table = 262_144 * 1152
    assert rows["weights/head/lm_head"] == table * 6 // 8
    assert "weights/embed/model" not in rows
    assert found.figures["host.bytes"] == 2 * table
