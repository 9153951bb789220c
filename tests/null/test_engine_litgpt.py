"""LitGPT and nanoGPT: what a job's words mean, what is refused and how, and that more work never needs less."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.engines.litgpt.release import release_of
from everybyte.ledger.answer import Answer

LLAMA = {
    "config": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 4096,
        "max_position_embeddings": 2048,
    }
}
GPT2 = {"shape": {"family": "gpt", "layers": 3, "hidden": 96, "ffn": 384, "heads": 6, "vocab": 1000, "max_positions": 256}}
LORA = {"kind": "lora", "rank": 4, "targets": ["q_proj", "v_proj"]}
KINDS: list[dict[str, Any]] = [
    {},
    {"adapter": LORA},
    {"adapter": {"kind": "adapter"}},
    {"adapter": {"kind": "adapter-v2"}},
    {"adapter": LORA, "quantization": {"format": "nf4"}},
    {"adapter": {"kind": "lora", "targets": "all-linear"}, "quantization": {"format": "nf4", "double": True}, "version": "2023-10-20"},
    {"loss": {"kind": "standard"}, "extra": {"chunk_size": 0}},
]


def answer(framework: str = "litgpt", model: Any = LLAMA, **train: Any) -> Answer:
    """The answer to a job of this framework, in bf16 where nothing else is said."""
    common = {"framework": framework, "micro_batch": 2, "seq_len": 200, "grad_accum": 2}
    precision = {"precision": "bf16"} if framework == "litgpt" else {}
    return estimate({"model": model, "hardware": {"gpu": "a100-40gb"}, "train": {**common, **precision, **train}})


def peak(found: Answer) -> int:
    """peak.allocated."""
    return found.figures["peak.allocated"]


@pytest.mark.parametrize(
    ("version", "day"),
    [
        ("2023-10-20 (commit 8641822, torch 2.1)", (2023, 10, 20)),
        ("2024 (repo 26857050)", (2024, 6, 15)),
        ("2024-05 (torch 2.4)", (2024, 5, 15)),
        ("0.4.5", (2024, 6, 10)),
        ("0.5.1", (2024, 10, 10)),
        ("LitGPT 0.5.13", (2026, 6, 29)),
        ("0.1", (2023, 6, 15)),
        (None, (2026, 6, 29)),
    ],
)
def test_a_version_is_a_day(version: str | None, day: tuple[int, int, int]) -> None:
    """Dates, years and release numbers name a day; without a version it is the latest release."""
    assert release_of(version).number == day


@pytest.mark.parametrize("settings", KINDS)
def test_rows_add_up(settings: dict[str, Any]) -> None:
    """For each script the rows of every phase add up to its total, and every row has a formula and a source."""
    found = answer(**settings)
    for phase in found.ranks[0].phases:
        rows = [e for e in found.ranks[0].ledger if phase.name in e.phases and e.category != "context"]
        assert sum(e.bytes for e in rows) == phase.allocated
        assert all(e.formula and e.source for e in rows)


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize("more", [{"micro_batch": 3}, {"seq_len": 201}, {"seq_len": 257}])
def test_a_larger_batch_never_needs_less(settings: dict[str, Any], more: dict[str, Any]) -> None:
    """One more sequence, one more token, one more chunk."""
    assert peak(answer(**settings)) <= peak(answer(**{**settings, **more}))


def test_the_loop_holds_its_logits() -> None:
    """Between two steps the variable `logits` still holds fp32 logits of the last micro-batch, and in the next forward they are alive too."""
    found = answer(adapter=LORA)
    held = [e for e in found.ranks[0].ledger if e.id.startswith("lingering/head")]
    assert [e.bytes for e in held if "between_steps" in e.phases] == [4 * 2 * 200 * 4096]
    assert any("forward" in e.phases for e in held)


def test_old_bitsandbytes_holds_inputs() -> None:
    """Version 0.42 held the input of every 4-bit product: 6·h and 2·f bytes a token and layer stay between two steps; later ones do not."""
    old = answer(adapter=LORA, quantization={"format": "nf4"}, version="0.4.8")
    new = answer(adapter=LORA, quantization={"format": "nf4"}, version="0.5.13")
    inputs = sum(e.bytes for e in old.ranks[0].ledger if e.id.startswith("lingering/h.") and "between_steps" in e.phases)
    # the first layer's joined projection is given the frozen embedding, which needs no gradient
    assert inputs == 400 * (4 * (6 * 256 + 2 * 704) - 2 * 256)
    assert not any(e.id.startswith("lingering/h.") for e in new.ranks[0].ledger)


def test_the_longest_sample_came_first() -> None:
    """Before March 2024 no micro-batch was as long as the first: nothing of an earlier one is in its forward."""
    found = answer(adapter=LORA, version="2023-10-20")
    assert not any(e.id.startswith("lingering") and "forward" in e.phases for e in found.ranks[0].ledger)
    assert any("longest sample" in text for text in found.assumptions)


def test_adapters_are_counted() -> None:
    """LoRA on q and v of 4 layers: A is joined (2·r·h), B is (A + K)·r; all switches add projection, MLP and head."""
    assert answer(adapter=LORA).model.trainable_params == 4 * (2 * 4 * 256 + (256 + 64) * 4)
    everything = answer(adapter={"kind": "lora", "rank": 4, "targets": "all-linear"}).model.trainable_params
    block = 3 * 4 * 256 + (256 + 128) * 4 + 4 * (256 + 256) + 3 * 4 * (256 + 704)
    assert everything == 4 * block + 4 * (256 + 4096)


def test_the_head_is_not_tied() -> None:
    """LitGPT trains embedding and head apart, tied or not in the checkpoint."""
    tied = {"config": {**LLAMA["config"], "tie_word_embeddings": True}}
    assert answer().model.trainable_params == answer(model=tied).model.trainable_params
    assert answer(model=tied).model.trainable_params == answer(model=tied).model.params + 4096 * 256


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"sharding": "fsdp1"}, "train.sharding"),
        ({"mesh": {"dp_shard": 2}}, "train.mesh.dp_shard"),
        ({"quantization": {"format": "nf4"}}, "train.quantization"),
        ({"quantization": {"format": "gptq"}, "adapter": LORA}, "train.quantization.format"),
        ({"quantization": {"format": "nf4"}, "adapter": LORA, "precision": "bf16-mixed"}, "train.precision"),
        ({"precision": "bf16-master"}, "train.precision"),
        ({"adapter": {"kind": "ia3"}}, "train.adapter.kind"),
        ({"adapter": {"kind": "lora", "targets": ["c_attn"]}}, "train.adapter.targets"),
        ({"adapter": LORA, "extra": {"lora_dropout": 2}}, "train.extra.lora_dropout"),
        ({"extra": {"chunk_sizes": 128}}, "train.extra.chunk_sizes"),
        ({"extra": {"chunk_size": -1}}, "train.extra.chunk_size"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], path: str) -> None:
    """One message with the place of the setting."""
    with pytest.raises(BadInput) as error:
        answer(**settings)
    assert error.value.path == path


def test_other_blocks_are_refused() -> None:
    """A mixture of experts and learned positions are not in LitGPT's dense model file."""
    experts = {**LLAMA["config"], "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    for model in ({"config": experts}, GPT2):
        with pytest.raises(Unsupported, match="LitGPT"):
            answer(model=model)


def test_nanogpt_has_its_own_defaults() -> None:
    """train.py: 12 sequences of 1,024 tokens, bf16 autocast over fp32, fused AdamW, 40 micro-batches a step; compiled by default, which is said."""
    found = estimate({"model": "openai-community/gpt2", "train": {"framework": "nanogpt"}})
    settings = {setting.key: setting.value for setting in found.settings}
    assert (settings["train.micro_batch"], settings["train.seq_len"], settings["train.grad_accum"]) == (12, 1024, 40)
    assert (settings["train.precision"], settings["train.optimizer.impl"], settings["train.dropout"]) == ("bf16-mixed", "fused", 0.0)
    assert any("compile" in text for text in found.assumptions)


def test_nanogpt_dropout_costs_masks() -> None:
    """Dropout keeps one byte a number for its masks; a rate of 0 keeps none."""
    without, with_it = answer("nanogpt", GPT2), answer("nanogpt", GPT2, dropout=0.1)
    assert peak(without) < peak(with_it)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"compile": True}, "train.compile"),
        ({"adapter": LORA}, "train.adapter"),
        ({"precision": "bf16"}, "train.precision"),
        ({"recompute": "full"}, "train.recompute"),
        ({"sharding": "ddp"}, "train.sharding"),
        ({"quantization": {"format": "nf4"}}, "train.quantization"),
    ],
)
def test_what_nanogpt_refuses(settings: dict[str, Any], path: str) -> None:
    """One message with the place of the setting."""
    with pytest.raises(BadInput) as error:
        answer("nanogpt", GPT2, **settings)
    assert error.value.path == path


def test_nanogpt_is_a_gpt2() -> None:
    """Any other network is refused."""
    with pytest.raises(Unsupported, match="GPT-2"):
        answer("nanogpt", LLAMA)
