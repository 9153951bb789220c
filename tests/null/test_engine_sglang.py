"""SGLang: the static fraction by release and device, pools of tokens, windows and states, what ranks hold, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput
from everybyte.catalog.releases import Release
from everybyte.engines.sglang.fraction import FractionInputs, decode_sizes, prefill_sizes, resolve

H100, L40, H200 = 81_559.0, 46_068.0, 143_771.0
"""MiB that nvidia-smi shows."""


LLAMA = "meta-llama/Meta-Llama-3.1-8B"


def job(model: str = LLAMA, gpu: str | None = "h100-80gb", gpus: int = 1, given: dict[str, int] | None = None, **serve: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"model": model, "hardware": {"gpus": gpus}, "serve": {"engine": "sglang", "version": "0.5.13", **serve}}
    if gpu:
        made["hardware"]["gpu"] = gpu
    return made | ({"given": given} if given else {})


@pytest.mark.parametrize(
    ("version", "asked", "fraction"),
    [
        ((0, 4, 2), FractionInputs(H100), 0.88),
        ((0, 4, 2), FractionInputs(H100, 8, 8), 0.81),
        ((0, 4, 6), FractionInputs(H100, 16, 8), 0.79),
        ((0, 4, 6), FractionInputs(H200), min(0.88 + 48 * 1024 * 0.12 / H200, (H200 - 18 * 1024) / H200)),
        ((0, 4, 9), FractionInputs(H100, 4, 4), round((H100 - 11.5 * 1024) / H100, 3)),
        ((0, 5, 2), FractionInputs(24_564.0), round((24_564 - 2.9 * 1024) / 24_564, 3)),
        ((0, 5, 5), FractionInputs(L40), round((L40 - 512 - 1.5 * 4096 - 128 - 64) / L40, 3)),
        ((0, 5, 5), FractionInputs(H100), round((H100 - 512 - 1.5 * 8192 - 128 - 512) / H100, 3)),
        ((0, 5, 20), FractionInputs(32_607.0), round((32_607 - 512 - 1.5 * 4096 - 128 - 96 - 8 * len(prefill_sizes(4096))) / 32_607, 3)),
        ((0, 5, 13), FractionInputs(H100, speculative="eagle"), round((H100 - 512 - 1.5 * 8192 - 128 - 512 - 8 * len(prefill_sizes(8192)) - 4096) / H100, 3)),
    ],
)
def test_the_static_fraction_of_each_release(version: tuple[int, ...], asked: FractionInputs, fraction: float) -> None:
    """The rule of a release, worked out by hand from its source."""
    assert resolve(asked, Release("sglang", version)).fraction == pytest.approx(fraction, abs=1e-9)


def test_captured_batches() -> None:
    """The lists of captured sizes end with the largest and never pass it."""
    assert decode_sizes(0) == ()
    assert decode_sizes(24) == (1, 2, 4, 8, 12, 16, 24)
    assert decode_sizes(25)[-2:] == (24, 25)
    assert decode_sizes(8, speculative=True) == (1, 2, 3, 4, 5, 6, 7, 8)
    assert max(prefill_sizes(2048)) <= 2048


def test_tokens_follow_from_the_pool() -> None:
    """tokens = pool / (2·k·d·e·L): 128 KiB a token for Llama-3.1-8B."""
    figures = estimate(job(given={"kv.pool": 10 * 2**30})).figures
    assert figures["kv.bytes_per_token"] == 131_072
    assert figures["kv.tokens"] == 10 * 2**30 // 131_072 - 1


def test_the_pool_is_what_the_fraction_leaves() -> None:
    """pool = free after loading - free before·(1 - fraction), in whole tokens, and one page more."""
    given = {"free_before_load": 80 * 10**9, "free_after_weights": 60 * 10**9}
    figures = estimate(job(memory_fraction=0.9, given=given)).figures
    assert 0 <= 60 * 10**9 - 8 * 10**9 + 131_072 - figures["kv.pool"] <= 131_072


def test_kv_heads_are_repeated_and_latents_are_whole() -> None:
    """With more ranks than KV heads each keeps one; MLA's latents lie whole on every rank."""
    price = {tp: estimate(job(gpus=tp, mesh={"tp": tp})).figures["kv.bytes_per_token"] for tp in (1, 2, 8, 16)}
    assert price == {1: 131_072, 2: 65_536, 8: 16_384, 16: 16_384}
    latent = {tp: estimate(job("deepseek-ai/DeepSeek-V3", "h200", tp, mesh={"tp": tp})).figures["kv.bytes_per_token"] for tp in (8, 16)}
    assert latent == dict.fromkeys((8, 16), 61 * 576 * 2)


