"""Accounts for LitGPT's scripts: finetune lora, adapter, adapter_v2 and full, and the eager pretraining of its thunder extension."""

from __future__ import annotations

from typing import Any

from everybyte.basics.dtypes import FP32
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of, inferred
from everybyte.catalog.releases import Release
from everybyte.engines.litgpt.extra import Keys
from everybyte.engines.litgpt.linear import LORA, PROMPT, SCALED
from everybyte.engines.litgpt.network import Script, rendition
from everybyte.engines.litgpt.release import release_of
from everybyte.engines.litgpt.several import spread_of
from everybyte.job import InlineModel, Job, Train
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Adapter, Kernels, Packed, Setup
from everybyte.ledger.build import Line, plain
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.parallel_plan import rank_of
from everybyte.rules.from_job.recipe import Defaults, batch_of, kernels_of, optimizer_of, packed_of, precision_of, refuse_towers
from everybyte.rules.from_job.recompute import recompute_of
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.training import training

ROLES = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "projection",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
    "fc_1": "mlp",
    "fc_2": "mlp",
    "fc": "mlp",
    "proj": "projection",
    "lm_head": "head",
    **{role: role for role in ("query", "key", "value", "projection", "mlp", "head")},
}
"""Names of linear layers -> LitGPT's `lora_...` switches."""
SCALED_NORMS = ("*norm_1*", "*norm_2*", "*ln_f*")
"""litgpt/adapter_v2.py adapter_filter: what is trained beside the adapters."""

ROPE_SOURCE = "litgpt/model.py rope_cache: cos and sin of every position in fp32, one buffer for all layers"
STABLE_SOURCE = "bitsandbytes StableEmbedding trains its table, the optimizer was made before it was put in: its gradient is never stepped nor freed"


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of a script. Raises BadInput or Unsupported with the key's path."""
    assert job.train is not None
    train, choices = job.train, ResolvedSettings()
    if train.compile:
        choices.assume(COMPILED)
    refuse_towers(network, "LitGPT")
    release = release_of(train.version)
    choices.note("train.version", release.title, "given" if train.version else default_of("everybyte, the latest release it knows"))
    recipe = _recipe(train, network, release, choices)
    found = spread_of(job, network, recipe, release, choices)
    recipe = found.recipe
    form = rendition(network, _script(job, recipe, release, choices))
    extra = [_rope_line(form, recipe)]
    if recipe.setup.input_grads:
        size = recipe.setup.weights.nbytes(network.vocab * network.hidden)
        text = plain("e·V·h", e=recipe.setup.weights.block_bytes, V=network.vocab, h=network.hidden)
        extra.append(Line("gradients/embedding", "gradient", size, text, STABLE_SOURCE))
    bill = training(form, found.recipe, device.compute_capability, tuple(extra), found.layout)
    return Account((rank_of(bill, found, job, device),), choices, bill.trained_params)


COMPILED = (
    "train.compile: a compiled block keeps what torch.compile's partitioner keeps: no results of pointwise operations but those that a matrix product or "
    "attention reads; thunder's own fusions keep up to as much as the eager block"
)


