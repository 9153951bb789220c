"""What transformers' TrainingArguments say, for every framework whose trainer is built on them."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.formats.place import Given
from everybyte.formats.table import table
from everybyte.formats.training import accelerate, deepspeed
from everybyte.formats.training.fsdp import read_fsdp
from everybyte.formats.training.run import Run
from everybyte.formats.training.words import add_kernel, dtype_word
from everybyte.formats.values import boolean

DTYPE = ("torch_dtype", "dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype", "model_kwargs.dtype", "model_kwargs.torch_dtype")
RECOMPUTE = ("gradient_checkpointing", "grad_checkpoint", "activation_checkpointing", "use_gradient_checkpointing")
REENTRANT = (
    "gradient_checkpointing_kwargs.use_reentrant",
    "activation_checkpointing_kwargs.use_reentrant",
    "use_reentrant",
    "gradient_checkpointing_use_reentrant",
)
FLASH = ("use_flash_attn", "use_flash_attention_2", "use_flash_attention", "flash_attn", "flash_attention", "use_flash_attn_2", "use_flash_attn2")


class Usual(NamedTuple):
    """What a framework does where its arguments are silent."""

    framework: str
    recompute: bool = False
    recompute_since: str = ""
    reentrant: bool = False
    """use_reentrant of its recompute where nobody says; transformers 5 has False."""
    autocast: str = ""
    """`bf16` where the framework turns it on by itself."""
    autocast_since: str = ""
    loads: str = ""
    """What a base is loaded in where nobody says: a number format, or empty if the engine's rule holds."""
    loads_since: str = ""
    loads_as_computed: bool = False
    """The base is loaded in the type that autocast computes in."""


def read_arguments(run: Run, usual: Usual) -> None:
    """States the settings of the trainer, its precision and how it is sharded."""
    read_precision(run, usual)
    read_recompute(run, usual)
    for key in FLASH:
        given = run.bag.take(key)
        if given is not None and boolean(given.value) and "train.attention" not in run.draft:
            run.draft.state("train.attention", "flash2", given.place)
    for key in ("use_liger_kernel", "use_liger", "enable_liger_kernel", "liger_kernel"):
        given = run.bag.take(key)
        if given is not None and boolean(given.value):
            add_kernel(run.draft, "liger", given.place)
    table("training/hf.csv").read(run.bag, run.draft)
    finder = run.bag.take("auto_find_batch_size")
    if finder is not None and boolean(finder.value):
        run.draft.find(
            "batch-is-found",
            "warning",
            finder.place,
            "auto_find_batch_size halves the batch after running out of memory: the batch stated is only where it starts",
        )
    read_optim_args(run)
    read_sharding(run)


def read_precision(run: Run, usual: Usual) -> None:
    """Hugging Face's `bf16` is autocast over weights in the type they were loaded in; without it all computes in that type."""
    draft = run.draft
    loaded = run.bag.take(*DTYPE)
    word = dtype_word(loaded.value) if loaded is not None else None
    flags = {kind: run.bag.take(kind) for kind in ("bf16", "fp16")}
    on = next(((kind, given) for kind, given in flags.items() if given is not None and boolean(given.value)), None)
    stated_off = any(given is not None and boolean(given.value) is False for given in flags.values())
    if on is not None:
        draft.state("train.precision", f"{on[0]}-mixed", on[1].place)
    elif usual.autocast and not stated_off:
        draft.default("train.precision", f"{usual.autocast}-mixed", usual.autocast_since, usual.framework)
    elif word is not None and loaded is not None:
        draft.state("train.precision", word, loaded.place)
        return
    elif stated_off and all(given is not None for given in flags.values()):
        draft.infer("train.precision", "fp32", "neither bf16 nor fp16 is on")
    _loaded(run, usual, loaded, word)


def _loaded(run: Run, usual: Usual, loaded: Given | None, word: str | None) -> None:
    """The type of the stored weights, where it is another than autocast's fp32."""
    draft = run.draft
    precision = str(draft.value("train.precision") or "")
    if not precision.endswith("-mixed"):
        return
    if word is not None and loaded is not None:
        if word != "fp32":
            draft.state("train.dtypes.weights", word, loaded.place)
    elif usual.loads_as_computed:
        draft.infer("train.dtypes.weights", precision.split("-", maxsplit=1)[0], f"{usual.framework} loads the base in the type that it computes in")
    elif usual.loads and usual.loads != "fp32":
        draft.default("train.dtypes.weights", usual.loads, usual.loads_since, usual.framework)


