"""How the train section of a job becomes a recipe: masks, prepared bases, adapters, freezing, offloaded activations, steps in backward."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.ledger.answer import Answer

MODEL = "meta-llama/Llama-3.2-1B"
V, H, LAYERS = 128256, 2048, 16
LORA = {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]}


def answer(model: str = MODEL, **train: Any) -> Answer:
    """The answer to a training job on one A100."""
    filled = {"micro_batch": 1, "seq_len": 2048, "precision": "bf16", "framework": "pytorch", **train}
    return estimate({"model": model, "hardware": {"gpu": "a100-80gb"}, "train": filled})


def row(found: Answer, name: str) -> int:
    """Bytes of the rows whose id starts with a name, in any phase."""
    return sum({e.id: e.bytes for e in found.ranks[0].ledger if e.id.startswith(name)}.values())


def peak(found: Answer) -> int:
    """peak.allocated."""
    return found.figures["peak.allocated"]


def test_transformers_that_make_a_mask_need_more_with_sdpa() -> None:
    """From 4.53.1 to 4.57 a plain loop without an attention mask gets one: keys and values are repeated, and each layer keeps a mask."""
    plain, masked, later = (peak(answer(version=f"transformers {v}")) for v in ("4.53.0", "4.57.6", "5.1.0"))
    repeated = 2 * 2 * (2048 - 512) * 2048 * LAYERS
    masks = 2 * 2048 * 2048 * LAYERS
    assert masked - plain == repeated + masks
    assert later == plain


def test_padded_batches_get_a_mask_too() -> None:
    """train.extra.padded says that the attention mask has zeros."""
    assert peak(answer(extra={"padded": True})) > peak(answer())
    with pytest.raises(BadInput, match=r"train\.extra\.padded"):
        answer(extra={"padded": 1})


def test_emptying_the_cache_lowers_what_is_reserved() -> None:
    """torch.cuda.empty_cache() between steps: each step starts without the pieces of the last."""
    kept, emptied = (answer(micro_batch=4, seq_len=768, extra={"empty_cache": e}).figures for e in (False, True))
    assert emptied["peak.allocated"] == kept["peak.allocated"]
    assert emptied["peak.reserved"] < kept["peak.reserved"]


def test_a_cache_that_is_left_on_copies_keys_and_values() -> None:
    """Two copies of n·K in 16 bit a layer where they were views of one projection, whatever the loop keeps. No recomputed block has one."""
    n, layers, width = 1024, 12, 768
    for keeps in (True, False):
        off, on = (answer("openai-community/gpt2", seq_len=n, extra={"use_cache": cache, "keeps_outputs": keeps}) for cache in (False, True))
        assert peak(on) - peak(off) == 2 * 2 * n * width * layers
    off, on = (peak(answer(recompute={"policy": "full", "reentrant": False}, extra={"use_cache": cache})) for cache in (False, True))
    assert on == off


def test_caches_whose_copies_are_not_known_are_refused() -> None:
    """Earlier releases held keys and values without a copy, and recurrent layers have other states."""
    for model, version in ((MODEL, "transformers 4.55.4"), ("state-spaces/mamba-2.8b-hf", "transformers 5.24.0")):
        with pytest.raises(Unsupported, match=r"train\.extra\.use_cache"):
            answer(model, version=version, extra={"use_cache": True})
    assert peak(answer(version="transformers 4.57.6", extra={"use_cache": True})) < peak(answer(version="transformers 4.57.6"))


def test_a_loop_that_drops_the_output_needs_less() -> None:
    """`loss = model(...).loss` frees the 16-bit logits before backward."""
    assert peak(answer(adapter=LORA)) - peak(answer(adapter=LORA, extra={"keeps_outputs": False})) == 2 * 2048 * V


def test_a_plain_loop_with_an_unknown_loss_is_refused() -> None:
    """A chunked loss may be written in many ways."""
    with pytest.raises(Unsupported, match=r"train\.loss\.kind"):
        answer(loss={"kind": "chunked"})


NF4 = {"format": "nf4", "double": True}


def test_peft_prepares_everything_that_is_not_packed() -> None:
    """In a plain loop embedding, head and norms of a packed base are fp32, unless the job says that it is not prepared."""
    prepared, plain = (answer("meta-llama/Llama-2-7b-hf", adapter=LORA, quantization={**NF4, **more}) for more in ({}, {"kbit_prep": False}))
    assert row(prepared, "weights/embed") == 2 * row(plain, "weights/embed")
    assert row(prepared, "weights/head") == 2 * row(plain, "weights/head")


@pytest.mark.parametrize(
    ("framework", "version", "doubled"),
    [("trl", None, False), ("transformers", "transformers 4.48.1, trl 0.13.0", False), ("axolotl", None, False), ("transformers", None, True)],
)
def test_frameworks_cast_some_of_it_back(framework: str, version: str | None, doubled: bool) -> None:
    """trl and axolotl turn embedding and head back to bf16; the Trainer alone does not."""
    more = {"version": version} if version else {}
    found = answer(
        "meta-llama/Llama-2-7b-hf",
        framework=framework,
        precision="bf16-mixed",
        dtypes={"weights": "bf16"},
        attention="flash2",
        adapter=LORA,
        quantization={**NF4, "kbit_prep": True},
        recompute="full",
        **more,
    )
    assert row(found, "weights/embed") == (4 if doubled else 2) * 32000 * 4096


def test_gptq_bases_are_not_cast() -> None:
    """peft's preparation leaves GPTQ models in 16 bit."""
    found = answer("meta-llama/Llama-2-7b-hf", adapter=LORA, quantization={"format": "gptq", "kbit_prep": True})
    assert row(found, "weights/embed") == 2 * 32000 * 4096


