"""From the last block to the loss: the head in chunks of tokens, Fabric's conversion of the logits to fp32, the chunked cross entropy.

The model returns all logits and the script's variable `logits` holds them, and with them the graph, until the next call has returned.
"""

from __future__ import annotations

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.engines.litgpt.block import LitNorm
from everybyte.engines.litgpt.linear import LORA, SCALED, base, copies, product, reduced, reopened
from everybyte.layers.heads.loss import narrow_cross_entropy
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SHIFTED_TOKENS, TOKENS, Axis, Dim, Size, piece_of, pieces_before_last
from everybyte.layers.recording.tape import Made, Tape, Value

CHUNK = 128
"""`lm_head_chunk_size` and `chunk_size` of the scripts."""


class LitOutput(Record, frozen=True):
    """The final norm, the head and the conversion of its result: hidden states (n, h) -> logits (n, V) in fp32."""

    norm: LitNorm
    vocab: int
    bias: bool
    softcap: bool
    chunk: int
    """Tokens of every sequence that go through the head at once; 0: all."""
    converts: bool = True
    """Fabric turns the result into fp32."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, V) in fp32."""
        x = self.norm.forward(t, x, "ln_f")
        with t.scope("lm_head", x):
            logits = self._chunked(t, x) if self.chunk else self._whole(t, x)
            t.hold(logits)
            if logits.dtype == FP32 or not self.converts:
                return logits
            # lightning/fabric/plugins/precision/half.py convert_output: a new list beside the old one
            wide = t.new("to", logits.dims, FP32, logits.grad)
            t.step("to", (logits,), (wide,), piecewise=bool(self.chunk))
            return wide

    def _whole(self, t: Tape, x: Value) -> Value:
        logits = base(t, x, Dim("V", self.vocab), bias=self.bias)
        if self.softcap:
            logits = ops.scale(t, ops.unary(t, "tanh", ops.scale(t, logits), keeps="output"))
        return logits

    def _chunked(self, t: Tape, x: Value) -> Value:
        """`[lm_head(x_i) for x_i in x.split(chunk, dim=1)]`: the logits of all chunks live, temporaries are those of one."""
        width = Dim("V", self.vocab)
        piece = Size.of((piece_of(self.chunk), width), t.setup.compute or x.dtype)
        logits = self._product(t, x)
        adapter = t.setup.adapter
        if adapter is not None and adapter.kind == LORA and "head" in adapter.targets:
            low = reduced(t, x, adapter)
            up = t.parameter("lora_B", (width, low.dims[-1]), adapter=True)
            logits = self._written_over(t, "lora", (logits, low, up), piece)
        if adapter is not None and adapter.kind == SCALED:
            logits = self._scaled(t, logits, piece)
        if self.softcap:
            logits = self._capped(t, logits, piece)
        # Backward goes through one chunk after the other: the first weight is dequantised while all others keep what they keep
        return logits if t.setup.packed is None else reopened(t, logits, copies(x, width))

    def _packed(self, t: Tape, x: Value, width: Dim) -> Value:
        """The weight is dequantised for every chunk; for the last one, when all other results are there."""
        weight = t.parameter("weight", (width, x.dims[-1]), packed=True)
        earlier = t.new("linear", (pieces_before_last(self.chunk), width), x.dtype, False)
        t.step("dequantize", (weight,), (earlier,), scratch=copies(x, width))
        return product(t, x, weight, width, scratch=Size.of(weight.dims, x.dtype), piecewise=True)

    def _product(self, t: Tape, x: Value) -> Value:
        """The head's product. Autocast casts a frozen weight anew for every chunk, and each product keeps its copy."""
        width = Dim("V", self.vocab)
        if t.setup.packed is not None:
            return self._packed(t, x, width)
        weight = t.parameter("weight", (width, x.dims[-1]))
        shift = t.parameter("bias", (width,)) if self.bias else None
        if t.setup.compute is None or weight.dtype == t.setup.compute or weight.grad:
            return ops.linear(t, x, weight, shift, width)
        x = ops.autocast(t, x)
        copies = t.new("to", (Dim("k", 1, (Axis("s", 0, (1, self.chunk)),)), *weight.dims), x.dtype, False)
        logits = t.new("linear", (*x.dims[:-1], width), x.dtype, x.grad)
        t.step("linear", (x, weight), (logits, copies), saved=(copies,), piecewise=True)
        return logits

    @staticmethod
    def _written_over(t: Tape, what: str, parts: tuple[Value, Value, Value], piece: Size) -> Value:
        """`linear(x_i) + B(A(x_i))·scaling`: sums of a chunk take the place of its products."""
        logits, low, up = parts
        out = Value(logits.storage, logits.dims, logits.dtype, grad=True)
        made = [Made(logits, None), Made(low, Size.of(low.dims, low.dtype)), Made(up, Size.of(up.dims, up.dtype))]
        t.step(what, parts, (out,), saved=(low,), made=made, scratch=piece * 2, back_scratch=piece)
        return out

    @staticmethod
    def _scaled(t: Tape, logits: Value, piece: Size) -> Value:
        """Adapter v2: the shifted products are kept."""
        width = logits.dims[-1]
        scale, shift = (t.parameter(leaf, (width,), adapter=True) for leaf in ("adapter_scale", "adapter_bias"))
        out = t.new("mul", logits.dims, logits.dtype, grad=True)
        t.step("mul", (logits, scale, shift), (out,), saved=(logits,), scratch=piece, back_scratch=piece * 2, piecewise=True)
        return out

    @staticmethod
    def _capped(t: Tape, logits: Value, piece: Size) -> Value:
        """`tanh(x / cap)·cap`: keeps tanh, which takes the place of the products."""
        out = t.new("softcap", logits.dims, logits.dtype, logits.grad)
        t.step("softcap", (logits,), (out,), saved=(logits,), scratch=piece * 2, back_scratch=piece * 2, piecewise=True)
        return out


