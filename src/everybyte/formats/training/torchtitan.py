"""torchtitan: TOML files (until v0.2.2), the flags over them, and `MODULE=llama3 CONFIG=llama3_8b ./run_train.sh` of the Python registry."""

from __future__ import annotations

import re

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.flags import Spelling
from everybyte.formats.table import table
from everybyte.formats.training.builders import model_of, models_of
from everybyte.formats.training.run import Run, finished, of_command, of_document
from everybyte.formats.training.words import dtype_word
from everybyte.formats.values import boolean, names, whole

FILE = "training/torchtitan.csv"


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A TOML file."""
    return _read(of_document(document, context, "torchtitan"), old=True)


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`./run_train.sh`, `torchtitan/train.py --job.config_file x.toml --training.seq_len 8192`."""
    run = of_command(command, context, "torchtitan", Spelling(known=table(FILE).known), ("job.config_file", "config_file"))
    file = command.env.get("CONFIG_FILE")
    if file is not None and isinstance(file.value, str) and (document := context.document(file.value, command.files)) is not None:
        run = run._replace(bag=run.bag.over(document.bag()))
    module, config = (command.env.get(name) or run.bag.take(name.casefold()) for name in ("MODULE", "CONFIG"))
    if config is not None:
        _registered(run, str(module.value) if module is not None else "", str(config.value), str(config.place))
    gpus = command.env.get("NGPU")
    if gpus is not None and (count := whole(gpus.value)):
        run.draft.state("hardware.gpus", count, gpus.place)
    return _read(run, old=config is None)


def _registered(run: Run, module: str, function: str, place: str) -> None:
    """The model of a function of the registry, by its name: `llama3_8b`, `llama3_8b_float8`, `qwen3_30b_a3b`."""
    rest = re.sub(rf"^{re.escape(module)}_?", "", function.casefold()).replace("_", "-")
    builders = {name.partition(" ")[2]: model for name, model in models_of("torchtitan").items() if name.startswith(module.casefold() + " ")}
    flavors = sorted((flavor for flavor in builders if rest.startswith((flavor.replace(".", "-"), flavor))), key=len)
    if flavors:
        run.draft.infer("model", builders[flavors[-1]], f"CONFIG={function} at {place}")
    else:
        run.draft.miss("model", f"CONFIG={function} is no function of the registry that is known here")
    if "float8" in rest:
        run.draft.infer("train.precision", "fp8", f"CONFIG={function}")


def _read(run: Run, *, old: bool) -> list[JobDraft]:
    draft = run.draft
    draft.infer("train.framework", "torchtitan", "its names of settings")
    _model(run)
    _precision(run)
    _sharding(run)
    _recompute(run, old=old)
    table(FILE).read(run.bag, draft)
    _rest(run, old=old)
    return finished(run)


def _model(run: Run) -> None:
    name, flavor, assets = (run.bag.take(f"model.{key}") for key in ("name", "flavor", "hf_assets_path"))
    if name is None and flavor is None:
        return
    builder = f"{name.value if name is not None else ''} {flavor.value if flavor is not None else ''}"
    model = model_of("torchtitan", builder)
    if model is not None:
        run.draft.infer("model", model, f"model {builder} at {(flavor or name or assets).place}")  # type: ignore[union-attr]  # one of the two is given
    else:
        run.draft.miss("model", f"the model {builder} is not known here")


def _precision(run: Run) -> None:
    draft, bag = run.draft, run.bag
    stored, compute = bag.take("training.dtype"), bag.take("training.mixed_precision_param")
    listed = bag.take("model.converters")
    converters = (names(listed.value) if listed is not None else None) or []
    eight = next((name for name in converters if "float8" in name or "mx" in name), None)
    has_tables = any(key.startswith(("float8.", "quantize.", "mx.")) for key in bag)
    bag.ignore(key for key in list(bag) if key.startswith(("float8", "quantize", "mx.")))
    if eight is not None:
        draft.state("train.precision", "fp8", bag.place("model.converters") or run.path)
    elif stored is not None and dtype_word(stored.value) in ("bf16", "fp16"):
        draft.state("train.precision", dtype_word(stored.value), stored.place)
    elif compute is not None and dtype_word(compute.value) in ("bf16", "fp16", "fp32"):
        word = dtype_word(compute.value)
        draft.state("train.precision", "fp32" if word == "fp32" else f"{word}-mixed", compute.place)
    else:
        draft.default("train.precision", "bf16-mixed", of="torchtitan")
    if has_tables and eight is None:
        draft.find(
            "float8-without-converter",
            "warning",
            bag.place("float8.enable_fsdp_float8_all_gather") or run.path,
            "the float8 settings have no effect without the converter",
            'add "quantize.linear.float8" to model.converters',
        )