def test_data_parallel_attention_repeats_attention() -> None:
    """With as many groups as ranks, each rank holds all of attention and its share of the experts."""
    plain = estimate(job("deepseek-ai/DeepSeek-V3", "h200", 8, mesh={"tp": 8})).figures["weights"]
    groups = estimate(job("deepseek-ai/DeepSeek-V3", "h200", 8, mesh={"tp": 8, "dp": 8}, extra={"enable-dp-attention": True})).figures["weights"]
    attention = 61 * (7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768 + 16384 * 7168)
    assert 0.8 * attention * 7 / 8 < groups - plain < 1.6 * attention * 7 / 8


def test_states_and_tokens_share_what_is_left() -> None:
    """Without a stated number of slots, states get 9 bytes for 10 of keys and values."""
    figures = estimate(job("Qwen/Qwen3.5-27B", weights={"format": "fp8"})).figures
    assert figures["state.bytes"] / figures["kv.pool"] == pytest.approx(0.9, abs=0.03)


def test_stated_slots() -> None:
    """(slots + 1) states: SSM in fp32, a convolution of one column less than its kernel."""
    figures = estimate(job("Qwen/Qwen3.5-27B", "h200", extra={"max-mamba-cache-size": 100})).figures
    assert figures["state.bytes"] == 101 * 48 * (10240 * 3 * 2 + 48 * 128 * 128 * 4)


def test_windows_have_a_pool_of_their_own() -> None:
    """gpt-oss from 0.5.6 on: window layers hold four fifths of the tokens; before, all of them."""
    new = estimate(job("openai/gpt-oss-20b")).figures
    old = estimate(job("openai/gpt-oss-20b", version="0.5.4", memory_fraction=0.85)).figures
    assert new["kv.swa_bytes"] / (new["kv.pool"] - new["kv.swa_bytes"]) == pytest.approx(0.8, abs=0.01)
    assert "kv.swa_bytes" not in old


def test_pages_of_an_attention_backend() -> None:
    """FlashMLA has pages of 64 tokens; all tokens lie in whole pages."""
    figures = estimate(job("deepseek-ai/DeepSeek-V3", "h200", 8, mesh={"tp": 8}, attention="flashmla")).figures
    assert figures["kv.block_size"] == 64
    assert figures["kv.tokens"] % 64 == 0


def test_refusals() -> None:
    """Too small a fraction, too small a device, a context that the pool cannot hold: each says what would do."""
    small = estimate(job(memory_fraction=0.1))
    assert not small.fits
    assert "must be above 0.19" in small.warnings[0]
    assert "no mem_fraction_static works" in estimate(job("Qwen/Qwen2.5-72B", "rtx-4090")).warnings[0]
    long = estimate(job(memory_fraction=0.25, context=131_072))
    assert not long.fits
    assert "too small for one sequence" in long.warnings[0]


@pytest.mark.parametrize(
    ("serve", "path"),
    [
        ({"mesh": {"tp": 3}, "gpus": 3}, "serve.mesh.tp"),
        ({"mesh": {"tp": 8}, "gpus": 4}, "serve.mesh"),
        ({"mesh": {"tp": 4, "dp": 3}, "gpus": 12, "extra": {"enable_dp_attention": True}}, "serve.mesh.dp"),
        ({"kv_dtype": "q8_0"}, "serve.kv_dtype"),
        ({"weights": "exl3"}, "serve.weights.format"),
        ({"extra": {"max-mamba-cache-size": -1}}, "serve.extra.max-mamba-cache-size"),
        ({"extra": {"enable-dp-attention": "yes"}}, "serve.extra.enable-dp-attention"),
    ],
)
def test_bad_settings(serve: dict[str, Any], path: str) -> None:
    """Contradictions are refused at their key."""
    with pytest.raises(BadInput) as refused:
        estimate(job(**serve))
    assert refused.value.path == path


