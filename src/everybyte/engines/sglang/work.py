"""What SGLang needs beside weights and pools: the tensors of the largest prefill, and captured CUDA graphs."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from everybyte.basics.units import KiB, MiB, ceil_div
from everybyte.engines.sglang.fraction import decode_sizes
from everybyte.engines.sglang.settings import Settings
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.build import Line, plain
from everybyte.models.widths import widths_of
from everybyte.rules.serving.pages import layer_caches, prices
from everybyte.rules.serving.prefill import fused_lines
from everybyte.rules.serving.tensor_parallel import Cut
from everybyte.rules.step.cache import Format
from everybyte.rules.step.persistent_state import weight_lines

SOURCE = "sglang layers/activation.py SiluAndMul, moe/fused_moe_triton/fused_moe.py, logits_processor.py, sampler.py"
GRAPHS = (
    "sglang model_executor/cuda_graph_runner.py: one graph of the whole step for each captured batch. Learnt from vLLM's whole graphs: 0.19 MiB of driver "
    "memory for a layer and graph, twice that with experts; one shared pool of tensors, as large as the largest batch needs"
)
DRAFT = "sglang speculative/eagle_worker.py: the draft's pool has as many tokens as the target's"
EACH = 195 * KiB


def work_lines(network: Network, cut: Cut, chunk: int, running: int) -> tuple[Line, ...]:
    """Rows of the highest instant of a prefill of `chunk` tokens."""
    return fused_lines(network, cut, chunk, running, SOURCE)


class Draft(NamedTuple):
    """A draft model of the main model's kind, in bytes: each of its layers like the last of the main one; embedding and head are shared."""

    weights: int = 0
    token: int = 0
    """Of a token in its cache."""


def draft_of(network: Network, setup: Setup, s: Settings) -> Draft:
    """The draft of a job; nothing where it has none."""
    if not s.draft_layers or not network.runs:
        return Draft()
    one = replace(network, runs=(replace(network.runs[-1], count=1),), stem=None, tail=None, head=None, towers=())
    weights = s.draft_layers * sum(line.bytes for line in weight_lines(one, setup, s.cut))
    return Draft(weights, s.draft_layers * prices(layer_caches(one, s.cut, Format(setup.weights))).token)


def draft_lines(draft: Draft, tokens: int) -> tuple[Line, ...]:
    """Its weights, and a cell of its cache for every token of the pool."""
    size = draft.weights
    return (
        Line("draft/weights", "parameter", size, plain("draft", draft=size), DRAFT, "assumed", size // 2, 2 * size),
        Line("draft/cache", "kv_cache", tokens * draft.token, plain("tokens·token", tokens=tokens, token=draft.token), DRAFT, "assumed"),
    )


def graph_line(network: Network, cut: Cut, largest: int, *, speculative: bool) -> Line | None:
    """Graphs of decoding; None where nothing is captured."""
    if not largest:
        return None
    sizes = len(decode_sizes(largest, speculative=speculative))
    layers = network.layers * (2 if network.experts else 1)
    pool = 2 * largest * (4 * network.hidden + 3 * ceil_div(max(widths_of(network).ffn, default=0), cut.dense)) + 4 * largest * network.vocab
    size = EACH * layers * sizes + pool
    text = plain("e·L·graphs + pool", e=EACH, L=layers, graphs=sizes, pool=pool)
    return Line("graphs/decode", "graph_pool", size, text, GRAPHS, "calibrated", size // 3, 3 * size + 512 * MiB)
