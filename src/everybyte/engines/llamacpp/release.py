"""Which build of llama.cpp, or of its fork ik_llama.cpp, and what it does differently.

Builds are numbered by commits: llama.cpp b1 to b11434 and on (date of b5145: April 2025), ik_llama.cpp from its own branch point, b3400 to b3800 in the first
half of 2025.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, NamedTuple

from everybyte.basics.errors import Unsupported
from everybyte.job import Serve
from everybyte.rules.choices import Choices

ASSUMED = 10500
"""Build of llama.cpp (summer 2026) that is assumed where a job names none. Read: b5300, b6200, the sources in llama-cpp-python 0.3.36 and b11434, which
was run as well; between the last two only batches that mix tokens with embeddings are new."""
FORK_READ = 3811
"""The newest ik_llama.cpp build whose graphs were read (commit 18eeb4894, July 20, 2025)."""
MAINLINE_AND_FORK = ((5000, 3616), (5331, 3680), (5622, 3738), (5900, 3803), (6200, 3850))
"""Builds of llama.cpp and of the fork on the same days (March to August 2025): where a job of the fork names a number of llama.cpp's."""
_BUILD = re.compile(r"b?(\d{3,6})$")


class Release(NamedTuple):
    """A build, and its rules by name."""

    build: int
    fork: bool = False

    # -- caches ---------------------------------------------------------------------------------------------------------------
    @property
    def keeps_latent(self) -> bool:
        """MLA models store the latent in place of all keys and values (llama.cpp PR 12801, b5145)."""
        return not self.fork and self.build >= 5145

    @property
    def stores_latent_once(self) -> bool:
        """Values are a view of the stored latent (llama.cpp llama-kv-cache.cpp, V of 0 bytes for MLA; December 2025)."""
        return not self.fork and self.build >= 7300

    @property
    def caches_encoders(self) -> bool:
        """Encoders have a cache too (until llama.cpp PR 12799, b5329, May 2025)."""
        return self.fork or self.build < 5329

    @property
    def has_windows(self) -> bool:
        """Sliding-window layers have a cache of their own (llama.cpp PR 13194, b5432)."""
        return not self.fork and self.build >= 5432

    @property
    def cell_step(self) -> int:
        """What the number of cells is rounded up to: 256 since October 2025 (llama-context.cpp GGML_PAD(n_ctx_seq, 256)), 32 before
        (llama_kv_cache::get_padding without flash attention)."""
        return 256 if not self.fork and self.build >= 6900 else 32

    @property
    def has_streams(self) -> bool:
        """Each sequence may have a part of the cache for itself (llama.cpp PR 14363, b5900, July 2025)."""
        return not self.fork and self.build >= 5900

    # -- the graph ------------------------------------------------------------------------------------------------------------
    @property
    def joins_gates(self) -> bool:
        """Activation and product with the gate are one node (llama.cpp PR 14158, b5787)."""
        return not self.fork and self.build >= 5787

    @property
    def writes_rows(self) -> bool:
        """The cache is written by set_rows with an index tensor (llama.cpp PR 14285, by default since b6072)."""
        return not self.fork and self.build >= 6072

    @property
    def narrow_mask(self) -> bool:
        """The mask is an fp16 input where flash attention reads it (spring 2026); before an fp32 input that is cast."""
        return not self.fork and self.build >= 8600

    @property
    def takes_embeddings(self) -> bool:
        """Embeddings are an input beside the tokens in every graph (llama.cpp PR 18550, January 2026)."""
        return not self.fork and self.build >= 7600

    @property
    def mixes_embeddings(self) -> bool:
        """A batch may hold both tokens and embeddings (autumn 2026)."""
        return not self.fork and self.build >= 11000

    @property
    def converts_cache(self) -> bool:
        """CUDA's flash attention converts a packed cache inside the compute buffer (ggml-cuda/fattn.cu ggml_cuda_flash_attn_ext_get_alloc_size, mid-2026)."""
        return not self.fork and self.build >= 9500

    @property
    def turns_cache(self) -> bool:
        """Keys and values of a packed cache are rotated by Hadamard matrices (llama.cpp PR 21038, April 2026)."""
        return not self.fork and self.build >= 8600

    @property
    def few_outputs(self) -> bool:
        """The server reserves logits for one row a slot, not for a whole ubatch (llama_context_params.n_outputs_max, mid-2026)."""
        return not self.fork and self.build >= 9500

    @property
    def counts_output_first(self) -> bool:
        """-ngl counts the output before the layers (llama-model.cpp i_gpu_start = n_layer + 1 - n_gpu_layers, December 2025), before after them."""
        return not self.fork and self.build >= 7300

    @property
    def fits_itself(self) -> bool:
        """The server moves layers to host memory by itself where they do not fit (--fit, December 2025)."""
        return not self.fork and self.build >= 7400

    @property
    def slots(self) -> int:
        """Slots of the server where none are asked for: 4 in one unified cache since December 2025, 1 before."""
        return 4 if not self.fork and self.build >= 7300 else 1


def release_of(serve: Serve, extra: dict[str, Any], choices: Choices) -> Release:
    """The build that a job names; without one the build that was read, which is told. Raises Unsupported for an unknown fork."""
    name = extra.get("fork")
    if name not in (None, "llama.cpp", "ik_llama.cpp"):
        raise Unsupported("serve.extra.fork", f"{name!r} is not supported; supported: llama.cpp and ik_llama.cpp")
    fork = name == "ik_llama.cpp"
    found = _BUILD.match((serve.version or "").strip()) if serve.engine != "ollama" else None
    if found:
        build = int(found[1])
        return Release(_of_same_day(build, choices) if fork and build >= MAINLINE_AND_FORK[0][0] else build, fork)
    build = FORK_READ if fork else ASSUMED
    named = f"{name or 'llama.cpp'} b{build}"
    choices.assume(f"rules of {named}; serve.version (b1234) chooses another" if not serve.version else f"version {serve.version}: rules of {named}")
    return Release(build, fork)


def _of_same_day(build: int, choices: Choices) -> int:
    """The fork's build of the days of a build of llama.cpp."""
    for (early, low), (late, high) in itertools.pairwise(MAINLINE_AND_FORK):
        if build <= late:
            own = low + (build - early) * (high - low) // (late - early)
            choices.assume(f"b{build} is a llama.cpp build number: ik_llama.cpp b{own} of the same days")
            return own
    return MAINLINE_AND_FORK[-1][1]
