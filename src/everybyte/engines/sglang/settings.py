"""What an SGLang job asks for, with the defaults of its version."""

from __future__ import annotations

from fractions import Fraction

from everybyte.basics.errors import BadInput
from everybyte.basics.origin import default_of, inferred
from everybyte.basics.record import Record
from everybyte.basics.units import MiB
from everybyte.catalog.gpus import Gpu, all_gpus
from everybyte.catalog.releases import Release
from everybyte.engines.sglang.extra import Keys
from everybyte.engines.sglang.fraction import SOURCE, FractionInputs, Reserve, resolve
from everybyte.engines.sglang.pool import PAGES, Slots
from everybyte.job import Job, Serve, ServeLora
from everybyte.layers.network import Network
from everybyte.rules.accounting.account import Device
from everybyte.rules.accounting.overhead import context
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.serving.lora_slots import Slots as Adapters
from everybyte.rules.serving.settings import captured, mesh_of, release_of
from everybyte.rules.serving.tensor_parallel import Cut, refuse_odd
from everybyte.rules.step.cache import is_latent

SPECULATIVE = {"mtp": "eagle", "nextn": "eagle", "eagle": "eagle", "eagle3": "eagle", "standalone": "standalone", "ngram": "ngram", "dflash": "dflash"}
"""Methods of speculative decoding -> how the rules call them."""
DEFAULT_CONTEXT = 4096
"""Where neither the job nor the network says how long a sequence may be."""


class Settings(Record, frozen=True):
    """One server, defaults filled in."""

    release: Release
    tp: int
    pp: int
    ep: int
    groups: int
    """Data-parallel groups of attention; 1 without enable_dp_attention."""
    context: int
    page: int
    running: int | None
    """max_running_requests where the job says."""
    most: int | None
    """max_total_tokens where the job says."""
    slots: Slots
    share: Fraction
    speculative: str
    chunk: int | None
    cut: Cut
    draft_layers: int = 0
    """Layers of the draft model, 0 for none."""
    lora: Adapters | None = None
    state_bytes: int = 0
    """Bytes of a number of recurrent states, 0: fp32 as the layers declare them."""


