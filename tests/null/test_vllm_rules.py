"""vLLM's rules one by one, against numbers worked out by hand or printed by its logs."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.engines.vllm.extra import Keys
from everybyte.engines.vllm.network import stage_sizes
from everybyte.engines.vllm.pages import Demand, Spec, pages_of_request, plan_of
from everybyte.engines.vllm.release import is_v1, release_of
from everybyte.job import Serve
from everybyte.job.extra import section
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

FULL = Spec("full", 16, 4096)
WINDOW = Spec("window", 16, 4096, window=1024)
DEMAND = Demand(32768, 8192)


def release(version: str | None, extra: dict[str, Any] | None = None) -> tuple[tuple[int, ...], bool]:
    """Version and engine of a job."""
    found = release_of(Serve(engine="vllm", version=version), section(extra, Keys, "serve.extra"), ResolvedSettings())
    return found.number, is_v1(found)


@pytest.mark.parametrize(
    ("version", "extra", "expected"),
    [
        ("0.6.6.post1", {}, ((0, 6, 6), False)),
        ("v0.8.5", {}, ((0, 8, 5), True)),
        ("0.9.0", {"VLLM_USE_V1": 0}, ((0, 9, 0), False)),
        ("0.26.1rc1.dev608", {}, ((0, 26, 1), True)),
        ("vllm 0.19", {}, ((0, 19, 0), True)),
        (None, {"VLLM_USE_V1": 0}, ((0, 8, 5), False)),
        ("0.1.dev20073", {}, ((0, 33, 0), True)),
        ("0.11.0", {"VLLM_USE_V1": 0}, ((0, 11, 0), True)),
    ],
)
def test_versions_choose_the_engine(version: str | None, extra: dict[str, Any], expected: tuple[tuple[int, ...], bool]) -> None:
    """V1 is the default from 0.8 on and the only engine from 0.11 on; builds without a number are taken for the latest."""
    assert release(version, extra) == expected


def test_layers_of_stages() -> None:
    """What is left over goes to the stages before the last."""
    assert stage_sizes(32, 4) == (8, 8, 8, 8)
    assert stage_sizes(61, 4) == (15, 15, 16, 15)
    assert stage_sizes(62, 4) == (15, 16, 16, 15)
    assert stage_sizes(48, 2, "16,32") == (16, 32)
    with pytest.raises(BadInput, match="VLLM_PP_LAYER_PARTITION"):
        stage_sizes(48, 2, "16,16")


def test_equal_layers_are_one_group() -> None:
    """32 layers of full attention: a block is a page of each."""
    plan = plan_of((FULL,) * 32, padding=1.5, joined=False)
    assert (len(plan.groups), plan.block_bytes, plan.request(DEMAND)) == (1, 32 * 65536, 2048)


def test_windows_are_grouped_by_the_smaller_number_of_layers() -> None:
    """10 full and 52 window layers: groups of ten, the last of which lacks eight layers."""
    plan = plan_of((FULL,) * 10 + (WINDOW,) * 52, padding=1.5, joined=False)
    assert [group.layers for group in plan.groups] == [10] * 7
    assert plan.block_bytes == 10 * 65536


def test_nearly_equal_numbers_are_padded() -> None:
    """12 and 13 layers are two groups of 13 where padding is allowed, else three of 12."""
    specs = (FULL,) * 13 + (WINDOW,) * 12
    assert len(plan_of(specs, padding=1.5, joined=False).groups) == 2
    assert len(plan_of(specs, padding=1.0, joined=False).groups) == 3


def test_joined_windows_hold_everything() -> None:
    """Without the hybrid manager a window is given room for the whole context."""
    assert len(plan_of((FULL,) * 10 + (WINDOW,) * 52, padding=1.5, joined=True).groups) == 1


def test_pages_of_unequal_length() -> None:
    """Shorter pages take more tokens, states are padded; what cannot be made equal is refused."""
    short, state = Spec("full", 16, 2048), Spec("state", 32768, 60000, states=1)
    plan = plan_of((short, WINDOW, state), padding=1.0, joined=False)
    assert {group.spec.page for group in plan.groups} == {65536}
    assert sorted(group.spec.block for group in plan.groups) == [16, 32, 32768]
    with pytest.raises(Unsupported, match="equally long"):
        plan_of((Spec("full", 16, 3000), WINDOW), padding=1.0, joined=False)


@pytest.mark.parametrize(
    ("spec", "pages"),
    [
        (FULL, 2048),
        (WINDOW, 577),
        (Spec("chunk", 16, 4096, window=8192), 1024),
        (Spec("state", 544, 1, states=2), 2),
        (Spec("state", 512, 1), 64),
        (Spec("latent", 64, 1152), 512),
    ],
)
def test_pages_of_one_request(spec: Spec, pages: int) -> None:
    """A window of 1,024 tokens and 8,192 under way: (1,023 + 8,192)/16 rounded up, and one page as it need not begin with one."""
    assert pages_of_request(spec, DEMAND) == pages


@pytest.mark.parametrize(("gpu", "version", "block"), [("h100", "0.10.2", 64), ("b200", "0.10.2", 128), ("h100", "0.19.0", 16), ("a100-80gb", "0.10.2", 16)])
def test_blocks_of_latent_attention(gpu: str, version: str, block: int) -> None:
    """FlashMLA takes 64 tokens a block and CUTLASS MLA 128, where they are the default."""
    job = {"model": "deepseek-ai/DeepSeek-V2-Lite", "hardware": {"gpu": gpu, "gpus": 1}, "serve": {"engine": "vllm", "version": version, "context": 8192}}
    assert estimate(job).figures["kv.block_size"] == block


def test_checkpoints_of_model_optimizer_say_what_they_leave_alone() -> None:
    """NVFP4 with attention in 16 bits: half a byte and a sixteenth a number of the rest."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.0.self_attn*"]},
    }
    found = estimate({"model": {"config": config}, "serve": {"engine": "vllm"}}).figures["weights"]
    feed_forward, attention, ends, norms, rope = 4 * 3 * 1024 * 4096, 4 * 4 * 1024 * 1024, 2 * 64 * 1024, 9 * 1024, 64 * 128
    assert found == feed_forward * 9 // 16 + 2 * (attention + ends + norms + rope)


