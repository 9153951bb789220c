"""llama.cpp, ik_llama.cpp and ollama: settings by build, layers and tensors on devices, what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.ledger.answer import Answer

GIB = 1 << 30


def answer(model: Any = "meta-llama/Llama-3.1-8B", gpus: int = 1, **serve: Any) -> Answer:
    """The answer to a job of llama.cpp."""
    hardware = {"gpu": "rtx-3090", "gpus": gpus} if gpus else {"gpus": 0}
    return estimate({"model": model, "hardware": hardware, "serve": {"engine": "llama.cpp", "weights": "q4_k_m", "context": 8192, **serve}})


def test_layers_on_the_host() -> None:
    """Layers that -ngl leaves on the host are there with their caches; the sum is the same."""
    whole, part = answer(version="b5300"), answer(version="b5300", gpu_layers=10)
    assert part.figures["peak.device"] < whole.figures["peak.device"]
    assert part.figures["host.bytes"] > whole.figures["host.bytes"] + 2 * GIB
    assert part.figures["kv.bytes"] == whole.figures["kv.bytes"] == 32 * 8192 * 2 * 1024 * 2


def test_the_busiest_card_decides() -> None:
    """An unequal split loads one card more, and the answer is that card's."""
    equal, unequal = answer(gpus=2), answer(gpus=2, tensor_split=[3, 1])
    assert unequal.figures["weights"] > 1.3 * equal.figures["weights"]
    assert [rank.label for rank in unequal.ranks] == ["CUDA0", "CUDA1"]


def test_experts_on_the_host() -> None:
    """Overridden experts leave the GPU; their matrices come back one operation at a time for large batches, in the compute buffer."""
    model = "Qwen/Qwen3-30B-A3B"
    whole, moved = answer(model, version="b5300"), answer(model, version="b5300", extra={"override-tensor": "exps=CPU"})
    assert moved.figures["weights"] < 0.1 * whole.figures["weights"]
    assert moved.figures["host.bytes"] > 14 * GIB
    assert answer(model, version="b5300", extra={"cpu-moe": True}).figures == moved.figures


def test_without_a_gpu() -> None:
    """A server on the host needs no device, and says what it needs there."""
    found = answer(gpus=0)
    assert found.fits is None
    assert found.ranks[0].label == "CPU"
    assert found.figures["host.bytes"] == found.figures["peak.allocated"]


@pytest.mark.parametrize(("build", "factor"), [("b5000", 70), ("b5300", 1.88), ("b9000", 1)])
def test_latent_attention_by_build(build: str, factor: float) -> None:
    """DeepSeek's cache: all keys and values, then the latent twice, then once."""
    size = answer("deepseek-ai/DeepSeek-V3", version=build).figures["kv.bytes"]
    assert size == pytest.approx(61 * 8192 * 576 * 2 * factor, rel=0.03)


@pytest.mark.parametrize(("mode", "flash", "width"), [(0, True, 128 * (192 + 128)), (1, False, 576 + 512), (1, True, 576), (3, True, 576)])
def test_latent_attention_of_the_fork(mode: int, flash: bool, width: int) -> None:
    """ik_llama.cpp: -mla 0 to 3."""
    found = answer("deepseek-ai/DeepSeek-V3", attention="flash" if flash else "eager", extra={"fork": "ik_llama.cpp", "mla": mode})
    assert found.figures["kv.bytes"] == 61 * 8192 * width * 2


def test_windows_by_build() -> None:
    """Gemma's windows have a cache of their own since b5432, unless it is asked for in full."""
    old, new, full = (answer("google/gemma-3-1b-it", **more) for more in ({"version": "b5300"}, {}, {"swa_full": True}))
    assert old.figures["kv.bytes"] == full.figures["kv.bytes"] > new.figures["kv.bytes"]
    assert "kv.swa_bytes" not in old.figures


def test_ollama_defaults() -> None:
    """ollama's context follows the memory of the GPU."""
    found = estimate({"model": "meta-llama/Llama-3.1-8B", "hardware": {"gpu": "rtx-3090"}, "serve": {"engine": "ollama", "weights": "q4_k_m"}})
    assert found.job["serve"]["context"] == 32768
    assert found.figures["kv.bytes"] == 4 * GIB


