"""Hybrid models, BERT and Megatron-FSDP under Megatron-LM: what ranks hold together, how strategies compare, what a job may leave out."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate, headline
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.engines.megatron.network import stage_plan
from everybyte.engines.megatron.portions import is_expert
from everybyte.engines.megatron.sizes import Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import elements
from everybyte.models.count import parameter_count, tensors
from everybyte.models.source import network_of
from everybyte.rules.parallel.schedules import Plan
from everybyte.rules.parallel.stages import dealt

PATTERN = "MEM*-EM"
HYBRID: dict[str, Any] = {
    "family": "hybrid",
    "layers": 7,
    "hidden": 256,
    "ffn": 512,
    "heads": 4,
    "kv_heads": 4,
    "head_dim": 64,
    "vocab": 32768,
    "activation": "squared-relu",
    "position": "none",
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 128,
    "shared_expert_ffn": 256,
    "tied": False,
    "norm": "rmsnorm",
    "ssm": {"heads": 8, "head_dim": 32, "state": 64, "groups": 4},
}
WHOLE = ("norm.weight", "layernorm.weight", "router.weight")
"""Parameters that every rank of a tensor-parallel group has: norms but that of a Mamba mixer, routers."""


def job(shape: dict[str, Any], **train: Any) -> dict[str, Any]:
    """A job on 8 GPUs."""
    return {
        "model": {"shape": shape},
        "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 8},
        "train": {"framework": "megatron", "micro_batch": 2, "seq_len": 512, "grad_accum": 8, **train},
    }


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (4, 1), (1, 4), (2, 2)])
def test_ranks_hold_a_hybrid_model_together(tp: int, ep: int) -> None:
    """What the ranks of a group hold, tensors that all have counted once, is the whole model."""
    network = network_of({"shape": {**HYBRID, "pattern": PATTERN}})
    stage = dealt(network.layers, Plan("1f1b", 1, 1, 1, 1))[0]
    local = stage_plan(network, stage, Split(tp, False, 1, ep, tp), Style(), network.vocab, None, (0,)).network
    held = 0
    for p in tensors(local, Setup()):
        everywhere = any(p.name.endswith(name) for name in WHOLE) and not p.name.endswith("self_attention.norm.weight")
        held += elements(p.dims)[0] * (tp * ep if is_expert(p) else 1 if everywhere else tp)
    assert held == parameter_count(network)


def test_the_pattern_may_stand_among_the_frameworks_settings() -> None:
    """Megatron-LM's own argument gives a hybrid shape its pattern; without any the refusal names the key and shows one."""
    inside = headline(job({**HYBRID, "pattern": PATTERN}))
    assert headline(job(HYBRID, extra={"hybrid-layer-pattern": PATTERN})) == inside
    with pytest.raises(BadInput, match=r"MEMEM\*E"):
        headline(job(HYBRID))


def test_one_block_for_all_depths_has_the_weights_of_one_and_the_tensors_of_all() -> None:
    """mtp_use_repeated_layer saves weights and states, no activations."""
    shape = {**HYBRID, "mtp": 2, "pattern": f"{PATTERN}/*E/*E"}
    apart, shared = (headline(job(shape, extra={"mtp-use-repeated-layer": repeated})) for repeated in (False, True))
    assert shared["static.allocated"] < apart["static.allocated"]
    assert shared["peak.allocated"] - shared["static.allocated"] == apart["peak.allocated"] - apart["static.allocated"]


def test_sentence_order_costs_a_pooler_two_rows_and_a_head() -> None:
    """Without the binary head BERT lacks token types, pooler and head: 18 bytes for each of their numbers, and rounding."""
    shape = {"family": "bert", "layers": 4, "hidden": 256, "ffn": 1024, "heads": 8, "vocab": 30592, "padded_vocab": 30592, "max_positions": 512}
    both, words = (headline(job(shape, extra={"bert-no-binary-head": no}))["static.allocated"] for no in (False, True))
    numbers = 2 * 256 + 256 * 256 + 256 + 2 * 256 + 2
    assert 18 * numbers <= both - words <= 18 * numbers + 20 * 512


def test_each_strategy_of_megatron_fsdp_divides_more() -> None:
    """From nothing to optimizer states, gradients and weights: static bytes fall with each."""
    shape = {"family": "gpt", "layers": 16, "hidden": 1024, "ffn": 4096, "heads": 16, "vocab": 32000, "max_positions": 1024}
    found = [
        headline(job(shape, sharding="megatron-fsdp", extra={"data-parallel-sharding-strategy": word}))["static.allocated"]
        for word in ("no_shard", "optim", "optim_grads", "optim_grads_params")
    ]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4


def test_main_gradients_of_another_type_are_copied_for_the_step() -> None:
    """bf16 gradients cost 2 bytes and the 4 of the copy that the optimizer steps: more than gradients in fp32 all the time."""
    shape = {"family": "gpt", "layers": 16, "hidden": 1024, "ffn": 4096, "heads": 16, "vocab": 32000, "max_positions": 1024}
    narrow, wide = (
        estimate(job(shape, sharding="megatron-fsdp", extra={"megatron-fsdp-main-grads-dtype": word})).figures["static.allocated"] for word in ("bf16", "fp32")
    )
    assert narrow > wide


def test_an_optimizer_in_host_memory_leaves_weights_and_gradients() -> None:
    """Main weights and moments leave the GPU, 12 bytes a number, and 16 with the gradients' copies are needed on the host; parts of it are refused."""
    shape = {"family": "gpt", "layers": 16, "hidden": 1024, "ffn": 4096, "heads": 16, "vocab": 32000, "padded_vocab": 32000, "max_positions": 1024}
    found = {where: estimate(job(shape, sharding="ddp", offload={"optimizer": where})) for where in ("none", "cpu")}
    params = found["none"].model.params
    saved = found["none"].figures["static.allocated"] - found["cpu"].figures["static.allocated"]
    assert saved == pytest.approx(12 * params, rel=0.001)
    assert found["cpu"].figures["host.bytes"] == pytest.approx(8 * 16 * params, rel=0.001)
    for train in ({"offload": {"optimizer": "cpu", "fraction": 0.5}}, {"offload": {"optimizer": "cpu"}, "sharding": "megatron-fsdp"}):
        with pytest.raises(Unsupported, match=r"train\.offload\.optimizer"):
            headline(job(shape, **train))


def test_what_is_beside_fp8_is_said() -> None:
    """A job in fp8 that names no 16-bit type and asks for unfused attention runs in fp32, and the answer says so."""
    shape = {"family": "gpt", "layers": 4, "hidden": 256, "ffn": 1024, "heads": 8, "vocab": 32000, "max_positions": 512}
    found = estimate(job(shape, precision="fp8", attention="unfused"))
    assert any("fp32" in text and "--bf16" in text for text in found.assumptions)
    assert not any("--bf16" in text for text in estimate(job(shape, precision="fp8", attention="unfused", dtypes={"weights": "bf16"})).assumptions)


def test_strategies_that_nobody_models_are_refused() -> None:
    """Unknown strategies and states over a further group name their key."""
    shape = {"family": "gpt", "layers": 4, "hidden": 256, "ffn": 1024, "heads": 8, "vocab": 32000, "max_positions": 512}
    for key, word in (("data-parallel-sharding-strategy", "most"), ("outer-dp-sharding-strategy", "optim"), ("fsdp-double-buffer", True)):
        with pytest.raises(Unsupported, match=f"train.extra.{key}"):
            headline(job(shape, sharding="megatron-fsdp", extra={key: word}))
