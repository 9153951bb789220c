"""axolotl's YAML, and the commands that take it."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given
from everybyte.formats.table import optimizer_settings, table, value_tables
from everybyte.formats.training import accelerate, deepspeed, defaults
from everybyte.formats.training.adapters import read_bitsandbytes, read_lora
from everybyte.formats.training.fsdp import read_fsdp
from everybyte.formats.training.hf import Usual, read_optim_args, read_recompute
from everybyte.formats.training.run import Run, finished, of_command, of_document, spelling
from everybyte.formats.training.words import add_kernel, dtype_word
from everybyte.formats.values import boolean

FILE = "training/axolotl.csv"

ATTENTION = (("flash_attention", "flash2"), ("sdp_attention", "sdpa"), ("flex_attention", "flex"), ("xformers_attention", "sdpa"), ("eager_attention", "eager"))
"""The older switches -> the job's word."""

LIGER = ("liger_rope", "liger_rms_norm", "liger_rms_norm_gated", "liger_layer_norm", "liger_swiglu", "liger_glu_activation", "liger_cross_entropy")

KINDS = {"lora": "lora", "qlora": "lora", "llama-adapter": "adaption-prompt", "dora": "dora", "mora": "mora"}

METHODS = {"dpo": "dpo", "ipo": "dpo", "simpo": "cpo", "kto": "kto", "orpo": "orpo", "grpo": "grpo", "gdpo": "grpo", "ebft": "ebft"}


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration."""
    return _read(of_document(document, context, "axolotl"))


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`axolotl train x.yaml`, `accelerate launch -m axolotl.cli.train x.yaml`."""
    return _read(of_command(command, context, "axolotl", spelling(table(FILE))))


def _read(run: Run) -> list[JobDraft]:
    draft = run.draft
    draft.infer("train.framework", "axolotl", "its names of settings")
    read_precision(run)
    _attention(run)
    _kernels(run)
    _adapter(run)
    _recompute(run)
    read_optim_args(run)
    compiled = run.bag.take("torch_compile")
    if compiled is not None and boolean(compiled.value) is not None:
        draft.state("train.compile", boolean(compiled.value), compiled.place)
    table(FILE).read(run.bag, draft)
    _sharding(run)
    _method(run)
    _parts(run)
    _defaults(run)
    return finished(run)


def read_precision(run: Run) -> None:
    """`bf16` and `fp16` are autocast, `bfloat16` and `float16` compute in the stored type. Weights are loaded in the type that is computed in."""
    draft, bag = run.draft, run.bag
    loaded = bag.take("torch_dtype")
    mixed = {kind: bag.take(kind) for kind in ("bf16", "fp16")}
    pure = {"bf16": bag.take("bfloat16"), "fp16": bag.take("float16")}
    eight, _ = bag.take("fp8"), bag.take("float32")
    if eight is not None and boolean(eight.value):
        draft.state("train.precision", "fp8", eight.place)
        return
    for kind, given in pure.items():
        if given is not None and boolean(given.value):
            draft.state("train.precision", kind, given.place)
            return
    for kind, given in mixed.items():
        if given is not None and (given.value == "auto" or boolean(given.value)):
            draft.state("train.precision", f"{kind}-mixed", given.place)
            _weights(draft, kind, loaded)
            return
    if mixed["bf16"] is None and not (mixed["fp16"] is not None and boolean(mixed["fp16"].value)):
        draft.default("train.precision", "bf16-mixed", "0.5.0", "axolotl")
        _weights(draft, "bf16", loaded)
    elif loaded is not None and (word := dtype_word(loaded.value)):
        draft.state("train.precision", word, loaded.place)
    else:
        draft.infer("train.precision", "fp32", "bf16 and fp16 are off")


def _weights(draft: JobDraft, kind: str, loaded: Given | None) -> None:
    word = dtype_word(loaded.value) if loaded is not None else None
    if word is not None and loaded is not None:
        draft.state("train.dtypes.weights", word, loaded.place)
    else:
        draft.infer("train.dtypes.weights", kind, f"axolotl loads the base in {kind} where {kind} is on")


