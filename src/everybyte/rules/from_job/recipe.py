"""From the train section of a job to a recipe. An engine states its defaults; the reading of the job is the same for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP16, FP32, DType, dtype
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of, inferred
from everybyte.basics.record import Record
from everybyte.catalog.releases import release_in
from everybyte.job import Hardware, Optimizer, Train
from everybyte.job.extra import Section, section
from everybyte.layers.common.prompts import virtual_tokens
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Adapter, AttentionKernel, ExpertsKernel, Kernels, Packed, Setup
from everybyte.layers.recording.size import Batch
from everybyte.rules.accounting.conventions import PLAIN, Conventions
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.adapters import adapter_of, frozen_of, prepared_types, trainable_of
from everybyte.rules.from_job.recompute import Usual, recompute_of
from everybyte.rules.optimizers.plan import BY_BLOCK, PROJECTED, OptimizerPlan, named, rule
from everybyte.rules.step.cache import passes_window, stores
from everybyte.rules.step.recipe import Recipe

ATTENTION: dict[str, AttentionKernel] = {"eager": "eager", "unfused": "eager", "sdpa": "sdpa", "flash2": "flash", "flash3": "flash", "flex": "flash"}


PEFT_LORA = Adapter("lora", 8, ("q_proj", "v_proj"))
"""peft's defaults for a Llama."""


class Defaults(Record, frozen=True):
    """What a framework does where the job is silent."""

    framework: str
    """As it is written in origins: `transformers 5.24`."""
    micro_batch: int = 1
    seq_len: int = 2048
    grad_accum: int = 1
    precision: str = "bf16"
    loads: Literal["as stated", "frozen in 16 bits", "all in 16 bits"] = "as stated"
    """What of a model is loaded in the compute type where the precision is mixed: a base under adapters, or all of it."""
    attention: str = "sdpa"
    recompute: str = "none"
    reentrant: bool = False
    offloads: bool = False
    """Inputs of recomputed blocks wait in host memory where the job is silent."""
    in_flight: int = 1
    """Kept inputs on their way to host memory, where activations are offloaded."""
    input_grads: bool = False
    """With any recomputing the framework makes the embedding's result need a gradient; reentrant blocks always need that."""
    optimizer: str = "adamw"
    impl: str = "foreach"
    adapter: Adapter = PEFT_LORA
    kbit_keeps: Callable[[Train], str] = lambda _: "all"
    """What the framework leaves in fp32 of a packed base that peft prepared: see adapter_from_job.prepared_types."""
    packed_skip: tuple[str, ...] = ("lm_head", "embed_out", "score")
    kernels: Kernels = msgspec.field(default_factory=Kernels)
    loss: Callable[[Train, ResolvedSettings], str] = lambda train, choices: "hf"
    batch_bytes_per_token: int = 24
    compiles: bool = False
    """The engine's kernels know what torch.compile does to it."""
    conventions: Conventions = PLAIN

    @property
    def recomputing(self) -> Usual:
        """What concerns recomputing."""
        return Usual(self.framework, self.recompute, self.reentrant, self.in_flight, self.offloads)


