"""Configurations of training frameworks read as jobs: what is stated, what is a default, what follows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everybyte.basics.errors import BadInput
from everybyte.formats.finish import Imported, finish
from everybyte.formats.read import read
from everybyte.formats.source import Source, command_source


def of_file(text: str, name: str = "x.yaml", *more: Source, version: str | None = None) -> Imported:
    """The one job of a file, with further files beside it."""
    (draft,) = read([Source(text, name), *more], version=version)
    return finish(draft)


def of_command(text: str) -> Imported:
    """The one job of a command."""
    (draft,) = read([command_source(text)])
    return finish(draft)


def values(imported: Imported) -> dict[str, Any]:
    """Job key -> value."""
    return {row.key: row.value for row in imported.settings}


def origin(imported: Imported, key: str) -> str:
    """Where a setting comes from."""
    return next(row.origin for row in imported.settings if row.key == key)


def ids(imported: Imported) -> set[str]:
    """Ids of findings."""
    return {finding.id for finding in imported.findings}


AXOLOTL = """
base_model: meta-llama/Llama-3.1-8B
sequence_len: 4_096
micro_batch_size: 2
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_alpha: 32
lora_target_linear: true
gradient_checkpointing: true
bf16: auto
flash_attention: true
"""


def test_axolotl() -> None:
    """QLoRA is nf4, double and kept in bf16; recomputing is reentrant where nobody says; the base is loaded in bf16."""
    found = of_file(AXOLOTL)
    got = values(found)
    assert got["train.seq_len"] == 4096
    assert (got["train.quantization.format"], got["train.quantization.double"], got["train.quantization.storage"]) == ("nf4", True, "bf16")
    assert (got["train.precision"], got["train.dtypes.weights"]) == ("bf16-mixed", "bf16")
    assert (got["train.recompute.policy"], got["train.recompute.reentrant"]) == ("full", True)
    assert got["train.adapter.targets"] == "all-linear"
    assert origin(found, "train.micro_batch") == "x.yaml:4"
    assert origin(found, "train.quantization.double") == "default of axolotl"
    assert not found.has_errors


def test_axolotl_default_of_a_version() -> None:
    """The optimizer that an older release took is that of `--framework-version`."""
    assert values(of_file(AXOLOTL))["train.optimizer.impl"] == "fused"
    assert "train.optimizer.impl" not in values(of_file(AXOLOTL, version="0.7.0"))


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("bf16: true", "bf16-mixed"),
        ("fp16: true\nbf16: false", "fp16-mixed"),
        ("float16: true\nbf16: false", "fp16"),
        ("bfloat16: true", "bf16"),
        ("bf16: false", "fp32"),
    ],
)
def test_axolotl_precision(flags: str, precision: str) -> None:
    """`bf16` is autocast, `bfloat16` is not."""
    assert values(of_file(f"base_model: gpt2\nsequence_len: 8\n{flags}\n"))["train.precision"] == precision


def test_deepspeed_auto_follows_the_other_file() -> None:
    """`auto` is what the configuration says that names the file; bf16 becomes 16-bit weights with a master copy."""
    zero = {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "reduce_bucket_size": "auto"},
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
    }
    got = values(of_file(AXOLOTL + "deepspeed: cfg/three.json\n", "x.yaml", Source(json.dumps(zero), "runs/cfg/three.json")))
    assert (got["train.sharding"], got["train.precision"], got["train.offload.params"]) == ("zero3", "bf16-master", "cpu")
    assert got["train.micro_batch"] == 2
    assert "train.buckets.reduce" not in got
    assert got["train.extra.reduce_bucket_size"] == "auto"


def test_a_named_file_that_was_not_given() -> None:
    """The stage is taken from its name and that is said."""
    found = of_file(AXOLOTL + "deepspeed: deepspeed_configs/zero2_offload.json\n")
    assert values(found)["train.sharding"] == "zero2"
    assert "file-not-given" in ids(found)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "offload-param-stage"),
        ({"zero_optimization": {"overlap_comm": True}, "train_batch_size": 8}, "zero-without-stage"),
        ({"optimizer": {"type": "OnebitAdam"}, "train_micro_batch_size_per_gpu": 3}, "one-bit-optimizer"),
        ({"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, "offload-without-zero"),
        ({"zero_optimization": {"stage": 1}, "curriculum_learning": {"enabled": True}}, "curriculum"),
    ],
)
def test_findings_of_deepspeed(config: dict[str, Any], rule: str) -> None:
    """Each trap of a DeepSpeed configuration is named."""
    assert rule in ids(of_file(json.dumps(config), "ds.json"))


def test_partial_jobs_say_what_is_missing() -> None:
    """A file without a model is a valid answer that names the gap."""
    found = of_file("distributed_type: FSDP\nnum_processes: 16\nnum_machines: 2\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n")
    assert [missing.key for missing in found.missing] == ["model"]
    got = values(found)
    assert (got["hardware.gpus"], got["hardware.gpus_per_node"], got["train.sharding"]) == (16, 8, "fsdp2")


ACCELERATE = "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (ACCELERATE + "deepspeed_config: {zero_stage: 3, zero3_init_flag: false}\n", "zero3-init"),
        (ACCELERATE + "deepspeed_config: {zero_optimization: {stage: 3}}\n", "nested-deepspeed"),
        (ACCELERATE + "deepspeed_config: {zero_stage: 2, offload_param_device: cpu}\n", "offload-param-stage"),
        ("distributed_type: 'NO'\nnum_processes: 4\nmixed_precision: bf16\n", "one-process"),
        ("distributed_type: FSDP\nnum_processes: 7\nnum_machines: 2\nfsdp_config: {fsdp_version: 2}\n", "processes-per-machine"),
        ("distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_auto_wrap_policy: NO_WRAP}\n", "fsdp-no-wrap"),
        (
            "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_offload_params: true, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n",
            "fsdp-offload-v1",
        ),
    ],
)
def test_findings_of_accelerate(text: str, rule: str) -> None:
    """Each trap of an accelerate file is named."""
    assert rule in ids(of_file(text))


@pytest.mark.parametrize(
    ("extra", "rule"),
    [
        ("adapter:\nload_in_4bit: true\n", "packed-without-adapter"),
        ("adapter: qlora\n", "qlora-without-4bit"),
        ("adapter: lora\nload_in_4bit: true\n", "lora-with-4bit"),
        ("unfrozen_parameters: ['lm_head.*']\n", "unfrozen-parts"),
        ("relora_steps: 100\nadapter: lora\n", "method-not-counted"),
        ("auto_find_batch_size: true\n", "batch-is-found"),
        ("batch_size: 8\n", "batch-size-old"),
    ],
)
def test_findings_of_axolotl(extra: str, rule: str) -> None:
    """Each trap of an axolotl file is named."""
    assert rule in ids(of_file("base_model: gpt2\nsequence_len: 128\n" + extra))


LLAMA_FACTORY = "stage: sft\nmodel_name_or_path: Qwen/Qwen2.5-7B-Instruct\nfinetuning_type: lora\nlora_rank: 32\nbf16: true\n"


def test_llama_factory() -> None:
    """Recomputing is on and reentrant, alpha is twice the rank, the length is that of the newest release."""
    got = values(of_file(LLAMA_FACTORY))
    assert (got["train.recompute.policy"], got["train.recompute.reentrant"]) == ("full", True)
    assert (got["train.adapter.alpha"], got["train.adapter.targets"], got["train.seq_len"]) == (64, "all-linear", 2048)
    assert values(of_file(LLAMA_FACTORY, version="0.8.3"))["train.seq_len"] == 1024
    assert values(of_file(LLAMA_FACTORY + "disable_gradient_checkpointing: true\n"))["train.recompute.policy"] == "none"


def test_llama_factory_command_line() -> None:
    """Overrides behind the file win, and what follows from them follows."""
    (draft,) = read([Source("llamafactory-cli train base.yaml lora_rank=8 per_device_train_batch_size=3\n", "run.sh"), Source(LLAMA_FACTORY, "base.yaml")])
    got = values(finish(draft))
    assert (got["train.adapter.rank"], got["train.adapter.alpha"], got["train.micro_batch"]) == (8, 16, 3)


def test_llama_factory_freeze() -> None:
    """Training the last layers alone is told, since the form lists frozen modules."""
    assert "freeze-by-layer" in ids(of_file("stage: sft\nmodel_name_or_path: gpt2\nfinetuning_type: freeze\ncutoff_len: 64\n"))


def test_trl_defaults_by_version() -> None:
    """TRL turned recomputing and bf16 on lately; an older release did not."""
    text = "python trl/scripts/sft.py --model_name_or_path gpt2 --dataset_name a/b --per_device_train_batch_size 2"
    new = values(of_command(text))
    (draft,) = read([command_source(text)], version="0.12.0")
    old = values(finish(draft))
    assert (new["train.recompute.policy"], new["train.precision"], new["train.seq_len"]) == ("full", "bf16-mixed", 1024)
    assert old["train.recompute.policy"] == "none"
    assert "train.seq_len" not in old


def test_trl_grpo() -> None:
    """num_generations says GRPO; prompt and completion add up; the engine's share is a default of the version."""
    text = "model_name_or_path: gpt2\nper_device_train_batch_size: 4\nnum_generations: 8\nuse_vllm: true\nmax_prompt_length: 100\nmax_completion_length: 200\n"
    got = values(of_file(text))
    assert (got["train.extra.rlhf_type"], got["train.seq_len"], got["train.extra.vllm_gpu_memory_utilization"]) == ("grpo", 300, 0.3)
    assert values(of_file(text, version="0.15.0"))["train.extra.vllm_gpu_memory_utilization"] == 0.9