def test_unknown_settings_are_told() -> None:
    """An argument that changes nothing is a setting with the reason; one whose effect is not worked out is warned of; one that does not exist is refused."""
    found = estimate(job(extra={"log_level": "info", "enable-mixed-chunk": True}))
    assert any(s.key == "serve.extra.log_level" and "no effect on memory" in s.origin for s in found.settings)
    assert any("serve.extra.enable-mixed-chunk" in w for w in found.warnings)
    with pytest.raises(BadInput, match=r"serve\.extra\.enable-mixed-chunks: unknown key.*did you mean enable_mixed_chunk"):
        estimate(job(extra={"enable-mixed-chunks": True}))


def test_adapters_and_drafts_are_rows() -> None:
    """Slots of adapters come before the pool, a draft has weights and a cache."""
    plain = estimate(job())
    adapted = estimate(job(lora={"rank": 16, "count": 4}, draft={"method": "eagle3", "tokens": 4}))
    rows = {entry.id: entry.bytes for entry in adapted.worst.ledger}
    h, kv, f = 4096, 1024, 14336
    assert rows["lora/slots"] == 2 * 4 * 16 * 32 * (2 * (h + h) + 2 * (h + kv) + 3 * (h + f))
    assert rows["draft/cache"] == adapted.figures["kv.tokens"] * 4096
    assert adapted.figures["kv.tokens"] < plain.figures["kv.tokens"]


def test_pipeline_stages() -> None:
    """Stages share the layers; embedding and head are at the ends."""
    found = estimate(job(gpus=2, mesh={"pp": 2}))
    assert [rank.label for rank in found.ranks] == ["pp0 gpu 0", "pp1 gpu 0"]
    ids = [{entry.id for entry in rank.ledger} for rank in found.ranks]
    assert ("weights/embed/model" in ids[0], "weights/embed/model" in ids[1]) == (True, False)
    assert found.figures["kv.bytes_per_token"] == 65_536


def test_rows_are_the_sum() -> None:
    """The rows of a phase add up to the phase."""
    found = estimate(job("Qwen/Qwen3-30B-A3B", mesh={"tp": 2}, gpus=2))
    for phase in found.worst.phases:
        rows = [e.bytes for e in found.worst.ledger if phase.name in e.phases and e.category != "context"]
        assert sum(rows) == phase.allocated


def test_newer_releases_count_the_draft() -> None:
    """From 0.5.14 on the pool is what is left beside the draft, and its tokens have a cell in the draft's cache too."""
    old, new = (estimate(job(version=version, memory_fraction=0.85, draft={"method": "eagle3", "tokens": 4})).figures for version in ("0.5.13", "0.5.14"))
    layer = 2 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336)
    assert new["kv.tokens"] == pytest.approx((old["kv.pool"] - layer) / (131_072 * 33 / 32), rel=1e-3)


def test_an_npu_has_pages_of_its_own() -> None:
    """Ascend's attention has pages of 128 tokens."""
    assert estimate(job(gpu="Ascend-910B")).figures["kv.block_size"] == 128


def test_the_card_behind_what_is_free() -> None:
    """Without a named GPU the fraction is that of the smallest card that can have so much free, which is said."""
    found = estimate(job(gpu=None, version="0.5.5", given={"free_before_load": 44 * 2**30, "free_after_weights": 29 * 2**30}))
    assert found.job["serve"]["memory_fraction"] == round((46_068 - 512 - 1.5 * 4096 - 128 - 64) / 46_068, 3)
    assert any("46,068 MiB" in text for text in found.assumptions)
