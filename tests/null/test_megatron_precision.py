"""Number formats under Megatron-LM and Megatron-Bridge: when an optimizer copies 16-bit gradients, and what fp8 weights take."""

from __future__ import annotations

from typing import Any

from everybyte import headline

SHAPE: dict[str, Any] = {
    "family": "llama",
    "layers": 8,
    "hidden": 1024,
    "ffn": 4096,
    "heads": 16,
    "kv_heads": 16,
    "head_dim": 64,
    "vocab": 32000,
    "tied": False,
}
LINEAR = 8 * (4 * 1024**2 + 3 * 1024 * 4096)
"""Numbers of the weights that are multiplied in fp8."""
WHOLE = LINEAR + 2 * 32000 * 1024
AWARE = {"use-precision-aware-optimizer": True}
NORMS = 0.001
"""Norms and padding, as a share of all parameters."""


def resting(framework: str, precision: str = "bf16-master", grads: str = "bf16", **extra: Any) -> int:
    """Bytes between steps on one of two data-parallel ranks."""
    train = {
        "framework": framework,
        "micro_batch": 1,
        "seq_len": 1024,
        "grad_accum": 4,
        "precision": precision,
        "dtypes": {"grads": grads},
        "sharding": "distributed-optimizer",
        "extra": extra,
    }
    return headline({"model": {"shape": SHAPE}, "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 2}, "train": train})["static.allocated"]


def test_the_precision_aware_optimizer_reads_16_bit_gradients() -> None:
    """Without it, an fp32 copy of this rank's half of the gradients stays until the next step begins."""
    copy = resting("megatron") - resting("megatron", **AWARE)
    assert abs(copy - 4 * WHOLE / 2) <= NORMS * 4 * WHOLE


def test_a_recipe_for_fp8_brings_the_copy_back() -> None:
    """Current scaling named among the settings is enough, whatever the precision; delayed scaling and bf16 main weights do without."""
    aware = resting("megatron", **AWARE)
    assert resting("megatron", **AWARE, **{"fp8-recipe": "tensorwise"}) == resting("megatron")
    assert resting("megatron", **AWARE, **{"fp8-recipe": "delayed"}) == aware
    assert resting("megatron", **AWARE, **{"fp8-recipe": "tensorwise", "main-params-dtype": "bf16"}) == aware


def test_megatron_bridge_names_a_recipe_in_bf16_too() -> None:
    """Its MixedPrecisionConfig has tensorwise as default and writes it into the optimizer's settings."""
    assert resting("nemo", **AWARE) == resting("nemo")
    assert resting("nemo", **AWARE, **{"fp8-recipe": None}) < resting("nemo")


def test_fp8_weights_without_transposes_take_one_byte() -> None:
    """Gathered in fp8 a weight and its transpose take as much as a 16-bit weight; without a cached transpose half of that; ungathered twice as much."""
    gathered = resting("megatron", "fp8", "fp32", **{"fp8-param-gather": True})
    assert gathered - resting("megatron", "fp8", "fp32", **{"fp8-param-gather": True, "disable-parameter-transpose-cache": True}) == LINEAR
    assert resting("megatron", "fp8", "fp32") - gathered == 2 * LINEAR


def test_ms_swift_has_defaults_of_its_own() -> None:
    """Its data loader makes no attention mask and its mixtures exchange tokens all-to-all, where Megatron-LM's own defaults make one and gather all."""
    mixture = SHAPE | {"experts": 8, "top_k": 2, "moe_ffn": 1024}

    def peak(shape: dict[str, Any], **extra: Any) -> int:
        train = {"framework": "megatron", "micro_batch": 1, "seq_len": 4096, "grad_accum": 4, "dropout": 0.0, "extra": extra}
        return headline({"model": {"shape": shape}, "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 2}, "train": train})["peak.allocated"]

    same = {"no-rope-fusion": True, "no-create-attention-mask-in-dataloader": True}
    assert peak(SHAPE, **{"no-rope-fusion": True}) - peak(SHAPE, **same) == 4096**2
    assert peak(SHAPE, framework="ms-swift") == peak(SHAPE, **same)
    assert peak(mixture, framework="ms-swift") == peak(mixture, **same, **{"moe-token-dispatcher-type": "alltoall"})