def test_names_of_modules_with_commas() -> None:
    """`"q_proj", "v_proj"` are two arguments of which the first has a comma and matches nothing."""
    found = of_command('python sft.py --model_name_or_path gpt2 --per_device_train_batch_size 1 --use_peft --lora_r 8 --lora_target_modules "q_proj", "v_proj"')
    assert values(found)["train.adapter.targets"] == ["v_proj"]
    assert "targets-with-commas" in ids(found)
    assert found.has_errors


def test_peft_adalora_starts_from_init_r() -> None:
    """AdaLoRA reads init_r and never r."""
    found = of_file(json.dumps({"peft_type": "ADALORA", "init_r": 12, "r": 8, "target_modules": "model.*q_proj"}), "adapter_config.json")
    assert values(found)["train.adapter.rank"] == 12
    assert {"adalora-rank", "target-pattern"} <= ids(found)


MEGATRON = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 2 "


def test_megatron() -> None:
    """The family and sizes that no flag says follow; accumulation is the global batch by micro-batch and ranks."""
    more = "--global-batch-size 64 --tensor-model-parallel-size 2 --bf16 --swiglu --normalization RMSNorm --position-embedding-type rope --vocab-size 32001"
    got = values(of_command(MEGATRON + more))
    assert (got["model.shape.family"], got["model.shape.ffn"], got["model.shape.padded_vocab"]) == ("llama", 2688, 32256)
    assert (got["train.precision"], got["train.grad_accum"], got["model.shape.tied"]) == ("bf16-master", 8, True)


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ("--sequence-parallel", "sp-without-tp"),
        ("--num-query-groups 4", "groups-without-switch"),
        ("--recompute-granularity full", "recompute-without-method"),
        ("--recompute-granularity selective --recompute-method uniform", "method-with-selective"),
        ("--tensor-model-parallel-size 16 --global-batch-size 32", "mesh-against-processes"),
        ("--global-batch-size 33", "batch-does-not-divide"),
        ("--global-batch-size 64 --rampup-batch-size 16 16 1000", "batch-grows"),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4", "chunks-do-not-divide"),
        ("--attention-dropout 0 --hidden-dropout 0.1", "dropout-differs"),
        ("--exp-avg-dtype bf16 --exp-avg-sq-dtype fp32", "moments-differ"),
        ("--num-experts 8 --moe-layer-freq oops", "layer-pattern"),
    ],
)
def test_findings_of_megatron(more: str, rule: str) -> None:
    """Each trap of a Megatron-LM command is named."""
    assert rule in ids(of_command(MEGATRON + more))


