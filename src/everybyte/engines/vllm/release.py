"""Versions of vLLM, and which of its rules each has. Read in the wheels 0.6.6.post1, 0.7.2, 0.8.2, 0.8.5, 0.10.2, 0.11.0, 0.14.1, 0.16.0 to 0.33.0."""

from __future__ import annotations

import re
from typing import NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.job import Serve
from everybyte.rules.choices import Choices

LATEST = (0, 33, 0)
LAST_V0 = (0, 8, 5)
"""What stands for a version that is not given: of a job that asks for V0, a version that has it."""
_NUMBER = re.compile(r"(?:vllm[ =]*)?v?(\d+)\.(\d+)(?:\.(\d+))?")


class Release(NamedTuple):
    """A version of vLLM and which of its two engines runs."""

    number: tuple[int, int, int]
    v1: bool

    @property
    def text(self) -> str:
        """`0.19.0`."""
        return ".".join(map(str, self.number))

    def since(self, *number: int) -> bool:
        """Whether this is V1 of that version or later."""
        return self.v1 and self.number >= number

    @property
    def groups_layers(self) -> bool:
        """Layers of different kinds have block tables of their own (v1/core/kv_cache_utils.py _get_kv_cache_config_uniform_page_size); before, every
        layer was given room for the whole context."""
        return self.since(0, 9, 2)

    @property
    def checks_groups(self) -> bool:
        """The check before the start counts what groups take, padding included (_max_memory_usage_bytes_from_groups), not what layers need."""
        return self.since(0, 14)

    @property
    def counts_requests(self) -> bool:
        """The log's tokens are concurrency × max_model_len, not blocks of one group (kv_cache_utils.py _report_kv_cache_config, from 0.20.1 on)."""
        return self.since(0, 20, 1)

    @property
    def subtracts_graphs(self) -> bool:
        """An estimate of the CUDA graphs is taken off the cache's budget (envs.py VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)."""
        return self.since(0, 20)

    @property
    def sorts_to_sample(self) -> bool:
        """Top-k and top-p sort all logits; from 0.17 on a Triton kernel does without (v1/sample/ops/topk_topp_triton.py)."""
        return not self.since(0, 17)

    @property
    def captures_whole(self) -> bool:
        """Whole steps are captured beside the pieces between attention layers (FULL_AND_PIECEWISE is the default from 0.11 on)."""
        return self.since(0, 11)

    @property
    def in_flight(self) -> int:
        """Batches whose tokens a window's cache must hold at once: scheduling runs one step ahead (config/vllm.py max_in_flight_tokens)."""
        return 2 if self.since(0, 25) else 1

    @property
    def keeps_states_by_block(self) -> bool:
        """Prefix caching may keep a state-space layer's state behind every block (mamba_cache_mode `all`); 0.32 has it no more."""
        return self.number < (0, 31)

    @property
    def checkpoints_prefills(self) -> bool:
        """Mamba-2 layers that cache prefixes keep a state more, of the prompt's last whole block (mamba_mixer2.py get_kv_cache_spec, in 0.32)."""
        return self.since(0, 31)

    @property
    def caches_hybrid_prefixes(self) -> bool:
        """Prefix caching is on by default for networks with recurrent states (config/model.py is_prefix_caching_supported)."""
        return self.since(0, 25)


def release_of(serve: Serve, extra: dict[str, object], choices: Choices) -> Release:
    """The version of a job; without one the latest that was read, or where VLLM_USE_V1 is 0 the last that many ran with V0. Raises BadInput for text
    that is no version."""
    asked = extra.get("VLLM_USE_V1")
    if asked not in (None, 0, 1, "0", "1", True, False):
        raise BadInput("serve.extra.VLLM_USE_V1", f"must be 0 or 1, not {asked!r}")
    found = _NUMBER.search(serve.version or "")
    if serve.version and found is None:
        raise BadInput("serve.version", f"{serve.version!r} is no version of vLLM; write for example 0.19.0")
    number = tuple(int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    if number < (0, 2, 0):  # not given, or a build without tags (0.1.dev20073)
        number = LAST_V0 if asked is not None and not int(str(int(bool(asked in (1, "1", True))))) else LATEST
        choices.assume(f"vLLM {'.'.join(map(str, number))}: serve.version says another; cache, profiling run and graphs differ by version")
    v1 = number >= (0, 11, 0) or (asked in (1, "1", True) if asked is not None else number >= (0, 8, 0))
    return Release((number[0], number[1], number[2]), v1)