def recipe_of(train: Train, network: Network, defaults: Defaults, choices: ResolvedSettings) -> Recipe:
    """The recipe of a job. Raises BadInput or Unsupported with the key's path."""
    choices.pick("train.framework", train.framework, "pytorch", default_of("everybyte", "a plain PyTorch loop"))
    mind_unused(train, defaults, choices)
    weights, compute, master, gradient, state = precision_of(train, defaults, choices)
    adapter = adapter_of(train, network, defaults.framework, defaults.adapter, experts_of(train, defaults), choices)
    packed = packed_of(train, defaults, choices)
    if packed is not None and train.adapter is None:
        raise BadInput("train.quantization", "packed weights cannot be trained: give an adapter (train.adapter), or leave the quantization out")
    batch = batch_of(train, network, defaults, choices)
    tell_images(network, choices)
    kernels = kernels_of(train, defaults, choices)
    if any(cache.kind == "state" for store in stores(network) for cache in store.caches) and not SCANS & set(train.kernels or ()):
        choices.assume("layers with a recurrent state run the kernels of mamba-ssm, causal-conv1d and fla; without these packages: --kernels eager-scan")
    if adapter is not None:
        batch, kernels = with_virtual_tokens(batch, kernels, adapter)
    norms, outer = prepared_types(train, defaults.kbit_keeps(train), choices)
    recompute = recompute_of(train, defaults.recomputing, choices)
    setup = Setup(
        weights=weights,
        compute=compute,
        trainable=trainable_of(train),
        frozen=frozen_of(train, network),
        keeps_originals=train.adapter is not None,
        adapter=adapter,
        packed=packed,
        norm_weights=norms,
        outer_weights=outer,
        kernels=kernels,
        single=batch.b == 1,
        past_window=passes_window(network, batch.s),
        dropout=train.dropout,
        input_grads=recompute.mode == "reentrant" or (recompute.mode != "none" and defaults.input_grads),
    )
    optimizer = optimizer_of(train, defaults, choices, master, state)
    if optimizer.by_block:
        setup = replace(setup, frozen=(*setup.frozen, *OUTER_NAMES))
    keeps_zeroed = train.zero_grad_set_to_none is False
    accumulates = choices.pick("train.grad_accum", train.grad_accum, defaults.grad_accum, default_of(defaults.framework)) > 1
    return Recipe(
        setup=setup,
        batch=batch,
        optimizer=optimizer,
        recompute=recompute,
        gradient=gradient,
        stream=weights,
        gradients_live="never" if optimizer.in_backward else ("always" if accumulates or keeps_zeroed else "backward"),
        gradients_between=keeps_zeroed,
        batch_bytes_per_token=defaults.batch_bytes_per_token,
    )


def tell_images(network: Network, choices: ResolvedSettings) -> None:
    """Says what is taken for granted of images, which no key of a training job states."""
    for tower in network.towers:
        if tower.stem_dims and tower.name != "encoder":
            choices.assume(f"each sequence has one image: {tower.tokens_per_item:,} patches go through the vision tower")


def refuse_towers(network: Network, framework: str) -> None:
    """The framework's account has no vision tower: it is refused, never left out."""
    if any(tower.name != "encoder" for tower in network.towers):
        raise Unsupported("model", f"its vision tower is not supported for {framework} yet; give the language model alone (its text_config as model.config)")


def with_virtual_tokens(batch: Batch, kernels: Kernels, adapter: Adapter) -> tuple[Batch, Kernels]:
    """Prompts lengthen the sequence; a prefix lengthens keys and values alone, for which SDPA needs a mask."""
    more = virtual_tokens(adapter)
    if adapter.kind == "prefix":
        return batch._replace(t=batch.t + more), replace(kernels, masked=True)
    return batch._replace(s=batch.s + more, t=batch.t + more), kernels