def test_torchtune() -> None:
    """The builder names model and adapter; references are put in; a recipe of one device is not sharded."""
    text = "base: /m\nmodel: {_component_: torchtune.models.llama3_1.qlora_llama3_1_8b, lora_rank: 8, lora_attn_modules: [q_proj, output_proj]}\n"
    got = values(of_file(text + "tokenizer: {_component_: t, path: '${base}/t', max_seq_len: 2048}\nbatch_size: 2\ndtype: bf16\n"))
    assert (got["model"], got["train.quantization.format"], got["train.adapter.targets"]) == ("meta-llama/Llama-3.1-8B-Instruct", "nf4", ["q_proj", "o_proj"])
    shipped = values(of_command("tune run lora_finetune_single_device --config llama3_2/1B_lora_single_device batch_size=3"))
    assert (shipped["train.micro_batch"], shipped["train.sharding"], shipped["model"]) == (3, "none", "meta-llama/Llama-3.2-1B-Instruct")


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ("optimizer_in_bwd: true\ngradient_accumulation_steps: 4\n", "in-backward-accumulates"),
        ("enable_activation_offloading: true\n", "offload-without-recompute"),
    ],
)
def test_findings_of_torchtune(more: str, rule: str) -> None:
    """Each trap of a torchtune file is named."""
    assert rule in ids(of_file("model: {_component_: torchtune.models.llama3.llama3_8b}\nbatch_size: 1\n" + more))


