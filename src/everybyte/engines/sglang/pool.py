"""The pools of SGLang: tokens of the layers that see everything, of those with a window, slots of recurrent states.

Read in model_runner.py (profile_max_num_token, init_memory_pool) of 0.4.2 to 0.5.5, model_runner_kv_cache_mixin.py and pool_configurator.py of 0.5.8 and
0.5.13, mem_cache/kv_cache_configurator.py of 0.5.23.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from everybyte.basics.record import Record
from everybyte.layers.recording.tape import Cache
from everybyte.ledger.build import Line, plain
from everybyte.rules.serving.pages import Prices, whole_pages
from everybyte.rules.step.cache import Format

SOURCE = "sglang pool_configurator.py, model_runner_kv_cache_mixin.py (0.5.13): tokens = bytes // cell, in whole pages"
TABLE = "sglang memory_pool.py ReqToTokenPool: a row of int32 for each request, as long as the context"
STATES = "sglang memory_pool.py MambaPool: (slots + 1) states of every layer"
PAGES = {
    "flashmla": 64,
    "cutlass_mla": 128,
    "trtllm_mla": 64,
    "trtllm_mha": 64,
    "fa4": 128,
    "nsa": 64,
    "dsa": 64,
    "ascend": 128,
}
"""Attention backends that dictate a page; the others take one token (server_args.py)."""


class Slots(Record, frozen=True):
    """How many recurrent states are kept."""

    asked: int | None = None
    """max_mamba_cache_size where the job says."""
    running: int | None = None
    """max_running_requests, where there is no prefix cache: one state each."""
    ratio: Fraction = Fraction(9, 10)
    """mamba_full_memory_ratio: states to keys and values."""
    drafts: int = 0
    """speculative_num_draft_tokens: states that verification keeps beside each running request's."""


class Pool(Record, frozen=True):
    """What the pools hold, in tokens and slots, and their bytes on one rank."""

    tokens: int
    windowed: int = 0
    """Tokens of the pool of window layers, where it is one of its own."""
    slots: int = 0
    page: int = 1
    bytes: int = 0
    """Keys and values of both pools, one page more than the tokens each."""
    windowed_bytes: int = 0
    state_bytes: int = 0
    cell: Fraction = Fraction()
    """Bytes that decide how many tokens there are."""


class Costs(Record, frozen=True):
    """What a token and a state cost on one rank."""

    full: Fraction
    """Bytes of a token in layers that hold every token."""
    windowed: Fraction = Fraction()
    """Bytes of a token in layers with a pool of their own."""
    share: Fraction = Fraction(4, 5)
    """swa_full_tokens_ratio: tokens of that pool to tokens of the other."""
    state: int = 0
    draft: Fraction = Fraction()
    """Bytes of a token in the layers of a draft model that the pool is sized for."""
    page: int = 1

    @property
    def cell(self) -> Fraction:
        """Bytes of a token of the pool."""
        return self.full + self.draft + self.share * self.windowed if self.full else self.windowed


def costs_of(found: Prices, *, two_pools: bool, share: Fraction, page: int, draft: Fraction = Fraction()) -> Costs:
    """Costs from the prices of the layers."""
    if two_pools:
        return Costs(found.full, found.windowed, share, found.state, draft, page)
    return Costs(found.full + found.windowed, Fraction(), share, found.state, draft, page)


def states_first(rest: int, costs: Costs, slots: Slots) -> tuple[int, int]:
    """(slots, bytes left for keys and values) of `rest` bytes. States are dealt with first (handle_max_mamba_cache)."""
    if not costs.state:
        return 0, rest
    asked = slots.asked or slots.running
    if asked is None:
        budget = Fraction(rest) * slots.ratio / (1 + slots.ratio)
        asked = max(floor(budget / (costs.state * (1 + Fraction(slots.drafts, 3)))), 0)
    drafts = slots.drafts * min(slots.running or asked, asked // 3 or 1)
    return asked, rest - (asked + drafts) * costs.state


def pool_of(rest: int, costs: Costs, slots: Slots, most: int | None = None) -> Pool:
    """The pools that `rest` bytes make; `most`: max_total_tokens."""
    count, left = states_first(rest, costs, slots)
    tokens = floor(Fraction(left) / costs.cell) if costs.cell else 0
    return _sized(max(min(tokens, most) if most else tokens, 0), costs, count)


def pool_from_bytes(printed: int, costs: Costs, slots: Slots, most: int | None = None) -> Pool:
    """The pools whose keys and values take `printed` bytes as the log states them, the extra page included."""
    extra = costs.page * (costs.full + costs.windowed)
    own = costs.cell - costs.draft  # a draft's pool is printed apart
    tokens = floor((printed - extra) / own) if own else 0
    asked = slots.asked or slots.running
    if asked is None and costs.state:
        asked = floor(printed * slots.ratio / costs.state)
    return _sized(max(min(tokens, most) if most else tokens, 0), costs, asked or 0)


def _sized(tokens: int, costs: Costs, slots: int) -> Pool:
    tokens = whole_pages(tokens, costs.page)
    windowed = whole_pages(floor(tokens * costs.share) if costs.full else tokens, costs.page) if costs.windowed else 0
    windowed_bytes = floor((windowed + costs.page) * costs.windowed) if costs.windowed else 0
    size = floor((tokens + costs.page) * costs.full) + windowed_bytes
    states = (slots + 1) * costs.state if costs.state else 0
    return Pool(tokens, windowed, slots, costs.page, size if tokens else 0, windowed_bytes, states, costs.cell)


def priced(cache: Cache, kind: Format) -> int | None:
    """Keys of DeepSeek-V3.2's indexer are 8-bit numbers with an fp32 scale for 128 of them whatever the cache's type (DSATokenToKVPool)."""
    if cache.name != "index key":
        return None
    width = cache.dims[0].size
    return width + width // 128 * 4


def requests_of(tokens: int, running: int | None, context: int) -> int:
    """Requests that have a row in the table of their tokens' places (max_num_reqs): 512 for each full context of the pool, between 2,048 and 4,096."""
    most = min(max(tokens * 512 // context, 2048), 4096)
    return most if running is None else min(running, most)


def pool_lines(pool: Pool, costs: Costs, running: int | None, context: int) -> list[Line]:
    """Rows of the pools, and of the table that says where each request's tokens are."""
    lines = []
    if pool.bytes > pool.windowed_bytes:
        each = round(costs.full)
        text = plain("(tokens + page)·token", tokens=pool.tokens, page=pool.page, token=each)
        lines.append(Line("kv_cache/tokens", "kv_cache", (pool.tokens + pool.page) * each, text, SOURCE))
    if pool.windowed_bytes:
        each = round(costs.windowed)
        text = plain("(swa_tokens + page)·token", swa_tokens=pool.windowed, page=pool.page, token=each)
        lines.append(Line("kv_cache/windows", "kv_cache", (pool.windowed + pool.page) * each, text, SOURCE))
    if pool.state_bytes:
        lines.append(Line("state/slots", "state", pool.state_bytes, plain("(slots + 1)·state", slots=pool.slots, state=costs.state), STATES))
    requests = requests_of(pool.tokens, running, context)
    text = plain("4·(requests + 1)·(context + 4)", requests=requests, context=context)
    lines.append(Line("workspace/request table", "workspace", 4 * (requests + 1) * (context + 4), text, TABLE, "formula"))
    return lines