def refuse_distributed(train: Train, hardware: Hardware | None, framework: str) -> None:
    """The account of a framework is for one GPU."""
    gpus = (hardware.gpus if hardware else None) or 1
    if gpus > 1:
        raise Unsupported("hardware.gpus", f"{gpus}: {framework} on several GPUs is not supported yet; supported: one GPU")
    if train.sharding not in (None, "none"):
        raise Unsupported("train.sharding", f"{train.sharding!r}: {framework} on several GPUs is not supported yet; supported: one GPU")
    mesh = train.mesh
    sizes = {} if mesh is None else {k: getattr(mesh, k) for k in ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep", "etp", "ulysses")}
    wide = next((k for k, v in sizes.items() if v is not None and v > 1), None)
    if wide is not None:
        raise Unsupported(f"train.mesh.{wide}", f"{sizes[wide]}: {framework} on several GPUs is not supported yet; supported: one GPU")
    refuse_offload(train)


def refuse_offload(train: Train) -> None:
    """Weights and states stay on the device."""
    if train.offload is not None and any(v not in (None, "none") for v in (train.offload.optimizer, train.offload.params)):
        raise Unsupported("train.offload", "offload of parameters and optimizer states is supported with DeepSpeed ZeRO only")


def mind_unused(train: Train, defaults: Defaults, choices: ResolvedSettings) -> None:
    """Says what the answer does not depend on, and refuses kernels that nobody here knows."""
    if train.compile and not defaults.compiles:
        choices.warn("train.compile: what torch.compile fuses is not worked out; the eager step is counted, which keeps more")
    unknown = [name for name in train.kernels or () if name not in KERNELS and name not in LOSS_KERNELS]
    if unknown:
        raise Unsupported("train.kernels", f"{unknown[0]!r} is not supported yet; supported: {', '.join(sorted([*KERNELS, *LOSS_KERNELS]))}")


def precision_of(train: Train, defaults: Defaults, choices: ResolvedSettings) -> tuple[DType, DType | None, DType | None, DType | None, DType | None]:
    """(weights, autocast type, master copy, gradients, optimizer states); None where it follows the weights or is not there."""
    word = choices.pick("train.precision", train.precision, defaults.precision, default_of(defaults.framework))
    if word == "fp8":
        raise Unsupported("train.precision", "fp8 compute is not supported for this framework yet; the nearest is bf16-mixed")
    half = FP16 if word.startswith("fp16") else BF16
    weights = FP32 if word == "fp32" or word.endswith("mixed") else half
    compute = half if word.endswith("mixed") else None
    if compute is not None and (train.dtypes is None or train.dtypes.weights is None) and _loads_narrow(train, defaults):
        choices.note("train.dtypes.weights", compute.name, default_of(defaults.framework))
        weights = compute
    master = FP32 if word.endswith("master") else None
    given = train.dtypes
    if given is None:
        return weights, compute, master, None, None
    weights = _dtype(given.weights, "weights") or weights
    stated = _dtype(given.compute, "compute")
    if stated is not None and stated != weights and compute is None:
        compute = stated
    master = None if given.master == "none" else (_dtype(given.master, "master") or master)
    return weights, compute, master, _dtype(given.grads, "grads"), _dtype(given.optimizer, "optimizer")


def _loads_narrow(train: Train, defaults: Defaults) -> bool:
    """Whether the framework's loader makes the weights in the compute type."""
    return defaults.loads == "all in 16 bits" or (defaults.loads == "frozen in 16 bits" and train.adapter is not None)


def _dtype(word: str | None, key: str) -> DType | None:
    return None if word in (None, "none") else dtype(str(word), f"train.dtypes.{key}")


def batch_of(train: Train, network: Network, defaults: Defaults, choices: ResolvedSettings) -> Batch:
    """The micro-batch: given in sequences, or in packed tokens."""
    if train.tokens is not None and train.micro_batch is None:
        length = choices.pick("train.seq_len", train.seq_len, train.tokens, inferred("one packed row of train.tokens"))
        rows = max(train.tokens // length, 1)
        choices.note("train.micro_batch", rows, inferred("train.tokens / train.seq_len"))
        return Batch(rows, length, length, network.memory(length))
    micro_batch = choices.pick("train.micro_batch", train.micro_batch, defaults.micro_batch, default_of(defaults.framework))
    usual, origin = (network.tokens, inferred("size of the model's images")) if network.tokens else (defaults.seq_len, default_of(defaults.framework))
    length = choices.pick("train.seq_len", train.seq_len, usual, origin)
    if network.max_positions and length > network.max_positions:
        choices.warn(f"train.seq_len {length:,} is longer than the {network.max_positions:,} positions that the model was made for")
    return Batch(micro_batch, length, length, network.memory(length))


def packed_of(train: Train, defaults: Defaults, choices: ResolvedSettings) -> Packed | None:
    """The packed format of the frozen base, or None."""
    given = train.quantization
    if given is None or given.format is None:
        return None
    framework = default_of(defaults.framework)
    group = choices.pick("train.quantization.group_size", given.group_size, 128 if given.format in ("gptq", "awq") else 64, framework)
    double = choices.pick("train.quantization.double", given.double, False, framework)
    # routers of mixtures are plain nn.Linear modules: bitsandbytes packs them, GPTQ and AWQ checkpoints leave them out
    skip = (*defaults.packed_skip, *((".gate", ".router", "shared_expert_gate") if given.format in ("gptq", "awq") else ()))
    experts = section(train.extra, RecipeKeys).quantize_moe_experts
    return Packed(given.format, skip, group, double=bool(double), bits=given.bits or 4, experts=experts)


class RecipeKeys(Section, frozen=True, kw_only=True):
    """Keys of train.extra that every framework's recipe reads."""

    quantize_moe_experts: bool = False
    """axolotl's: the joined experts of transformers 5, which are no linear layers, are packed too."""
    linearized_experts: bool = False
    """axolotl's llama4_linearized_experts: every expert is linear layers of its own."""
    optimizer_library: str = ""
    """Whose step runs, where a name means several: bitsandbytes, torchao."""


def kernels_of(train: Train, defaults: Defaults, choices: ResolvedSettings) -> Kernels:
    """The implementations that run."""
    word = choices.pick("train.attention", train.attention, defaults.attention, default_of(defaults.framework))
    if word not in ATTENTION:
        raise Unsupported("train.attention", f"{word!r} is not supported by {defaults.framework} yet; supported: {', '.join(ATTENTION)}")
    chosen: dict[str, Any] = {"attention": ATTENTION[word], "loss": defaults.loss(train, choices), "experts": experts_of(train, defaults), "scan": "fused"}
    for name in train.kernels or ():
        chosen.update(KERNELS.get(name, {}))
    return replace(defaults.kernels, slices_whole=release_in(train.version, "torch").has("slices_whole"), **chosen)


def experts_of(train: Train, defaults: Defaults) -> ExpertsKernel:
    """How the experts of a layer are run."""
    return "linears" if section(train.extra, RecipeKeys).linearized_experts else defaults.kernels.experts


KERNELS: dict[str, dict[str, str]] = {
    "liger": {"norm": "fused", "mlp": "fused", "rope": "fused"},
    "foak-rms": {"norm": "fused"},
    "foak-rope": {"rope": "fused"},
    "foak-fused-lora": {"lora": "fused"},
    "apex": {"norm": "fused"},
    "mamba-ssm": {"scan": "fused"},
    "fla": {"scan": "fused"},
    "eager-scan": {"scan": "eager"},
}
"""What a named kernel package replaces; losses are chosen by each engine. `eager-scan`: neither mamba-ssm nor fla is installed, so that transformers runs
its own plain operations."""
SCANS = frozenset({"mamba-ssm", "fla", "eager-scan"})
"""Names that say how layers with a recurrent state run."""
LOSS_KERNELS = ("cut-cross-entropy", "foak-ce", "foak-liger-flce")
"""Kernels that are a loss."""


def optimizer_of(train: Train, defaults: Defaults, choices: ResolvedSettings, master: DType | None, state: DType | None) -> OptimizerPlan:
    """The optimizer's plan: a name may say more than the rule, as `paged_adamw_8bit` does."""
    given = train.optimizer or Optimizer()
    origin = default_of(defaults.framework)
    name = choices.pick("train.optimizer.name", given.name, defaults.optimizer, origin)
    bits = STATE_BITS.get(given.state_dtype or "")
    library = section(train.extra, RecipeKeys).optimizer_library
    found = named(name, bits=bits, paged=bool(given.paged), library=library)
    key = found.key
    form = rule(key, given.rank)
    asked: str | None = given.impl
    if asked == "fused" and not form.fused:
        choices.warn(f"train.optimizer.impl: {name} has no fused step; its own is counted")
        asked = None
    usual = found.impl or (defaults.impl if form.fused or defaults.impl != "fused" else "foreach")
    impl = choices.pick("train.optimizer.impl", asked, usual if form.foreach is not None or usual == "fused" else "for-loop", origin)
    quantised = key.endswith(("8bit", "4bit", "fp8"))
    kind = state if quantised or given.state_dtype is None else dtype(given.state_dtype, "train.optimizer.state_dtype")
    if key == BY_BLOCK:
        master = FP32
        choices.assume("one block is trained at a time, the first: backward passes through all others; the outer tensors stay frozen")
    rank = given.rank or (PROJECTED[key].rank if key in PROJECTED else None)
    if found.paged:
        choices.warn("paged optimizer states are managed memory: they are not in the figures of PyTorch's allocator and may leave the device")
    return OptimizerPlan(key, impl, kind, master, rank, paged=found.paged, in_backward=bool(given.in_backward) or found.in_backward)


OUTER_NAMES = ("*lm_head.*", "*embed_out.*", "*score.*")
"""The head's parameters, which a step on one block leaves alone."""
STATE_BITS = {"int8": 8, "int4": 4}
"""state_dtype -> bits of quantised states."""