def read_recompute(run: Run, usual: Usual) -> None:
    """Whole layers are computed again, by torch's reentrant way or the newer one."""
    draft = run.draft
    given, reentrant = run.bag.take(*RECOMPUTE), run.bag.take(*REENTRANT)
    run.bag.take("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")
    if given is not None and isinstance(given.value, str) and given.value.casefold() == "unsloth":
        draft.state("train.recompute.policy", "full", given.place)
        draft.state("train.recompute.offload", True, given.place)
        return
    if given is not None and not draft.stated("train.recompute.policy"):
        draft.state("train.recompute.policy", "full" if boolean(given.value) else "none", given.place)
    elif "train.recompute.policy" not in draft:
        draft.default("train.recompute.policy", "full" if usual.recompute else "none", usual.recompute_since, usual.framework)
    on = draft.value("train.recompute.policy") == "full"
    if reentrant is not None:
        if on:
            draft.state("train.recompute.reentrant", boolean(reentrant.value), reentrant.place)
        else:
            draft.find("reentrant-without-recompute", "note", reentrant.place, "use_reentrant is set, and no activations are computed again")
    elif on:
        draft.default("train.recompute.reentrant", usual.reentrant, of=usual.framework)
    every = run.whole("activation_checkpointing_kwargs.every_n_layers", "gradient_checkpointing_kwargs.every_n_layers")
    run.state("train.recompute.every", every, "activation_checkpointing_kwargs.every_n_layers")
    if run.switch("activation_checkpointing_kwargs.offload", "activation_offloading"):
        run.state("train.offload.activations", "cpu", "activation_checkpointing_kwargs.offload", "activation_offloading")


def read_optim_args(run: Run) -> None:
    """`rank=128, update_proj_gap=200` of GaLore and APOLLO."""
    given = run.bag.take("optim_args")
    if given is None:
        return
    pairs = dict(part.split("=", 1) for part in str(given.value).replace(" ", "").split(",") if "=" in part)
    if pairs.get("rank", "").isdigit():
        run.draft.state("train.optimizer.rank", int(pairs["rank"]), given.place)


def read_sharding(run: Run) -> None:
    """accelerate's file or launcher, DeepSpeed's file, FSDP's keys: one of them decides."""
    accelerate.attached(run)
    given = run.bag.take("deepspeed", "deepspeed_config", "ds_config")
    zero = run.bag.take("zero_stage", "deepspeed_stage")
    has_file = deepspeed.attached(run, given)
    if zero is not None and not has_file and str(zero.value).isdigit():
        run.draft.state("train.sharding", f"zero{zero.value}" if int(zero.value) else "ddp", zero.place)
        precision = str(run.draft.value("train.precision") or "")
        if precision.endswith("-mixed"):
            run.draft.state("train.precision", precision.replace("-mixed", "-master"), run.draft.place("train.precision"))
    offload = run.bag.take("offload", "offload_optimizer")
    if offload is not None and boolean(offload.value) and str(run.draft.value("train.sharding") or "").startswith("zero"):
        run.draft.state("train.offload.optimizer", "cpu", offload.place)
    _fsdp(run)
    _parallelism(run)


def _fsdp(run: Run) -> None:
    """`fsdp: full_shard auto_wrap offload` with `fsdp_config`."""
    given, config = run.bag.take("fsdp"), run.bag.sub("fsdp_config")
    words = _fsdp_words(given)
    if not words and not (given is not None and boolean(given.value)) and not list(config):
        return
    strategy = next((word for word in words if word in ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard")), None)
    place = given.place if given is not None else None
    if given is None and "train.sharding" in run.draft:
        return
    read_fsdp(
        config,
        run.draft,
        usual_version=1 if strategy else 2,
        framework="transformers",
        strategy=Given(strategy, place) if strategy and place else None,
        version=run.bag.take("fsdp_version"),
    )
    if "offload" in words and place is not None:
        run.draft.state("train.offload.params", "cpu", place)


def _fsdp_words(given: Given | None) -> list[str]:
    if given is None or isinstance(given.value, bool):
        return []
    parts = given.value if isinstance(given.value, list) else str(given.value).split()
    return [str(part).casefold().strip("[],'\"") for part in parts]


MESH = {"tp_size": "tp", "cp_size": "cp", "sp_size": "ulysses", "dp_shard_size": "dp_shard", "dp_replicate_size": "dp_replicate"}


def _parallelism(run: Run) -> None:
    inner = run.bag.sub("parallelism_config")
    for key, axis in MESH.items():
        given = inner.take(key, f"parallelism_config_{key}")
        if given is not None and str(given.value).isdigit() and int(given.value) > 1:
            run.draft.state(f"train.mesh.{axis}", int(given.value), given.place)
    inner.ignore(
        [
            *(
                f"parallelism_config_{name}"
                for name in ("cp_backend", "sp_backend", "cp_comm_strategy", "sp_seq_length_is_variable", "sp_attn_implementation", "sp_seq_length")
            ),
            "cp_backend",
            "sp_backend",
        ]
    )
    run.draft.report(inner)
