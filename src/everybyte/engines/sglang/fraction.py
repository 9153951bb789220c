"""`mem_fraction_static` where the job does not say: the share of a device that SGLang gives to weights and cache.

All numbers are MiB of the total that nvidia-smi shows, as in server_args.py (_handle_gpu_memory_settings; from 0.5.19 arg_groups/memory_hook.py). Each
change of the rule is one function here, with the release in which it came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from everybyte.basics.record import Record
from everybyte.catalog.releases import Release

SOURCE = "sglang server_args.py _handle_gpu_memory_settings; 0.5.23: arg_groups/memory_hook.py handle_gpu_memory_settings"


class FractionInputs(Record, frozen=True):
    """What the rule depends on."""

    total: float
    """Memory of the device, MiB; 0: unknown."""
    parallel: int = 1
    """tp·pp."""
    tp: int = 1
    dp: int = 1
    """Attention groups under data-parallel attention; 1 without it."""
    chunk: int | None = None
    """chunked_prefill_size where the job says."""
    graphs: int | None = None
    """Largest batch that is captured where the job says; 0: none."""
    running: int | None = None
    """max_running_requests where the job says."""
    speculative: str = ""
    """Method of speculative decoding."""
    is_mla: bool = False
    deepep: bool = False
    vision: tuple[int, int] = (0, 0)
    """(layers, width) of a vision tower, zeros for none."""


class Reserve(NamedTuple):
    """The fraction, and the sizes that it rests on."""

    fraction: float
    chunk: int
    graphs: int
    """Largest batch that is captured."""
    formula: str


class _Tier(NamedTuple):
    below: float
    """MiB."""
    chunk: int
    graphs: int
    graphs_wide: int
    """With at least four tensor-parallel ranks."""


GiB_IN_MiB = 1024


def resolve(asked: FractionInputs, release: Release) -> Reserve:
    """The fraction of a release and what it rests on."""
    rule = next(rule for name, rule in RULES if release.has(name))
    return rule(asked, release)


def _fixed(asked: FractionInputs, release: Release) -> Reserve:
    """Before 0.4.8: by the number of ranks; from 0.4.6 more on large devices."""
    chunk, graphs = _early_sizes(asked, 25_000)
    shares = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
    fraction = next(share for ranks, share in shares if (asked.parallel if release.has("counts_all_ranks") else asked.tp) >= ranks)
    text = f"{fraction} for {asked.parallel} ranks"
    if release.has("counts_all_ranks"):
        if asked.total > 81920 or not asked.total:
            fraction, text = 0.88, "0.88"
        if release.has("reserves_for_drafts") and asked.total > 180_000:
            return Reserve(0.79, chunk, graphs, "0.79 above 180,000 MiB")
        if asked.total > 96 * GiB_IN_MiB:
            kept = (20 if asked.speculative and release.has("reserves_for_drafts") else 18) * GiB_IN_MiB
            fraction = min(fraction + 48 * GiB_IN_MiB * (1 - fraction) / asked.total, (asked.total - kept) / asked.total)
            text = f"min(0.88 + 48 GiB·0.12/total, (total - {kept})/total)"
        elif asked.speculative and release.has("reserves_for_drafts"):
            fraction *= 0.95
    if asked.vision[0]:
        fraction *= 0.90 if release.has("counts_all_ranks") else 0.95
    return Reserve(fraction, chunk, graphs, text)


def _early_sizes(asked: FractionInputs, small: float) -> tuple[int, int]:
    """(chunk, largest captured batch) before 0.5.3."""
    is_small = bool(asked.total) and asked.total < small
    chunk = asked.chunk or (2048 if is_small else 8192)
    graphs = asked.graphs if asked.graphs is not None else ((8 if asked.tp < 4 else 80) if is_small else 160)
    return chunk, graphs


_BY_SIZE = ((20, 2.8, 10), (35, 2.8, 10), (90, 9.5, 2), (100, 12.0, 2), (160, 12.0, 2))
"""GiB below which; GiB kept; ranks that cost another GiB."""


def _by_size(asked: FractionInputs, release: Release) -> Reserve:
    """0.4.8 to 0.5.2: a table by the size of the device."""
    chunk, graphs = _early_sizes(asked, 35 * GiB_IN_MiB)
    if asked.chunk is None and asked.total >= 160 * GiB_IN_MiB:
        chunk = 16384
    if not asked.total:
        return Reserve(0.88, asked.chunk or 4096, graphs, "0.88: the device is not known")
    kept = next((base + asked.parallel / share for below, base, share in _BY_SIZE if asked.total < below * GiB_IN_MiB), 32.0) * GiB_IN_MiB
    if asked.speculative:
        kept += (6 if asked.speculative == "standalone" and release.has("standalone_drafts") else 2) * GiB_IN_MiB
    if asked.dp > 1:
        kept += 4 * GiB_IN_MiB
    fraction = round((asked.total - kept) / asked.total, 3)
    if asked.vision[0]:
        fraction *= _vision_factor(asked.vision) if release.has("weighs_vision") else 0.90
    return Reserve(fraction, chunk, graphs, f"(total - {kept:,.0f})/total")


def _tiers(release: Release) -> tuple[_Tier, ...]:
    """Chunk and captured batches by size, from 0.5.3."""
    small = _Tier(35 * GiB_IN_MiB, 2048, 24 if release.has("wider_graphs_on_small") else 16, 80)
    if release.has("larger_small_tier"):
        small = _Tier(35 * GiB_IN_MiB, 4096, 48, 160)
    return (
        _Tier(20 * GiB_IN_MiB, 2048, 8, 8),
        small,
        _Tier(60 * GiB_IN_MiB, 4096, 32, 160),
        _Tier(160 * GiB_IN_MiB, 8192, 256, 512),
        _Tier(float("inf"), 16384, 512, 512),
    )


def _by_work(asked: FractionInputs, release: Release) -> Reserve:
    """From 0.5.3: 512 + 1.5·chunk + parallel/8 GiB + 2·batch, at least 10 GiB on devices above 60 GiB."""
    tier = next(t for t in _tiers(release) if asked.total < t.below) if asked.total else _Tier(0, 4096, 160, 160)
    chunk = asked.chunk or tier.chunk
    graphs = asked.graphs
    if graphs is None:
        graphs = tier.graphs_wide if asked.tp >= 4 else tier.graphs
        if release.has("captures_by_running") and asked.running:
            graphs = min(graphs, asked.running)
    words = [(512.0, "512"), (1.5 * max(chunk, 2048), f"1.5·{max(chunk, 2048)}"), (asked.parallel / 8 * GiB_IN_MiB, f"{asked.parallel}/8·1024")]
    words.append((2.0 * graphs, f"2·{graphs}"))
    if asked.dp > 1:
        each = 4.5 if graphs > 300 else 3.0
        words.append((each * graphs * asked.dp, f"{each:g}·{graphs}·{asked.dp}"))
    if graphs and release.has("captures_prefill"):  # prefill is captured too, by default
        prefill = 1536.0 if asked.is_mla else 8.0 * len(prefill_sizes(chunk))
        words.append((prefill, f"{prefill:g}"))
    kept, text = sum(size for size, _ in words), " + ".join(word for _, word in words)
    if asked.total > 60 * GiB_IN_MiB and kept < 10 * GiB_IN_MiB:
        kept, text = 10.0 * GiB_IN_MiB, f"max({text}, 10240)"
    if asked.speculative and asked.speculative != "ngram" and not release.has("counts_drafts"):
        more = (6 if asked.speculative == "standalone" else 4 if release.has("captures_prefill") else 2) * GiB_IN_MiB
        kept, text = kept + more, f"{text} + {more}"
    if asked.deepep and graphs and release.has("reserves_for_deepep"):
        kept, text = kept + 2048, f"{text} + 2048"
    if not asked.total:
        return Reserve(0.95 if release.has("larger_small_tier") else 0.88, chunk, graphs, "the device is not known")
    fraction = round((asked.total - kept) / asked.total, 3)
    if asked.vision[0]:
        fraction *= _vision_factor(asked.vision)
    return Reserve(fraction, chunk, graphs, f"(total - ({text}))/total")


def _vision_factor(vision: tuple[int, int]) -> float:
    """Images need room as well: 0.95, and 0.1 less for each time that the tower is another ViT-L/14 larger (adjust_mem_fraction_for_vlm)."""
    layers, width = vision
    larger = layers * width**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (larger - 1)))


def prefill_sizes(largest: int) -> tuple[int, ...]:
    """Token counts of prefill that are captured (generate_prefill_cuda_graph_batch_sizes)."""
    sizes = (*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256), *range(4608, largest + 1, 512))
    return tuple(size for size in sizes if size <= largest)


def decode_sizes(largest: int, *, speculative: bool = False) -> tuple[int, ...]:
    """Batches of decoding that are captured (generate_decode_cuda_graph_batch_sizes)."""
    if speculative:
        sizes = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, largest + 1, 16))
    else:
        sizes = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32))
    return tuple(sorted({size for size in sizes if size <= largest} | ({largest} if largest else set())))


RULES: tuple[tuple[str, Callable[[FractionInputs, Release], Reserve]], ...] = (
    ("fraction_by_work", _by_work),
    ("fraction_by_size", _by_size),
    ("fraction_by_ranks", _fixed),
)
"""(name in the table of releases, rule)."""