class LitLoss(Record, frozen=True):
    """chunked_cross_entropy (litgpt/utils.py) on logits (n, V).

    `listed`: the logits come in chunks, and the cross entropy takes the same ones; else it takes chunks of rows out of the shifted logits.
    """

    vocab: int
    listed: bool
    chunk: int = CHUNK
    """Rows at once (of every sequence if `listed`); 0: all, inside a function that returns only the loss (extensions/thunder/pretrain.py)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, V) -> the loss."""
        with t.scope("loss"):
            if not self.chunk and x.dtype != FP32:
                # the loop's variable keeps the logits
                t.linger(x)
                return narrow_cross_entropy(t, x)
            if not self.chunk:
                return self._entropy(t, x, TOKENS)
            t.linger(x)
            if self.listed:
                return self._entropy(t, x, piece_of(self.chunk))
            shifted = ops.narrow(t, x, (SHIFTED_TOKENS, x.dims[-1]))
            flat = shifted if t.setup.single else ops.contiguous(t, shifted)
            t.hold(flat)
            parts = Value(flat.storage, flat.dims, flat.dtype, flat.grad)
            t.step("split", (flat,), (parts,))
            return self._entropy(t, parts, Dim("c", self.chunk))

    def _entropy(self, t: Tape, logits: Value, rows: Dim) -> Value:
        """Log-probabilities of all chunks are kept. Backward makes two gradients of a chunk, the second in place of its log-probabilities; as autograd
        runs the newest operations first, those of all chunks are done before any of the head's."""
        piece = Size.of((rows, logits.dims[-1]), FP32)
        logs = t.new("log_softmax", logits.dims, FP32, logits.grad)
        out = t.new("loss", (), FP32, logits.grad)
        into = [Made(logits, None, into=logs.storage)]
        t.step("cross_entropy", (logits,), (out, logs), saved=(logs,), made=into, back_scratch=piece * 2)
        return out