def settings_of(job: Job, network: Network, device: Device, keys: Keys, choices: ResolvedSettings) -> Settings:
    """Reads `serve` and `serve.extra`, whose keys are SGLang's own arguments, with - or _."""
    assert job.serve is not None
    serve = job.serve
    release = release_of(serve, "sglang", choices)
    mesh = mesh_of(job)
    tp, pp, ep = mesh.tp or 1, mesh.pp or 1, mesh.ep or 1
    by_group = keys.enable_dp_attention
    groups = (mesh.dp or 1) if by_group else 1
    if tp % groups:
        raise BadInput("serve.mesh.dp", f"{groups} groups of data-parallel attention do not divide tp {tp}")
    if tp % ep:
        raise BadInput("serve.mesh.ep", f"{ep} does not divide tp {tp}: experts are dealt out among the tensor-parallel ranks")
    heads = tp // groups
    refuse_odd(network, heads)
    dense = keys.moe_dense_tp_size or tp
    head = heads if keys.enable_dp_lm_head else tp
    cut = Cut(dense, heads, ep, tp // ep, 1 if by_group else tp, head)
    card = _card(device)
    usual = "ascend" if card is not None and card.vendor == "Huawei" else ""
    attention = (serve.attention or (keys.attention_backend or usual)).casefold().replace("-", "_")
    page = serve.block_size or keys.page_size or PAGES.get(attention, 1)
    choices.note("serve.block_size", page, default_of("SGLang") if attention not in PAGES else inferred(f"attention backend {attention}"))
    context = choices.pick("serve.context", serve.context, network.max_positions or DEFAULT_CONTEXT, inferred("the model's maximum"))
    running = serve.sequences or keys.max_running_requests
    ratio, share = keys.mamba_full_memory_ratio, keys.swa_full_tokens_ratio
    cached = not keys.disable_radix_cache
    method = (serve.draft.method or "standalone").casefold() if serve.draft else ""
    drafts = (serve.draft.tokens or 0) if serve.draft else 0
    slots = Slots(
        keys.max_mamba_cache_size,
        None if cached else running or 512,
        Slots().ratio if ratio is None else Fraction(str(ratio)),
        drafts,
    )
    if slots.asked and groups > 1:
        slots = Slots(slots.asked // groups, slots.running, slots.ratio, slots.drafts)
    return Settings(
        release,
        tp,
        pp,
        ep,
        groups,
        context,
        page,
        running,
        keys.max_total_tokens,
        slots,
        Fraction(str(share)) if share else Fraction(4, 5),
        SPECULATIVE.get(method, method),
        serve.batched_tokens,
        cut,
        0 if method in ("", "ngram") else keys.draft_layers or 1,
        _lora(serve, keys),
        2 if keys.mamba_ssm_dtype == "bfloat16" else 0,
    )


def _lora(serve: Serve, keys: Keys) -> Adapters | None:
    """--max-loras-per-batch (8) slots of --max-lora-rank."""
    asked = serve.lora
    if not asked and not keys.enable_lora:
        return None
    rank, count, targets = (asked.rank, asked.count, asked.targets) if isinstance(asked, ServeLora) else (None, None, None)
    count = count or keys.max_loras_per_batch or 8
    return Adapters(count, rank or keys.max_lora_rank or 16, targets or ())


def reserve_of(serve: Serve, s: Settings, network: Network, device: Device, known: dict[str, int], keys: Keys, choices: ResolvedSettings) -> Reserve:
    """mem_fraction_static: the job's, or the release's rule for this device."""
    total = _total(device, known, choices)
    sizes = captured(serve)
    towers = [tower for tower in network.towers if tower.name != "encoder"]
    vision = (sum(run.count for run in towers[0].runs), towers[0].hidden) if towers and serve.multimodal is not False else (0, 0)
    asked = FractionInputs(
        total,
        s.tp * s.pp,
        s.tp,
        s.groups,
        s.chunk,
        None if sizes is None else max(sizes, default=0),
        s.running,
        s.speculative,
        is_mla=is_latent(network),
        deepep=keys.moe_a2a_backend == "deepep",
        vision=vision,
    )
    rule = resolve(asked, s.release)
    choices.pick("serve.batched_tokens", serve.batched_tokens, rule.chunk, default_of("SGLang"))
    fraction = choices.pick("serve.memory_fraction", serve.memory_fraction, round(rule.fraction, 6), inferred(f"{rule.formula} [{SOURCE}]"))
    return rule._replace(fraction=fraction)


def _total(device: Device, known: dict[str, int], choices: ResolvedSettings) -> float:
    """MiB of the device as nvidia-smi shows them, a little more than what torch sees; without hardware.gpu those of the smallest NVIDIA card of the
    catalogue that can have so much free; 0 where nothing is known."""
    if device.capacity:
        found = _card(device)
        return found.memory_usable_mib if found is not None and found.memory_usable_mib else device.capacity / MiB
    free = known.get("free_before_load")
    if free is None:
        return 0
    cards = (gpu for gpu in all_gpus() if gpu.vendor == "NVIDIA" and gpu.capacity >= free)
    larger = sorted((gpu.capacity, gpu.memory_usable_mib or gpu.capacity / MiB, gpu.name) for gpu in cards)
    _, total, name = larger[0] if larger else (0, (free + context(device.compute_capability)[0]) / MiB, "a card")
    choices.assume(f"{name} ({total:,.0f} MiB): the smallest that can have {free / MiB:,.0f} MiB free; hardware.gpu says")
    return total


def _card(device: Device) -> Gpu | None:
    """The device in the catalogue."""
    return next((gpu for gpu in all_gpus() if gpu.name == device.name), None)