def test_torchtitan() -> None:
    """Name and flavor are a model; float8 settings without the converter have no effect."""
    found = of_file(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n[float8]\nenable_fsdp_float8_all_gather = true\n', "x.toml"
    )
    got = values(found)
    assert (got["model"], got["train.precision"], got["train.recompute.policy"]) == ("meta-llama/Llama-3.1-8B", "bf16-mixed", "selective")
    assert origin(found, "train.seq_len") == "x.toml:6"
    assert "float8-without-converter" in ids(found)


def test_swift_verl_openrlhf() -> None:
    """Three that build upon others: their own words, the engine beneath, and accumulation from a global batch."""
    swift = values(of_command("swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --torch_dtype bfloat16 --max_length 2048"))
    assert (swift["train.framework"], swift["train.adapter.rank"], swift["train.dtypes.weights"]) == ("ms-swift", 8, "bf16")
    verl = of_command(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=512 data.max_response_length=512 "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=4 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.ref.fsdp_config.param_offload=True trainer.n_gpus_per_node=8"
    )
    assert (values(verl)["train.grad_accum"], values(verl)["train.seq_len"], values(verl)["train.sharding"]) == (4, 1024, "fsdp1")
    assert "reference-offload" in ids(verl)
    flags = "--pretrain gpt2 --max_len 512 --zero_stage 2 --train_batch_size 64 --micro_train_batch_size 2"
    rlhf = values(of_command(f"deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo {flags}"))
    assert (rlhf["train.extra.rlhf_type"], rlhf["train.grad_accum"], rlhf["train.precision"]) == ("dpo", 4, "bf16-master")


def test_nemo_and_neox() -> None:
    """Overrides of a recipe, a recipe's own values, and a file that is shape and DeepSpeed in one."""
    bridge = values(
        of_command("torchrun run_recipe.py --recipe llama32_1b_pretrain_1gpu_h100_bf16_config model.tensor_model_parallel_size=2 train.micro_batch_size=3")
    )
    assert (bridge["model"], bridge["train.mesh.tp"], bridge["train.micro_batch"], bridge["train.seq_len"]) == ("meta-llama/Llama-3.2-1B", 2, 3, 8192)
    neox = values(
        of_file(
            '{"pipe-parallel-size": 2, "model-parallel-size": 2, "num-layers": 4, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 128,'
            ' "zero_optimization": {"stage": 1}, "fp16": {"enabled": true}, "train_micro_batch_size_per_gpu": 4}'
        )
    )
    assert (neox["train.mesh.pp"], neox["train.sharding"], neox["train.precision"], neox["model.shape.ffn"]) == (2, "zero1", "fp16-master", 256)


def test_unknown_keys_are_told_and_quiet_ones_are_not() -> None:
    """A learning rate is known to change nothing; a key that no table has is reported with its line."""
    found = of_file(AXOLOTL + "learning_rate: 0.0002\nsome_new_switch: true\n")
    assert [(unknown.key, unknown.place) for unknown in found.unknown] == [("some_new_switch", "x.yaml:14")]


def test_values_that_no_job_can_hold() -> None:
    """They become findings with their place, and the rest is read."""
    found = of_file(AXOLOTL.replace("micro_batch_size: 2", "micro_batch_size: many"))
    assert found.has_errors
    assert any("x.yaml:4" in finding.place and "many" in finding.message for finding in found.findings)


def test_contradictions_keep_what_was_written() -> None:
    """A mesh larger than the processes is told; neither of both is dropped."""
    found = of_command(MEGATRON + "--tensor-model-parallel-size 16")
    assert (found.job["train"]["mesh"]["tp"], found.job["hardware"]["gpus"]) == (16, 8)
    assert "contradiction" in ids(found)


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("a: b\n\tc: d\n", "x.yaml", "x.yaml:2:1"),
        ('{"a": 1,}', "x.json", "x.json:1"),
        ("[a\nb = 1", "x.toml", "x.toml"),
        ("colour: red\n", "x.yaml", "x.yaml:1"),
        ("ls -la\n", "x.sh", "x.sh"),
    ],
)
def test_refusals_name_their_place(text: str, name: str, place: str) -> None:
    """What cannot be read is refused with file and line."""
    with pytest.raises(BadInput) as refused:
        read([Source(text, name)])
    assert refused.value.path.startswith(place)


def test_an_alias_that_expands_without_end() -> None:
    """Nine short lines that stand for a billion values are refused."""
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    with pytest.raises(BadInput, match="values"):
        read([Source(bomb + "base_model: gpt2\n", "b.yaml")])