def _recipe(train: Train, network: Network, release: Release, choices: ResolvedSettings) -> Recipe:
    choices.note("train.framework", "litgpt", "given")
    quantized = train.quantization is not None and train.quantization.format is not None
    defaults = Defaults(
        release.title,
        seq_len=512,
        precision="bf16" if quantized else "bf16-mixed",
        optimizer="paged_adamw_32bit" if quantized else "adamw",
        packed_skip=(),
        batch_bytes_per_token=16,
        loss=lambda train, choices: "litgpt",
        impl="fused" if _pretrains(train) else "foreach",
        kernels=Kernels(holds_linear_inputs=quantized and release.has("holds_inputs")),
    )
    weights, compute, master, gradient, state = precision_of(train, defaults, choices)
    if master is not None:
        raise Unsupported("train.precision", "Fabric keeps no master copy of 16-bit weights: say bf16, bf16-mixed or fp32")
    packed = packed_of(train, defaults, choices)
    adapter = _adapter(train, weights, defaults, choices)
    _check_packed(packed, adapter, mixed=compute is not None)
    batch = batch_of(train, network, defaults, choices)
    setup = Setup(
        weights=weights,
        compute=compute,
        trainable=("*",) if adapter is None else (SCALED_NORMS if adapter.kind == SCALED else ()),
        adapter=adapter,
        packed=packed,
        kernels=kernels_of(train, defaults, choices),
        single=batch.b == 1,
        dropout=train.dropout,
        input_grads=packed is not None and release.has("stable_embedding"),
    )
    usual = 1 if is_benchmark(train) else max(16 // batch.b, 1)
    accumulation = choices.pick("train.grad_accum", train.grad_accum, usual, default_of(release.title))
    if release.has("longest_first"):
        choices.assume("seq_len is that of the longest sample, which the script puts into its first micro-batch; later ones are shorter")
    return Recipe(
        setup=setup,
        batch=batch,
        optimizer=optimizer_of(train, defaults, choices, master, state),
        recompute=recompute_of(train, defaults.recomputing, choices),
        gradient=gradient,
        stream=weights,
        gradients_live="always" if accumulation > 1 else "backward",
        batch_bytes_per_token=16,
        graph_outlives=not release.has("longest_first"),
    )


def _check_packed(packed: Packed | None, adapter: Adapter | None, *, mixed: bool) -> None:
    if packed is None:
        return
    if packed.format not in ("nf4", "fp4"):
        raise Unsupported("train.quantization.format", f"{packed.format!r} is not supported for LitGPT; supported: nf4 and fp4")
    if adapter is None:
        raise BadInput("train.quantization", "packed weights cannot be trained: give an adapter (train.adapter), or leave the quantization out")
    if mixed:
        raise Unsupported("train.precision", "LitGPT refuses quantization together with mixed precision: say bf16 or fp16")


def is_benchmark(train: Train) -> bool:
    """Thunder's benchmark of LitGPT's models (lightning-thunder thunder/benchmarks/benchmark_litgpt.py): a loop of its own without Fabric, one micro-batch
    a step, and the loss on the logits as the model makes them."""
    return "benchmark_litgpt" in (train.version or "")


def _pretrains(train: Train) -> bool:
    """The thunder extension's script, the only eager one that calls the loss on all logits at once."""
    return train.adapter is None and ((train.loss is not None and train.loss.kind == "standard") or section(train.extra, Keys).chunk_size == 0)


def _adapter(train: Train, weights: Any, defaults: Defaults, choices: ResolvedSettings) -> Adapter | None:
    given = train.adapter
    if given is None:
        return None
    kind = choices.pick("train.adapter.kind", given.kind, LORA, inferred("an adapter without kind"))
    if kind not in (LORA, PROMPT, SCALED):
        raise Unsupported("train.adapter.kind", f"{kind!r} is not in LitGPT; {LORA}, {PROMPT} and {SCALED} are")
    if kind != LORA:
        return Adapter(kind, 0, (), weights)
    rank = choices.pick("train.adapter.rank", given.rank, 8, default_of(defaults.framework))
    rate = choices.pick("train.extra.lora_dropout", section(train.extra, Keys).lora_dropout, 0.05, default_of(defaults.framework))
    return Adapter(kind, rank, _roles(train, choices, defaults), weights, float(rate))


def _roles(train: Train, choices: ResolvedSettings, defaults: Defaults) -> tuple[str, ...]:
    """The `lora_...` switches: from the adapter's targets, else from train.extra, else query and value."""
    listed = train.adapter.targets if train.adapter else None
    switches = ("query", "key", "value", "projection", "mlp", "head")
    if listed == "all-linear":
        return switches
    if listed is not None:
        wrong = next((name for name in listed if name not in ROLES), None)
        if wrong is not None:
            raise BadInput("train.adapter.targets", f"{wrong!r} is not a linear layer of LitGPT; known: {', '.join(ROLES)}")
        return tuple(role for role in switches if role in {ROLES[name] for name in listed})
    keys = section(train.extra, Keys)
    chosen = tuple(role for role in switches if getattr(keys, f"lora_{role}"))
    choices.note("train.adapter.targets", list(chosen), default_of(defaults.framework))
    return chosen


def _script(job: Job, recipe: Recipe, release: Release, choices: ResolvedSettings) -> Script:
    train = job.train
    assert train is not None
    adapter = recipe.setup.adapter
    keys = section(train.extra, Keys)
    chunk = 0 if adapter is None else keys.lm_head_chunk_size
    prompted = adapter is not None and adapter.kind in (PROMPT, SCALED)
    assumed = isinstance(job.model, InlineModel) and isinstance(job.model.shape, dict) and job.model.shape.get("family") == "gpt"
    if assumed:
        choices.assume("a shape does not say how the branches of a block are joined: side by side, with a norm each, as in LitGPT's default Config")
    return Script(
        release,
        chunk,
        0 if _pretrains(train) else (chunk or keys.chunk_size),
        keys.adapter_prompt_length if prompted else 0,
        keys.adapter_start_layer if prompted else 0,
        recipe.setup.input_grads,
        bool(train.compile),
        not is_benchmark(train),
        assumed,
    )


def _rope_line(form: Network, recipe: Recipe) -> Line:
    """cos and sin reach as far as the longest sample."""
    width, length = form.runs[0].layer.sizes.rotary, recipe.batch.s
    return Line("buffers/rope", "parameter", FP32.nbytes(2 * length * width), plain("2·4·s·d", s=length, d=width), ROPE_SOURCE, "formula")
