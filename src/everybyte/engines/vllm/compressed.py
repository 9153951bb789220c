"""Caches of compressed attention (DeepSeek-V4): compressed keys, keys of a window, states of the compressors, each in blocks of its own length that share
one pool (models/deepseek_v4/attention.py, compressor.py, v1/attention/backends/mla/sparse_swa.py; v1/core/kv_cache_utils.py)."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.errors import Unsupported
from everybyte.basics.units import ceil_div, round_up
from everybyte.engines.vllm.pages import Group, Plan, Spec
from everybyte.layers.recording.tape import Cache

BLOCK = 256
"""Tokens of a block of compressed keys where the job does not say (models/config.py DeepseekV4ForCausalLMConfig)."""
ROW, ALIGNMENT = 584, 576
"""fp8_ds_mla: 448 numbers in fp8, 64 in bf16, 8 bytes of scales; pages are multiples of 576 bytes."""
WINDOW_BLOCK = 64
STATE_BLOCKS = {4: 4, 128: 8}
"""Compression -> tokens of a block of the compressor's states."""
SCALED = 128


def specs(caches: list[Cache], block: int, kv_dtype: str) -> Iterator[Spec]:
    """The caches of one layer."""
    if kv_dtype not in ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"):
        raise Unsupported("serve.kv_dtype", f"{kv_dtype!r} is not supported for compressed attention; supported: auto and fp8 (fp8_ds_mla)")
    window = next(cache.window for cache in caches if cache.window)
    yield _spec("window", WINDOW_BLOCK, ROW, window, "v4 window")
    for cache in caches:
        if cache.every == 1:
            continue
        width, rate = cache.dims[0].size, cache.every
        row = width + width // SCALED * 4 if "indexer" in cache.place else ROW
        yield Spec("latent", block, 0, padded=round_up(block // rate * row, ALIGNMENT), width=f"v4 {cache.place} {rate}")
        overlap = 2 if rate == 4 else 1
        yield _spec("window", STATE_BLOCKS[rate], 4 * 2 * overlap * width, overlap * rate, f"v4 state {cache.place} {rate}")


def _spec(kind: str, block: int, row: int, window: int, width: str) -> Spec:
    return Spec(kind, block, row, window, padded=round_up(block * row, ALIGNMENT), width=width)  # type: ignore[arg-type]


def is_compressed(specs: tuple[Spec, ...]) -> bool:
    """Whether these are caches of compressed attention."""
    return any(spec.width.startswith("v4") for spec in specs)


def plan_of(specs: tuple[Spec, ...]) -> Plan:
    """Layers whose pages differ lie side by side in a block; groups overlay one another. The layers of a window are divided into groups so that the
    numbers of all groups come near each other (_get_kv_cache_groups_uniform_groups, _get_packed_kv_cache_layout)."""
    full = [spec for spec in specs if spec.kind == "latent"]
    windows: dict[tuple[int, int], list[Spec]] = {}
    for spec in specs:
        if spec.kind == "window":
            windows.setdefault((spec.block, spec.window), []).append(spec)
    size = _common(_most(full), [_most(found) for found in windows.values()])
    groups, strides = [Group(full[0], len(full))], [sum(spec.page for spec in full)]
    for found in windows.values():
        pages = dict.fromkeys(spec.page for spec in found)
        layers = len(found) // len(pages)
        parts = ceil_div(layers, size)
        for index in range(parts):
            share = len(range(index, layers, parts))
            groups.append(Group(found[0], share * len(pages)))
            strides.append(share * sum(pages))
    return Plan(tuple(groups), max(strides), specs)


def _most(found: list[Spec]) -> int:
    """How many layers have the most common length of a page."""
    counts: dict[int, int] = {}
    for spec in found:
        counts[spec.page] = counts.get(spec.page, 0) + 1
    return max(counts.values())


def _common(least: int, others: list[int]) -> int:
    """The number to whose multiples all numbers are rounded up with the least padding; of equals the largest (_approximate_gcd)."""
    numbers = [least, *others]
    return min(range(least, max(numbers) + 1), key=lambda d: (sum(-x % d for x in numbers), -d))