def _sharding(run: Run) -> None:
    draft, bag = run.draft, run.bag
    shard = bag.take("parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree")
    replicate = run.whole("parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree") or 1
    size = whole(shard.value) if shard is not None else -1
    reshard = bag.take("parallelism.fsdp_reshard_after_forward", "training.fsdp_reshard_after_forward")
    if shard is not None and size and size > 0:
        draft.state("train.mesh.dp_shard", size, shard.place)
    if size == 1 and shard is not None:
        draft.infer("train.sharding", "ddp" if replicate > 1 else "none", f"data_parallel_shard_degree is 1 at {shard.place}")
    elif reshard is not None and str(reshard.value) in ("never", "false", "False"):
        draft.state("train.sharding", "fsdp2-no-reshard", reshard.place)
    elif replicate > 1:
        draft.infer("train.sharding", "hsdp", "replicas of sharded groups")
    else:
        draft.default("train.sharding", "fsdp2", of="torchtitan")
    offload = bag.take("training.enable_cpu_offload")
    if offload is not None and boolean(offload.value):
        draft.state("train.offload.params", "cpu", offload.place)


def _recompute(run: Run, *, old: bool) -> None:
    draft, bag = run.draft, run.bag
    mode, option = bag.take("activation_checkpoint.mode"), bag.take("activation_checkpoint.selective_ac_option")
    word = str(mode.value).casefold() if mode is not None else ""
    if mode is not None and word in ("none", "selective", "full"):
        draft.state("train.recompute.policy", word, mode.place)
    elif mode is not None and word == "memory_budget":
        draft.state("train.recompute.policy", "selective", mode.place)
    else:
        draft.default("train.recompute.policy", "selective", of="torchtitan")
    if option is not None and draft.value("train.recompute.policy") == "selective":
        every = whole(option.value)
        if every:
            draft.state("train.recompute.every", every, option.place)


def _rest(run: Run, *, old: bool) -> None:
    draft, bag = run.draft, run.bag
    impl, fused = bag.take("optimizer.implementation"), bag.take("optimizer.fused")
    if impl is not None and str(impl.value) in ("fused", "foreach", "for-loop"):
        draft.state("train.optimizer.impl", str(impl.value), impl.place)
    elif fused is not None and boolean(fused.value):
        draft.state("train.optimizer.impl", "fused", fused.place)
    if "train.compile" not in draft:
        draft.default("train.compile", False, of="torchtitan")
    total, tokens = bag.take("training.global_batch_size"), bag.take("training.num_tokens_per_train_step")
    for given in (total, tokens):
        if given is not None and (whole(given.value) or 0) > 0:
            draft.state(f"train.extra.training.{'global_batch_size' if given is total else 'num_tokens_per_train_step'}", whole(given.value), given.place)
    micro = bag.take("parallelism.pipeline_parallel_microbatch_size")
    local = draft.value("train.micro_batch")
    if micro is not None and (draft.value("train.mesh.pp") or 1) > 1 and isinstance(local, int) and (size := whole(micro.value)) and local % size == 0:
        draft.infer("train.pipeline.microbatches", local // size, f"local batch {local} / {size} at {micro.place}")
    length = draft.value("train.seq_len")
    count = draft.value("train.tokens")
    if count and length and count % length == 0:
        draft.infer("train.micro_batch", count // length, f"{count} tokens / {length}")
    elif not old and count is None:
        draft.default("train.tokens", 16384, of="torchtitan")
    if old and total is None and "train.grad_accum" not in draft:
        draft.default("train.grad_accum", 1, of="torchtitan")
