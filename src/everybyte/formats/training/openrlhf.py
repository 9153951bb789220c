"""OpenRLHF: flags of two generations, `--zero_stage` until 0.10.1 and `--ds.zero_stage` since."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.draft import JobDraft
from everybyte.formats.table import table
from everybyte.formats.training.adapters import state_targets
from everybyte.formats.training.run import Run, finished, of_command, spelling
from everybyte.formats.training.words import add_kernel, dtype_word
from everybyte.formats.values import boolean, whole

FILE = "training/openrlhf.csv"
METHODS = {"train_dpo": "dpo", "train_kto": "kto", "train_ppo_ray": "ppo", "train_ppo": "ppo", "train_rm": "", "train_kd": "gkd"}
ESTIMATORS = {"group_norm": "grpo", "rloo": "rloo", "reinforce": "grpo", "reinforce_baseline": "grpo", "dr_grpo": "grpo", "gae": "ppo"}


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`openrlhf.cli.train_sft ...`."""
    run = of_command(command, context, "openrlhf", spelling(table(FILE)))
    draft = run.draft
    draft.infer("train.framework", "deepspeed", "OpenRLHF trains with DeepSpeed")
    draft.infer("train.extra.framework", "openrlhf", "the program is OpenRLHF's")
    _method(run, command.program.rpartition(".")[2])
    _zero(run)
    _recompute(run)
    _adapter(run)
    table(FILE).read(run.bag, draft)
    _lengths(run)
    _hardware(run)
    if "train.tokens" not in draft:
        draft.default("train.micro_batch", 8)
    _accumulation(run)
    return finished(run)


def _method(run: Run, program: str) -> None:
    word = METHODS.get(program, "")
    estimator = run.bag.take("advantage_estimator", "algo.advantage.estimator")
    if estimator is not None and word == "ppo":
        run.draft.state("train.extra.rlhf_type", ESTIMATORS.get(str(estimator.value), "ppo"), estimator.place)
    elif word:
        run.draft.infer("train.extra.rlhf_type", word, f"the program is {program}")
    if program == "train_rm":
        run.draft.infer("train.extra.task", "reward_model", f"the program is {program}")


def _zero(run: Run) -> None:
    draft, bag = run.draft, run.bag
    stage, dtype, old = bag.take("zero_stage", "ds.zero_stage"), bag.take("param_dtype", "ds.param_dtype"), bag.take("bf16")
    count = whole(stage.value) if stage is not None else None
    if stage is not None and count is not None:
        draft.state("train.sharding", f"zero{count}" if count else "ddp", stage.place)
    else:
        draft.default("train.sharding", "zero2")
    word = dtype_word(dtype.value) if dtype is not None else None
    if dtype is not None and word in ("bf16", "fp16"):
        draft.state("train.precision", f"{word}-master", dtype.place)
    elif old is not None and boolean(old.value):
        draft.state("train.precision", "bf16-master", old.place)
    else:
        draft.default("train.precision", "bf16-master", "0.9.2")
    offload = bag.take("adam_offload", "ds.adam_offload")
    if offload is not None and boolean(offload.value):
        draft.state("train.offload.optimizer", "cpu", offload.place)


def _recompute(run: Run) -> None:
    draft = run.draft
    given = run.bag.take("gradient_checkpointing", "model.gradient_checkpointing_enable", "actor.gradient_checkpointing_enable")
    reentrant = run.bag.take("gradient_checkpointing_use_reentrant", "model.gradient_checkpointing_reentrant", "actor.gradient_checkpointing_reentrant")
    on = given is not None and bool(boolean(given.value))
    if given is not None:
        draft.state("train.recompute.policy", "full" if on else "none", given.place)
    else:
        draft.default("train.recompute.policy", "none")
    if on and reentrant is not None:
        draft.state("train.recompute.reentrant", boolean(reentrant.value), reentrant.place)
    flash, liger = run.bag.take("flash_attn"), run.bag.take("use_liger_kernel", "ds.use_liger_kernel")
    if flash is not None and boolean(flash.value):
        draft.state("train.attention", "flash2", flash.place)
    elif "attn_implementation" not in run.bag and "ds.attn_implementation" not in run.bag:
        draft.default("train.attention", "flash2", "0.8.10")
    if liger is not None and boolean(liger.value):
        add_kernel(draft, "liger", liger.place)


def _adapter(run: Run) -> None:
    rank, targets = run.bag.take("lora_rank", "ds.lora.rank"), run.bag.take("target_modules", "ds.lora.target_modules")
    packed = run.bag.take("load_in_4bit", "ds.load_in_4bit")
    count = whole(rank.value) if rank is not None else None
    if rank is not None and count:
        run.draft.state("train.adapter.kind", "lora", rank.place)
        run.draft.state("train.adapter.rank", count, rank.place)
        run.draft.default("train.adapter.alpha", 16)
        run.draft.default("train.adapter.targets", "all-linear")
        state_targets(run, targets)
    if packed is not None and boolean(packed.value):
        run.draft.state("train.quantization.format", "nf4", packed.place)


def _lengths(run: Run) -> None:
    prompt, answer = run.whole("prompt_max_len"), run.whole("generate_max_len", "rollout.max_new_tokens")
    if prompt and answer:
        run.draft.infer("train.seq_len", prompt + answer, f"prompt_max_len {prompt} + generate_max_len {answer}")
    run.draft.default("train.seq_len", 2048, "0.3.6")
    dynamic, tokens = run.bag.take("use_dynamic_batch", "train.dynamic_batch_enable"), run.bag.take("train_max_tokens_per_gpu", "train.max_tokens_per_gpu")
    if dynamic is not None and boolean(dynamic.value) and tokens is not None:
        run.draft.state("train.tokens", whole(tokens.value), tokens.place)
        run.draft.drop("train.micro_batch")


def _hardware(run: Run) -> None:
    """Ray gives the actor its own nodes."""
    each = run.bag.take("actor_num_gpus_per_node", "actor.num_gpus_per_node")
    run.state_nodes(each, run.bag.take("actor_num_nodes", "actor.num_nodes"))


def _accumulation(run: Run) -> None:
    given = run.bag.take("train_batch_size", "train.batch_size")
    total = whole(given.value) if given is not None else 128
    draft = run.draft
    gpus = draft.value("hardware.gpus") or (run.command.settings["hardware.gpus"].value if run.command and "hardware.gpus" in run.command.settings else None)
    micro = draft.value("train.micro_batch")
    ranks = gpus
    for axis in ("cp", "tp"):
        ranks = ranks // (draft.value(f"train.mesh.{axis}") or 1) if isinstance(ranks, int) else None
    if total and ranks and micro and total % (micro * ranks) == 0:
        draft.infer("train.grad_accum", total // (micro * ranks), f"train_batch_size {total} / ({micro} x {ranks} ranks)")
