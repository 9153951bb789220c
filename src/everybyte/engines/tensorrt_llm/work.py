"""What a TensorRT engine takes beside its weights: its execution context for the largest batch of its profile, and the buffers of its decoder."""

from __future__ import annotations

from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.models.widths import widths_of
from everybyte.rules.serving.tensor_parallel import Cut

SOURCE = (
    "logs of two builds (TensorRT-LLM 0.17, 0.18: `memory of execution context`): three hidden states, the feed-forward's product and logits of every token of "
    "the profile on one, two hidden states and each routed token before and after its experts on the other; docs/source/reference/memory.md says no form"
)


DECODER = (
    "cpp/tensorrt_llm/layers: the penalties' occurrence counts (int32) and logits (fp32) of each sequence and word, and of top-p sampling sorted probabilities "
    "and ids with the sort's own two (samplingTopPKernels.cu getTopPWorkspaceSizes); made for max_batch_size before the cache"
)
DECODER_BYTES = 4 + 4 + 4 * 4
"""A sequence and word."""


def decoder_line(network: Network, running: int) -> Line:
    """Buffers of the C++ decoder, which an engine that was built runs: they grow with max_batch_size times the vocabulary."""
    size = DECODER_BYTES * running * network.vocab
    return Line("workspace/decoder", "workspace", size, plain("24·B·V", B=running, V=network.vocab), DECODER)


def activation_line(network: Network, cut: Cut, tokens: int, running: int, *, gathers: bool) -> Line:
    """16-bit numbers of one token, times max_num_tokens. The profile's logits are those of every token, as the sizes of both builds say; an engine that
    gathers the last token's alone has `low`."""
    widths = widths_of(network)
    logits, hidden = ceil_div(network.vocab, cut.head), network.hidden
    if network.experts:
        inner, text = 2 * hidden + 2 * network.top_k * hidden, "2·n·(V + 2·h + 2·k·h)"
        symbols = {"h": hidden, "k": network.top_k}
    else:
        wide = ceil_div(max(widths.ffn, default=0), cut.dense)
        inner, text = 3 * hidden + wide, "2·n·(V + 3·h + f)"
        symbols = {"h": hidden, "f": wide}
    size = 2 * tokens * (logits + inner)
    low = 2 * tokens * inner + (0 if gathers else 4 * min(running, tokens) * logits)
    return Line("activation/engine", "activation", size, plain(text, n=tokens, V=logits, **symbols), SOURCE, "calibrated", min(low, size), 2 * size)
