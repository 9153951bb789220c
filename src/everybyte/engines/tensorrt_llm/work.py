"""Activation memory of a TensorRT engine: what its execution context takes for the largest batch of its profile."""

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
