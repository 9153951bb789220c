"""Blocks of multi-token prediction (transformer/multi_token_prediction.py), each with its own pass through the shared head."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.engines.megatron.layers.block import TransformerLayer
from everybyte.engines.megatron.layers.embedding_and_head import cross_entropy, logits_of
from everybyte.engines.megatron.layers.linear import column, norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import TOKENS, Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


class Prediction(Record, frozen=True):
    """All blocks: in each the next token's embedding beside the hidden states, a projection, a transformer layer or several of a hybrid model, a norm,
    and the loss of what it predicts. `shared`: one block that runs once for every depth (mtp_use_repeated_layer)."""

    layers: tuple[TransformerLayer, ...]
    vocab: int
    depths: int
    shared: bool

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> the same hidden states, which carry the losses' gradients on (MTPLossAutoScaler)."""
        style, hidden = self.layers[0].style, x
        for depth in range(self.depths):
            with t.scope("0" if self.shared else str(depth)):
                hidden = self._deeper(t, hidden)
            loss = cross_entropy(t, logits_of(t, hidden, self.vocab, self.layers[0].split, style, tied=True), style)
            carried = Value(x.storage, x.dims, x.dtype, grad=True)
            t.step("add loss", (x, loss), (carried,), made=[Made(x, None), Made(loss, Size.of(loss.dims, loss.dtype))])
            x = carried
        return x

    def _deeper(self, t: Tape, x: Value) -> Value:
        """Hidden states of the next token (n/t, h)."""
        sizes, split, style = self.layers[0].sizes, self.layers[0].split, self.layers[0].style
        following = t.new("embedding", x.dims, x.dtype, True)
        t.step("embedding", (), (following,))
        parts = [norm(t, following, "enorm", sizes.norm, style), norm(t, x, "hnorm", sizes.norm, style)]
        both = ops.cat(t, parts, (*x.dims[:-1], Dim("2h", 2 * sizes.hidden)))
        out = self._gathered(t, column(t, both, "eh_proj", Dim("h", sizes.hidden // split.tp), split, style, bias=False), x)
        for index, layer in enumerate(self.layers):
            with t.scope(f"mtp_model_layer.{index}" if len(self.layers) > 1 else "transformer_layer", out):
                out = layer.forward(t, out)
        return norm(t, out, "final_layernorm", sizes.norm, style)

    def _gathered(self, t: Tape, part: Value, x: Value) -> Value:
        """Outputs of all ranks of the group, for this rank's tokens."""
        if self.layers[0].split.tp == 1:
            return part
        whole = t.new("all-gather", (TOKENS, x.dims[-1]), part.dtype, True)
        t.step("all-gather", (part,), (whole,), made=[Made(part, Size.of(part.dims, part.dtype))])
        out = t.new("scatter", x.dims, part.dtype, True)
        t.step("scatter", (whole,), (out,), made=[Made(whole, Size.of(whole.dims, whole.dtype))])
        return out