def test_an_adapter_kind_reads_its_own_settings() -> None:
    """Settings by peft's names change what is trained; wrong ones are refused with their key."""
    small, large = (answer(adapter={"kind": "prompt"}, extra={"num_virtual_tokens": n}).model.trainable_params for n in (10, 20))
    assert (small, large) == (10 * H, 20 * H)
    with pytest.raises(BadInput, match=r"train\.extra\.num_virtual_tokens"):
        answer(adapter={"kind": "prompt"}, extra={"num_virtual_tokens": "many"})


def test_prefix_tuning_trains_keys_and_values_of_all_layers() -> None:
    """v·L·2·K numbers."""
    assert answer(adapter={"kind": "prefix"}, extra={"num_virtual_tokens": 20}).model.trainable_params == 20 * LAYERS * 2 * 512


def test_the_rank_follows_from_the_printed_number() -> None:
    """A rank that the job leaves out is worked out of trainable_params."""
    adapter = {"kind": "lora", "targets": ["q_proj", "v_proj"], "trainable_params": LAYERS * 4 * (2 * H + H + 512)}
    assert {s.key: s.value for s in answer(adapter=adapter).settings}["train.adapter.rank"] == 4


def test_a_printed_number_that_does_not_fit_is_pointed_out() -> None:
    """The answer counts what the job describes, and says that the run printed something else."""
    assert any("trainable_params" in text for text in answer(adapter={**LORA, "trainable_params": 12345}).warnings)


def test_an_adapter_on_nothing_is_refused() -> None:
    """Targets that the model does not have are named; without targets the family's own are taken."""
    with pytest.raises(BadInput, match=r"query_key_value match no linear layer"):
        answer(adapter={**LORA, "targets": ["query_key_value"]})
    assert answer("EleutherAI/pythia-1b", adapter={"kind": "lora", "rank": 8}).model.trainable_params == 16 * 8 * (2048 + 3 * 2048)


def test_targets_that_reach_nothing_are_named() -> None:
    """A listed target without a layer gets no adapter, which a warning says; the others are counted."""
    found = answer(adapter={"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj", "wi_0"]})
    assert found.figures == answer(adapter=LORA).figures
    assert [w for w in found.warnings if "wi_0 match no linear layer" in w]


def test_a_target_may_be_the_end_of_a_path() -> None:
    """As in peft, `self_attn.q_proj` takes every layer whose path ends so; `attn.q_proj` ends inside a component and takes none."""
    assert answer(adapter={**LORA, "targets": ["self_attn.q_proj", "self_attn.v_proj"]}).figures == answer(adapter=LORA).figures
    with pytest.raises(BadInput, match="match no linear layer"):
        answer(adapter={**LORA, "targets": ["attn.q_proj"]})