@pytest.mark.parametrize(
    ("model", "version", "build", "attention", "context", "slots"),
    [
        ("Qwen/Qwen3-32B", "0.5.12", "b4320", "eager", 2048, 4),
        ("Qwen/Qwen3-32B", "0.10.0", "b5359", "eager", 4096, 1),
        ("openai/gpt-oss-20b", "v0.11.8", "b6160", "flash", 4096, 1),
        ("Qwen/Qwen3-32B", "0.11.8", "b6160", "eager", 4096, 1),
        ("Qwen/Qwen3-32B", "ollama 0.12.4", "b6650", "flash", 4096, 1),
        ("meta-llama/Llama-3.1-8B", "0.12.6", "b6750", "eager", 4096, 1),
        ("meta-llama/Llama-3.1-8B", "0.15.5", "b7380", "flash", 32768, 1),
        ("meta-llama/Llama-3.1-8B", "0.32.2", "b10069", "flash", 32768, 1),
    ],
)
def test_ollama_by_version(model: str, version: str, build: str, attention: str, context: int, slots: int) -> None:
    """The release decides the build of llama.cpp, which models have flash attention, the context and the slots."""
    found = estimate({"model": model, "hardware": {"gpu": "rtx-3090", "gpus": 1}, "serve": {"engine": "ollama", "weights": "q4_k_m", "version": version}})
    serve = found.job["serve"]
    assert any(f"rules of llama.cpp {build}" in text for text in found.assumptions)
    assert (serve["attention"], serve["context"], serve["parallel_slots"]) == (attention, context, slots)


def test_the_cache_on_the_host() -> None:
    """-nkvo keeps the whole KV cache in host memory, whatever the key is called."""
    plain = answer()
    for extra in ({"no_kv_offload": True}, {"nkvo": True}, {"kv_offload": False}):
        found = answer(extra=extra)
        assert plain.figures["peak.device"] - found.figures["peak.device"] == pytest.approx(found.figures["kv.bytes"], rel=0.01)
        assert found.figures["host.bytes"] - plain.figures["host.bytes"] == found.figures["kv.bytes"]


def test_ways_to_split() -> None:
    """none puts all on the main GPU; row cuts the weights evenly; tensor cuts the caches too."""

    def ranks(mode: str, **more: Any) -> dict[str, dict[str, int]]:
        job = {
            "model": "meta-llama/Llama-3.1-8B",
            "hardware": {"gpu": "rtx-3090", "gpus": 2},
            "serve": {"engine": "llama.cpp", "weights": "q8_0", "context": 8192, "extra": {"split_mode": mode, **more}},
        }
        sums: dict[str, dict[str, int]] = {}
        for rank in estimate(job).ranks:
            rows = sums.setdefault(rank.label, {})
            for row in rank.ledger:
                rows[row.category] = rows.get(row.category, 0) + (row.bytes if "prefill" in row.phases else 0)
        return sums

    assert list(ranks("none", main_gpu=1)) == ["CUDA1"]
    row, tensor = ranks("row"), ranks("tensor")
    assert row["CUDA0"]["parameter"] == row["CUDA1"]["parameter"]
    assert tensor["CUDA0"]["kv_cache"] == tensor["CUDA1"]["kv_cache"]
    with pytest.raises(BadInput, match="main_gpu"):
        ranks("none", main_gpu=2)


def test_ollama_keeps_as_many_layers_as_fit() -> None:
    """A model that is too large is split: the GPU is nearly full, the rest is on the host."""
    found = estimate({"model": "Qwen/Qwen3-32B", "hardware": {"gpu": "rtx-4080"}, "serve": {"engine": "ollama", "weights": "q4_k_m", "context": 8192}})
    assert found.fits
    assert found.hardware is not None
    assert found.headroom is not None
    assert found.headroom < found.hardware.capacity // 10
    assert 0 < found.job["serve"]["gpu_layers"] < 64
    assert found.figures["host.bytes"] > 4 * GIB


def test_a_draft_model() -> None:
    """The draft's weights and cache are rows of the first GPU."""
    found = answer(draft={"model": "meta-llama/Llama-3.2-1B"})
    assert {"draft/weights", "draft/kv_cache", "draft/compute buffer"} <= {row.id for row in found.ranks[0].ledger}


@pytest.mark.parametrize(
    ("error", "path", "serve"),
    [
        (BadInput, "serve.kv_dtype.v", {"attention": "eager", "kv_dtype": "q8_0"}),
        (Unsupported, "serve.kv_dtype.k", {"kv_dtype": {"k": "fp8"}}),
        (Unsupported, "serve.attention", {"attention": "paged"}),
        (Unsupported, "serve.extra.fork", {"extra": {"fork": "koboldcpp"}}),
        (BadInput, "serve.extra.mla", {"extra": {"fork": "ik_llama.cpp", "mla": 7}}),
        (BadInput, "serve.extra.override-tensor", {"extra": {"override-tensor": "exps"}}),
        (BadInput, "serve.extra.override-tensor", {"extra": {"override-tensor": "(=CPU"}}),
        (BadInput, "serve.tensor_split", {"tensor_split": [1, 1, 1]}),
        (BadInput, "serve.weights.format", {"weights": "q9_z"}),
    ],
)
def test_bad_settings(error: type[Exception], path: str, serve: dict[str, Any]) -> None:
    """One message that names the key."""
    with pytest.raises(error) as caught:
        answer(**serve)
    assert getattr(caught.value, "path", "") == path
