"""verl: `python3 -m verl.trainer.main_ppo a.b.c=value`, with FSDP or Megatron-LM beneath, and its SFT trainer."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.flags import Spelling
from everybyte.formats.table import table
from everybyte.formats.training.adapters import state_targets
from everybyte.formats.training.run import Run, finished, of_command, of_document
from everybyte.formats.training.words import add_kernel, dtype_word
from everybyte.formats.values import boolean, whole

FILE = "training/verl.csv"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ESTIMATORS = {
    "gae": "ppo",
    "grpo": "grpo",
    "reinforce_plus_plus": "grpo",
    "rloo": "rloo",
    "remax": "grpo",
    "reinforce_plus_plus_baseline": "grpo",
    "grpo_passk": "grpo",
    "opo": "grpo",
}


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration."""
    return _read(of_document(document, context, "verl"))


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """A command with Hydra's overrides."""
    run = of_command(command, context, "verl", Spelling(known=frozenset({"config_path", "config_name", "config_dir"})))
    return _read(run)


def _read(run: Run) -> list[JobDraft]:
    draft = run.draft
    name = run.text("config_name") or ""
    run.bag.take("config_path")
    strategy = run.text(f"{ACTOR}.strategy", "model.strategy") or (
        "megatron" if "megatron" in name or any(".actor.megatron." in key for key in run.bag) else "fsdp"
    )
    is_megatron = strategy == "megatron"
    draft.infer("train.framework", "megatron" if is_megatron else "pytorch", f"verl trains with {'Megatron-LM' if is_megatron else strategy.upper()}")
    draft.infer("train.extra.framework", "verl", "its names of settings")
    is_sft = "actor_rollout_ref.model.path" not in run.bag and not any(key.startswith("actor_rollout_ref.") for key in run.bag)
    run.state_nodes(run.bag.take("trainer.n_gpus_per_node"), run.bag.take("trainer.nnodes"))
    _lengths(run)
    if not is_sft:
        _method(run)
    _recompute(run)
    _offload(run)
    _adapter(run)
    table(FILE).read(run.bag, draft)
    if "train.tokens" in draft:
        draft.drop("train.micro_batch")  # a dynamic batch does not read it
    _precision(run, is_megatron=is_megatron)
    _sharding(run, strategy)
    _accumulation(run, is_sft=is_sft)
    return finished(run)


def _lengths(run: Run) -> None:
    """Prompt and answer; a dynamic batch counts tokens."""
    draft = run.draft
    prompt, answer = run.whole("data.max_prompt_length"), run.whole("data.max_response_length")
    if prompt and answer:
        draft.infer("train.seq_len", prompt + answer, f"data.max_prompt_length {prompt} + data.max_response_length {answer}")
        run.state("train.extra.max_completion_length", answer, "data.max_response_length")
    dynamic, tokens = run.switch(f"{ACTOR}.use_dynamic_bsz"), run.bag.take(f"{ACTOR}.ppo_max_token_len_per_gpu")
    if dynamic and tokens is not None and (count := whole(tokens.value)):
        ulysses = run.whole(f"{ACTOR}.ulysses_sequence_parallel_size") or 1
        draft.state("train.tokens", count * ulysses, tokens.place)
        draft.find("dynamic-batch", "note", tokens.place, "a dynamic batch fills micro-batches with so many tokens; their number of sequences is not fixed")


def _method(run: Run) -> None:
    draft = run.draft
    given = run.bag.take("algorithm.adv_estimator")
    if given is not None:
        word = str(given.value).casefold()
        draft.state("train.extra.rlhf_type", ESTIMATORS.get(word, word), given.place)
    else:
        draft.default("train.extra.rlhf_type", "ppo")
    draft.default("train.extra.vllm_gpu_memory_utilization", 0.5)
    kl, in_reward = run.bag.take(f"{ACTOR}.use_kl_loss"), run.bag.take("algorithm.use_kl_in_reward")
    has_reference = any(given is not None and boolean(given.value) for given in (kl, in_reward))
    offload = run.bag.peek("actor_rollout_ref.ref.fsdp_config.param_offload") or run.bag.peek("actor_rollout_ref.ref.megatron.param_offload")
    if offload is not None:
        where = "waits in host memory" if boolean(offload.value) else "stays on the GPU"
        exists = "" if has_reference else "; it exists only with use_kl_loss or use_kl_in_reward, which are off"
        draft.find("reference-offload", "note", offload.place, f"the ref model {where} between its passes, apart from the actor's own offload{exists}")
    if not has_reference:
        draft.infer("train.extra.reference_free", True, "neither use_kl_loss nor use_kl_in_reward is on")


def _recompute(run: Run) -> None:
    draft = run.draft
    given, offload = (
        run.bag.take(f"{MODEL}.enable_gradient_checkpointing", "model.enable_gradient_checkpointing"),
        run.bag.take(f"{MODEL}.enable_activation_offload"),
    )
    if given is not None:
        draft.state("train.recompute.policy", "full" if boolean(given.value) else "none", given.place)
    elif not any("recompute_granularity" in key for key in run.bag):
        draft.default("train.recompute.policy", "full", "0.2")
    if offload is not None and boolean(offload.value):
        draft.state("train.offload.activations", "cpu", offload.place)
    for key in (f"{MODEL}.use_liger", "model.use_liger"):
        liger = run.bag.take(key)
        if liger is not None and boolean(liger.value):
            add_kernel(draft, "liger", liger.place)
    fused = run.bag.take(f"{MODEL}.use_fused_kernels")
    if fused is not None and boolean(fused.value):
        draft.state("train.loss.kind", "fused-linear", fused.place)


