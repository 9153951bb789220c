"""The highest instant of a prompt's forward pass where gate, up and their product are fused and experts run as one kernel."""

from __future__ import annotations

from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.models.widths import widths_of
from everybyte.rules.serving.tensor_parallel import Cut

FORWARD = "gate and up joined and their product beside four hidden states (caller, normalised, residual, result) of the tokens that are computed at once"
EXPERTS = "intermediate results for the tokens of all chosen experts: gate and up, their product, the result"
LOGITS = "16-bit logits of the last tokens, a copy in fp32 and probabilities"


def fused_lines(network: Network, cut: Cut, tokens: int, rows: int, source: str) -> tuple[Line, ...]:
    """Rows of a prefill of `tokens` tokens that ends `rows` sequences. `source`: where the engine's own code is."""
    widths, hidden = widths_of(network), network.hidden
    dense = ceil_div(max(widths.ffn, default=0), cut.dense)
    text = plain("2·n·(4·h + 3·f)", n=tokens, h=hidden, f=dense)
    lines = [Line("activation/forward", "activation", 2 * tokens * (4 * hidden + 3 * dense), text, f"{source}: {FORWARD}", "formula")]
    if network.experts:
        wide, most = ceil_div(max(widths.expert_ffn, default=0), cut.expert_width), network.top_k
        text = plain("2·n·k·(3·f + h)", n=tokens, k=most, f=wide, h=hidden)
        lines.append(Line("activation/experts", "activation", 2 * tokens * most * (3 * wide + hidden), text, f"{source}: {EXPERTS}", "formula"))
    ends = min(rows, tokens)
    lines.append(Line("activation/logits", "activation", 10 * ends * network.vocab, plain("10·R·V", R=ends, V=network.vocab), f"{source}: {LOGITS}", "formula"))
    return tuple(lines)