def _attention(run: Run) -> None:
    for key, word in ATTENTION:
        given = run.bag.take(key)
        if given is not None and boolean(given.value):
            run.draft.state("train.attention", word, given.place)
    given = run.bag.take("attn_implementation")
    run.bag.take("sage_attention", "s2_attention")
    if given is not None:
        word = value_tables()["attention"].get(str(given.value).casefold(), "-")
        if word == "-":
            run.draft.state("train.extra.attn_implementation", given.value, given.place)
        else:
            run.draft.state("train.attention", word, given.place)


def _kernels(run: Run) -> None:
    draft, bag = run.draft, run.bag
    plugins = bag.take("plugins")
    for name in plugins.value if plugins is not None and isinstance(plugins.value, list) else []:
        if plugins is not None and "cut_cross_entropy" in str(name):
            add_kernel(draft, "cut-cross-entropy", plugins.place)
            draft.infer("train.loss.kind", "fused-linear", "cut cross entropy joins head and loss")
    fused = bag.take("liger_fused_linear_cross_entropy")
    for key in LIGER:
        given = bag.take(key)
        if given is not None and boolean(given.value):
            add_kernel(draft, "liger", given.place)
    if fused is not None and boolean(fused.value):
        add_kernel(draft, "liger", fused.place)
        draft.state("train.loss.kind", "fused-linear", fused.place)
    elif "liger" in (draft.value("train.kernels") or []):
        draft.infer("train.loss.kind", "standard", "liger_fused_linear_cross_entropy is off")
    cut = bag.take("cut_cross_entropy")
    if cut is not None and boolean(cut.value):
        add_kernel(draft, "cut-cross-entropy", cut.place)
    chunked = bag.take("chunked_cross_entropy")
    if chunked is not None and boolean(chunked.value):
        draft.state("train.loss.kind", "chunked", chunked.place)


def _adapter(run: Run) -> None:
    draft, bag = run.draft, run.bag
    kind = bag.take("adapter")
    all_linear = bag.take("lora_target_linear")
    if kind is None or str(kind.value) == "None":
        bag.ignore(key for key in list(bag) if key.startswith(("lora_", "peft_")) and "kernel" not in key)
        packed = bag.take("load_in_4bit", "load_in_8bit", "gptq")
        if packed is not None and boolean(packed.value):
            draft.find("packed-without-adapter", "error", packed.place, "packed weights cannot be trained, and no adapter is named", "set adapter: qlora")
        return
    word = str(kind.value).casefold()
    read_lora(run, kind=KINDS.get(word, word), place=kind.place)
    if all_linear is not None and boolean(all_linear.value):
        draft.state("train.adapter.targets", "all-linear", all_linear.place)
    _packed(run, kind, word)


def _packed(run: Run, kind: Given, word: str) -> None:
    """axolotl's own BitsAndBytesConfig is nf4, double, with storage in bf16; `bnb_config_kwargs` replaces its parts."""
    draft, bag = run.draft, run.bag
    gptq = bag.take("gptq")
    if gptq is not None and boolean(gptq.value):
        draft.state("train.quantization.format", "gptq", gptq.place)
        return
    inner = bag.sub("bnb_config_kwargs")
    switch = bag.peek("load_in_4bit")
    for key in list(inner):
        if (given := inner.take(key)) is not None and key in ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage"):
            draft.state(*_bnb(key, given), given.place)
    packed = read_bitsandbytes(run, usual_type="nf4", usual_double=True, of="axolotl")
    four = draft.value("train.quantization.format") == "nf4"
    if packed and four:
        draft.default("train.quantization.storage", "bf16", of="axolotl")
    if word == "qlora" and not packed:
        draft.find("qlora-without-4bit", "error", kind.place, "adapter: qlora asks for load_in_4bit: true, which is not set", "set load_in_4bit: true")
    if word == "lora" and packed and four and switch is not None:
        draft.find("lora-with-4bit", "error", switch.place, "axolotl refuses load_in_4bit with adapter: lora", "set adapter: qlora")


def _bnb(key: str, given: Given) -> tuple[str, object]:
    if key == "bnb_4bit_quant_type":
        return "train.quantization.format", str(given.value)
    if key == "bnb_4bit_use_double_quant":
        return "train.quantization.double", boolean(given.value)
    return "train.quantization.storage", dtype_word(given.value)