def _offload(run: Run) -> None:
    """The actor's weights and states wait in host memory while the engine generates; they are on the GPU in its step."""
    for key, job in (("param_offload", "train.offload.params"), ("optimizer_offload", "train.offload.optimizer")):
        given = run.bag.take(f"{ACTOR}.fsdp_config.{key}", f"{ACTOR}.megatron.{key}")
        if given is not None and boolean(given.value):
            run.draft.state(job, "cpu", given.place)
    policy = run.bag.take(f"{ACTOR}.fsdp_config.offload_policy", "model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params")
    if policy is not None and boolean(policy.value):
        run.draft.state("train.offload.params", "cpu", policy.place)
    hybrid = run.bag.take(f"{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload")
    if hybrid is not None and boolean(hybrid.value):
        run.draft.state("train.offload.optimizer", "cpu", hybrid.place)


def _adapter(run: Run) -> None:
    rank = run.bag.take(f"{MODEL}.lora_rank", f"{MODEL}.lora.rank", "model.lora_rank")
    targets = run.bag.take(f"{MODEL}.target_modules", f"{MODEL}.lora.target_modules", "model.target_modules")
    count = whole(rank.value) if rank is not None else None
    if rank is None or not count:
        run.bag.ignore((f"{MODEL}.lora_alpha", f"{MODEL}.lora.alpha", "model.lora_alpha"))
        run.bag.ignore(key for key in list(run.bag) if key.endswith("lora_alpha"))
        return
    run.draft.state("train.adapter.kind", "lora", rank.place)
    run.draft.state("train.adapter.rank", count, rank.place)
    run.draft.default("train.adapter.targets", "all-linear")
    state_targets(run, targets)


def _precision(run: Run, *, is_megatron: bool) -> None:
    """FSDP keeps fp32 weights and computes in bf16; Megatron-LM has bf16 weights and a master copy."""
    draft = run.draft
    stored = run.bag.take(f"{ACTOR}.fsdp_config.model_dtype", "model.fsdp_config.model_dtype")
    run.bag.take(f"{ACTOR}.fsdp_config.dtype")
    if is_megatron:
        draft.default("train.precision", "bf16-master")
    elif stored is not None and dtype_word(stored.value) == "bf16":
        draft.state("train.precision", "bf16", stored.place)
    else:
        draft.default("train.precision", "bf16-mixed")


def _sharding(run: Run, strategy: str) -> None:
    draft = run.draft
    size, reshard = run.bag.take(f"{ACTOR}.fsdp_config.fsdp_size"), run.bag.take(f"{ACTOR}.fsdp_config.reshard_after_forward")
    count = whole(size.value) if size is not None else None
    if strategy == "megatron":
        optimizer = run.bag.take(f"{ACTOR}.megatron.use_distributed_optimizer")
        if optimizer is not None and boolean(optimizer.value) is False:
            draft.state("train.sharding", "ddp", optimizer.place)
        draft.default("train.sharding", "distributed-optimizer")
        return
    keeps = reshard is not None and boolean(reshard.value) is False
    word = ("fsdp2-no-reshard" if keeps else "fsdp2") if strategy == "fsdp2" else ("fsdp1-grad-op" if keeps else "fsdp1")
    if size is not None and count and count > 0:
        draft.state("train.mesh.dp_shard", max(count // (draft.value("train.mesh.ulysses") or 1), 1), size.place)
    draft.default("train.sharding", word)


def _accumulation(run: Run, *, is_sft: bool) -> None:
    """ppo_mini_batch_size counts prompts over all ranks, each with rollout.n answers."""
    draft = run.draft
    mini, total = run.bag.take(f"{ACTOR}.ppo_mini_batch_size"), run.bag.take("data.train_batch_size")
    given = total if is_sft else mini
    size = whole(given.value) if given is not None else None
    old = run.bag.take(f"{ACTOR}.ppo_micro_batch_size")
    gpus = draft.value("hardware.gpus")
    if old is not None and isinstance(gpus, int) and (all_ranks := whole(old.value)) and all_ranks % gpus == 0:
        draft.infer("train.micro_batch", all_ranks // gpus, f"ppo_micro_batch_size {all_ranks} of all {gpus} ranks at {old.place}")
    micro = draft.value("train.micro_batch")
    answers = 1 if is_sft else draft.value("train.extra.num_generations") or 1
    ranks = _ranks(draft)
    if given is not None and size and micro and ranks and (size * answers) % (micro * ranks) == 0:
        reason = f"{size} prompts x {answers} answers / ({micro} x {ranks} data-parallel ranks)"
        draft.infer("train.grad_accum", size * answers // (micro * ranks), reason)


def _ranks(draft: JobDraft) -> int | None:
    gpus = draft.value("hardware.gpus")
    if not isinstance(gpus, int):
        return None
    for axis in ("tp", "pp", "cp", "ulysses"):
        gpus //= draft.value(f"train.mesh.{axis}") or 1
    return gpus or None