def test_the_log_of_gemma_2() -> None:
    """A start of 0.19 on H100: 20.59 GiB are 7,335 blocks of two groups, 58,672 tokens, 7.16 requests of 8,192."""
    job = {
        "model": "google/gemma-2-27b",
        "hardware": {"gpu": "h100", "gpus": 1},
        "given": {"kv.blocks": 7335, "kv.pool": 22108344156},
        "serve": {"engine": "vllm", "version": "0.19.0", "context": 8192, "batched_tokens": 8192, "memory_fraction": 0.95},
    }
    found = estimate(job).figures
    assert (found["kv.tokens"], round(found["kv.concurrency"], 2)) == (58672, 7.16)


def test_the_log_of_qwen3_next() -> None:
    """0.10.2 on two H200: attention blocks of 544 tokens, 47,878,721,024 bytes are 973,760 tokens."""
    job = {
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "hardware": {"gpu": "h200", "gpus": 2},
        "given": {"kv.pool": 47878721024},
        "serve": {"engine": "vllm", "version": "0.10.2", "context": 262144, "batched_tokens": 8192, "mesh": {"tp": 2}},
    }
    found = estimate(job).figures
    assert (found["kv.block_size"], found["kv.tokens"]) == (544, 973760)


def test_v0_has_one_cache_a_layer() -> None:
    """A log of V0 with Llama 3.2 Vision: blocks of 16 tokens of all 40 layers, those with cross-attention among them (6001 blocks in 14.65 GiB)."""
    model = {"config": {"architectures": ["MllamaForConditionalGeneration"], "text_config": {}, "vision_config": {"image_size": 560}}}
    job = {"model": model, "hardware": {"gpu": "h100"}, "serve": {"engine": "vllm", "version": "0.6.6", "weights": "bf16", "context": 65536}}
    assert estimate({**job, "given": {"kv.pool": 15_730_317_722}}).figures["kv.blocks"] == 15_730_317_722 // (16 * 40 * 2 * 8 * 128 * 2)