def _recompute(run: Run) -> None:
    """`offload` is a kind of recomputation: the kept inputs wait in host memory."""
    draft, bag = run.draft, run.bag
    given = bag.peek("gradient_checkpointing")
    if given is not None and str(given.value).startswith("offload"):
        bag.take("gradient_checkpointing")
        draft.state("train.recompute.policy", "full", given.place)
        draft.state("train.recompute.offload", True, given.place)
        draft.infer("train.offload.activations", "nvme" if given.value == "offload_disk" else "cpu", f"gradient_checkpointing: {given.value}")
    elif given is not None and given.value == "unsloth":
        draft.state("train.recompute.offload", True, given.place)
    offload = bag.take("activation_offloading")
    if offload is not None and (boolean(offload.value) or offload.value in ("legacy", "disk", "hidden_states")):
        draft.state("train.offload.activations", "nvme" if offload.value == "disk" else "cpu", offload.place)
    # use_reentrant is unset = True unless a preference method or part of the parameters is trained
    newer = bag.peek("rl") is not None or bool((bag.peek("unfrozen_parameters") or Given(None, run.place("rl"))).value)
    read_recompute(run, Usual("axolotl", reentrant=not newer))


def _sharding(run: Run) -> None:
    draft, bag = run.draft, run.bag
    accelerate.attached(run)
    deepspeed.attached(run, bag.take("deepspeed"))
    given, config, version = bag.take("fsdp"), bag.sub("fsdp_config"), bag.take("fsdp_version")
    words = [str(word).casefold() for word in given.value] if given is not None and isinstance(given.value, list) else []
    if not words and not list(config) and version is None:
        return
    strategy = next((word for word in words if word in ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard")), None)
    read_fsdp(config, draft, usual_version=1, framework="axolotl", strategy=Given(strategy, given.place) if strategy and given else None, version=version)
    if "offload" in words and given is not None:
        draft.state("train.offload.params", "cpu", given.place)


def _method(run: Run) -> None:
    given = run.bag.take("rl")
    if given is not None:
        word = str(given.value).casefold()
        run.draft.state("train.extra.rlhf_type", METHODS.get(word, word), given.place)
    for key in ("reward_model", "process_reward_model"):
        if run.switch(key):
            run.state("train.extra.task", key, key)


def _parts(run: Run) -> None:
    """What trains of a full fine-tune, and methods that train a part at a time."""
    draft = run.draft
    unfrozen = run.bag.take("unfrozen_parameters")
    if unfrozen is not None and unfrozen.value:
        draft.state("train.extra.unfrozen_parameters", unfrozen.value, unfrozen.place)
        draft.find(
            "unfrozen-parts",
            "warning",
            unfrozen.place,
            "only the parameters that match unfrozen_parameters train; the job here counts all of them as trained",
            "list what is frozen as train.freeze",
        )
    for key, message in (("relora_steps", "ReLoRA"), ("relora", "ReLoRA"), ("lisa_n_layers", "LISA")):
        given = run.bag.take(key)
        if given is not None and boolean(given.value) is not False:
            draft.find("method-not-counted", "warning", given.place, f"{message} trains parts in turn, which is not worked out: the usual step is counted")
    finder = run.bag.take("auto_find_batch_size")
    if finder is not None and boolean(finder.value):
        draft.find(
            "batch-is-found",
            "warning",
            finder.place,
            "auto_find_batch_size halves the batch after running out of memory: the batch stated is only where it starts",
        )


def _defaults(run: Run) -> None:
    draft = run.draft
    total = run.bag.take("batch_size")
    if total is not None:
        draft.find(
            "batch-size-old",
            "warning",
            total.place,
            "batch_size is micro_batch_size x accumulation of all GPUs, and axolotl advises against it",
            "set micro_batch_size",
        )
    for key, job in (("sequence_len", "train.seq_len"), ("micro_batch_size", "train.micro_batch"), ("gradient_accumulation_steps", "train.grad_accum")):
        value, since = defaults.value("axolotl", key, run.context.version)
        if value is not None:
            draft.default(job, int(value), since)
    if "train.optimizer.name" not in draft:
        value, since = defaults.value("axolotl", "optimizer", run.context.version)
        for key, setting in optimizer_settings(value or "adamw_torch_fused").items():
            draft.default(key, setting, since)