@pytest.mark.parametrize("key", ["quantize_moe_experts", "linearized_experts"])
def test_llama_4s_experts_can_be_packed(key: str) -> None:
    """Stacked experts stay 16-bit in a 4-bit base; packed on load, or made linear layers first, they take half a byte a number and their scales."""
    job: dict[str, Any] = {
        "framework": "axolotl",
        "precision": "bf16-mixed",
        "dtypes": {"weights": "bf16", "compute": "bf16"},
        "quantization": {"format": "nf4", "kbit_prep": False},
        "adapter": LORA,
    }
    scout = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    plain, packed = (answer(scout, **job, extra=extra) for extra in ({}, {key: True}))
    numbers = 48 * 16 * 3 * 5120 * 8192
    scales = numbers // 64 * 4
    saved = plain.figures["static.allocated"] - packed.figures["static.allocated"]
    assert saved == pytest.approx(numbers * 2 - numbers // 2 - scales, rel=0.01)


def test_an_unknown_kind_is_refused() -> None:
    """With what is answered."""
    with pytest.raises(Unsupported, match=r"xlora.*supported: "):
        answer(adapter={"kind": "xlora"})


def test_freezing_takes_parameters_out_of_training() -> None:
    """`freeze` names modules by any part of their names."""
    whole, without = answer(recompute="full").model.trainable_params, answer(recompute="full", freeze=["embed_tokens", "mlp"]).model.trainable_params
    assert whole - without == V * H + LAYERS * 3 * H * 8192


def test_nothing_is_kept_below_the_first_trained_weight() -> None:
    """With a frozen embedding the first block's input needs no gradient: its norm and its frozen projections keep nothing."""
    found = answer(adapter=LORA)
    first, others = row(found, "activations/layers.0/"), row(found, "activations/layers.1-15/")
    assert first < others / 15


TUNE: dict[str, Any] = {"framework": "torchtune", "compile": True, "attention": "flex", "recompute": "full", "micro_batch": 2}


def test_offloaded_activations_leave_the_device() -> None:
    """Of the kept inputs of all blocks at most three are on their way at once."""
    stays, leaves = answer(**TUNE, adapter=LORA), answer(**TUNE, adapter=LORA, offload={"activations": "cpu"})
    inputs = 2 * 2 * 2048 * H
    assert (LAYERS - 3) * inputs <= peak(stays) - peak(leaves) <= LAYERS * inputs
    with pytest.raises(Unsupported, match=r"train\.offload\.activations"):
        answer(**{**TUNE, "recompute": "none"}, offload={"activations": "cpu"})


def test_a_step_in_backward_frees_each_gradient() -> None:
    """Only the largest gradient, the tied table's, stays."""
    usual, fused = (answer(**TUNE, optimizer={"name": "adamw", "in_backward": b}) for b in (False, True))
    assert row(usual, "gradients/layers") > 0
    assert row(fused, "gradients/layers") == 0
    assert peak(fused) < peak(usual)


def test_paged_states_are_outside_the_allocator() -> None:
    """A warning says so, and what is left of the states is their scales."""
    found = answer(optimizer={"name": "paged_adamw_8bit"})
    assert row(found, "optimizer/") < 0.05 * 2 * found.model.params
    assert any("managed memory" in text for text in found.warnings)


def test_badam_trains_one_block() -> None:
    """States and master copies are those of the first block."""
    found = answer(optimizer={"name": "badam"}, recompute="full")
    assert found.model.trainable_params == 2 * H * H + 2 * H * 512 + 3 * H * 8192 + 2 * H


def test_torchtunes_names_of_layers_are_understood() -> None:
    """w1, w2, w3 and output_proj are gate, down, up and o_proj."""
    theirs, ours = (
        answer(**TUNE, adapter={"kind": "lora", "rank": 4, "targets": names}).model.trainable_params
        for names in (["output_proj", "w1", "w2", "w3"], ["o_proj", "gate_proj", "down_proj", "up_proj"])
    )
    assert theirs == ours > 0


@pytest.mark.parametrize(
    ("framework", "version", "base"),
    [
        ("axolotl", None, 2),
        ("llama-factory", None, 2),
        ("ms-swift", None, 2),
        ("transformers", "transformers 4.48", 4),
        ("transformers", "transformers 5.2", 2),
        ("trl", None, 4),
    ],
)
def test_the_type_in_which_a_frozen_base_is_loaded(framework: str, version: str | None, base: int) -> None:
    """Bytes a number of the weights under adapters and mixed precision, by framework and release; a type that the job states stays."""
    train: dict[str, Any] = {
        "framework": framework,
        "micro_batch": 1,
        "seq_len": 512,
        "precision": "bf16-mixed",
        "adapter": {"kind": "lora", "rank": 8, "targets": ["q_proj"]},
    }
    if version:
        train["version"] = version
    job = {"model": "meta-llama/Llama-3.2-1B", "hardware": {"gpu": "a100-80gb", "gpus": 1}, "train": train}
    assert estimate(job).figures["static.allocated"] == pytest.approx(base * 1_235_814_400, rel=0.02)
    stated = {**job, "train": {**train, "dtypes": {"weights": "fp32"}}}
    assert estimate(stated).figures["static.allocated"] == pytest.approx(4 * 1_235_814_400, rel=0.02)


def test_a_cache_left_on_under_an_outer_checkpoint_wrapper() -> None:
    """FSDP's wrapper around a block does not switch the cache off: keys and values of all layers stay, 4·n·K bytes a layer."""
    n, layers, width = 1024, 12, 768
    wrapped = {"sharding": "fsdp1", "recompute": {"policy": "full", "reentrant": False}, "version": "transformers 4.31", "precision": "bf16"}

    def of(*, cache: bool) -> int:
        job = {"model": "openai-community/gpt2", "hardware": {"gpu": "a100-40gb", "gpus": 4}}
        train = {"framework": "pytorch", "micro_batch": 1, "seq_len": n, **wrapped, "extra": {"use_cache": cache}}
        return peak(estimate({**job, "train": train}))

    assert of(cache=True) - of(cache=False) == pytest.approx(4 * n * width * layers, rel=0.05)


def test_fused_scans_are_what_people_train_with() -> None:
    """Layers with a recurrent state run mamba-ssm's kernels, and the answer says so; eager-scan counts transformers' plain operations."""
    fused, named, eager = (answer("state-spaces/mamba-130m-hf", seq_len=1024, kernels=k) for k in ([], ["mamba-ssm"], ["eager-scan"]))
    assert peak(fused) == peak(named) < peak(eager) / 2
    assert any("mamba-ssm" in text for text in fused.assumptions)


def test_a_loss_on_16_bit_logits() -> None:
    """Outside of autocast logits, log-probabilities and their gradient are 2 bytes each: 6·n·V, 8 where the loop keeps the logits; fp32 needs more."""
    n, vocab = 16 * 1024, 50_257

    def top(**more: Any) -> int:
        return peak(answer("openai-community/gpt2", micro_batch=16, seq_len=1024, precision="bf16-mixed", recompute="full", **more))

    usual = top()
    narrow = top(loss={"kind": "standard", "logits_dtype": "bf16"})
    dropped = top(loss={"kind": "standard", "logits_dtype": "bf16"}, extra={"keeps_outputs": False})
    in_place = top(kernels=["foak-ce"])
    assert usual - narrow >= 6 * n * vocab
    assert narrow - dropped == 2 * n * vocab
    assert in_place < dropped


def test_llm_foundry_has_a_fused_loss_and_narrow_norms() -> None:
    """Its MPT keeps no fp32 copy of logits or of a norm's input: 8·n·h a layer less, and 4·n·V for the loss."""
    shape = {
        "family": "gpt",
        "layers": 4,
        "hidden": 512,
        "ffn": 2048,
        "heads": 8,
        "vocab": 50_368,
        "tied": True,
        "activation": "gelu",
        "norm": "layernorm",
        "bias": False,
    }
    shape |= {"position": "learned", "max_positions": 2048}
    job = {"model": {"shape": shape}, "hardware": {"gpu": "a100-40gb", "gpus": 1}}
    train = {"framework": "pytorch", "micro_batch": 4, "seq_len": 2048, "precision": "bf16-mixed", "dtypes": {"weights": "bf16"}, "attention": "flash2"}
    plain, own = (estimate({**job, "train": {**train, **more}}) for more in ({}, {"version": "llm-foundry 2023, torch 2.0"}))
    n, h = 8192, 512

    def kept(found: Answer) -> int:
        return sum(row.bytes for row in found.worst.ledger if row.id.startswith("activations/layers.") and "forward" in row.phases)

    assert kept(plain) - kept(own) >= 3 * 8 * n * h
    assert peak(plain) - peak(own) >= 10 * n * 50_368
