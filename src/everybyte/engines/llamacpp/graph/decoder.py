"""The graph of a whole network, out of its blocks (llama.cpp src/models/*.cpp)."""

from __future__ import annotations

from typing import Any

from everybyte.allocator import ggml_ops as op
from everybyte.allocator.ggml import F32, I32, Graph, Tensor
from everybyte.engines.llamacpp.graph.attention import Shape, attend
from everybyte.engines.llamacpp.graph.builder import Builder, Window
from everybyte.engines.llamacpp.graph.encoder import encoder_block, encoder_mask
from everybyte.engines.llamacpp.graph.feed_forward import feed_forward, routed
from everybyte.engines.llamacpp.graph.latent import latent_attention
from everybyte.engines.llamacpp.graph.prompt import Placement, Prompt
from everybyte.engines.llamacpp.graph.recurrent import States, delta_net, mamba1, mamba2
from everybyte.engines.llamacpp.layers import attention_of, blocks_of, is_windowed, knows_windows, parts_of
from everybyte.engines.llamacpp.release import is_fork
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.attention.mla import MLA
from everybyte.layers.blocks.encoder import PostNormBlock
from everybyte.layers.blocks.gemma4 import Gemma4Attention, Gemma4Block, Gemma4Stem
from everybyte.layers.blocks.mixer import MixerBlock, TwinBlock
from everybyte.layers.blocks.transformer import Block, FinalNorm, ParallelBlock
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.layers.recurrent.delta_net import GatedDeltaNet
from everybyte.layers.recurrent.mamba1 import Mamba1
from everybyte.layers.recurrent.mamba2 import Mamba2


class NoGraph(Exception):
    """A block whose graph is not written here; its name."""


def prompt_graph(network: Network, prompt: Prompt, placement: Placement) -> Graph:
    """The graph of the largest prompt. Raises NoGraph for a network with a block that is not known."""
    return _Decoder(network, prompt, placement).run()


def _is_phi(block: Block) -> bool:
    """Phi-3 and 4 add the branch to the residual, not the residual to the branch (models/phi3.cpp)."""
    return isinstance(block.mixer, Attention) and block.mixer.projections.fused == "qkv_proj"


class _Decoder:
    """One pass over the blocks."""

    def __init__(self, network: Network, prompt: Prompt, placement: Placement) -> None:
        self.network = network
        self.blocks = blocks_of(network)
        self.b = Builder(prompt, placement, network.hidden, len(self.blocks))
        self.windows = knows_windows(network)
        self.has_delta_nets = any(isinstance(part, GatedDeltaNet) for block in self.blocks for part in parts_of(block))
        self.positions: Tensor | None = None
        self.outputs: Tensor | None = None
        self.states: States | None = None
        self.own_inputs: Tensor | None = None
        self.mask: Tensor | None = None

    def run(self) -> Graph:
        b, network = self.b, self.network
        self.positions = op.new_input(I32, b.tokens * (4 if self._sections() else 1))
        x = self._embedded()
        self._caches()
        self.outputs = op.new_input(I32, b.prompt.outputs)
        if isinstance(network.stem, Gemma4Stem) and network.stem.own_input:
            self.own_inputs = self._own_inputs(network.stem, x)
        for index, block in enumerate(self.blocks):
            x = self._block(index, block, x)
        if isinstance(self.blocks[-1], PostNormBlock):
            b.graph.expand(x)
            return b.graph
        tail = network.tail
        if not isinstance(tail, FinalNorm):
            raise NoGraph(type(tail).__name__)
        x = self._norm(x, tail.norm, "output_norm", len(self.blocks))
        if self._picks_late():
            x = op.get_rows(x, self.outputs)
        head = network.head
        b.output(x, network.vocab, bool(getattr(head, "softcap", False)), bool(getattr(head, "bias", False)))
        return b.graph

    def _embedded(self) -> Tensor:
        """Embedding, with learned positions, token types and a norm where the model has them; all on the host."""
        b, stem = self.b, self.network.stem
        assert self.positions is not None
        x = b.embedding(self.network.vocab, bool(getattr(stem, "scaled", False)) or isinstance(stem, Gemma4Stem))
        if getattr(stem, "types", 0):
            x = op.like("add", x, op.view(op.outside(F32, b.hidden, stem.types, device=b.cpu), b.hidden))
        if getattr(stem, "positions", 0):
            rows = op.get_rows(op.outside(F32, b.hidden, stem.positions, device=b.cpu), self.positions)
            x = op.like("add", rows, x) if getattr(stem, "types", 0) else op.like("add", x, rows)
        if getattr(stem, "norm", ""):
            for name in ("mul", "add"):
                x = op.like(name, op.like("norm", x) if name == "mul" else x, op.outside(F32, b.hidden, device=b.cpu))
        return x

    # -- what the model is ----------------------------------------------------------------------------------------------------
    def _sections(self) -> bool:
        """Positions by time, height and width: four numbers a token (Qwen 3.5)."""
        return any(isinstance(part, GatedDeltaNet) and not part.joined for block in self.blocks for part in parts_of(block))

    def _picks_late(self) -> bool:
        """Rows of output are picked behind the last norm, since drafts of the next token read all rows before (mid-2026)."""
        late = (Gemma4Block, GatedDeltaNet)
        return self.b.release.has("few_outputs") and any(isinstance(part, late) for block in self.blocks for part in (block, *parts_of(block)))

    def _caches(self) -> None:
        """The inputs of both caches and of recurrent states."""
        b = self.b
        mixers = [part for block in self.blocks for part in parts_of(block)]
        attentions = [(part, attention_of(part)) for part in mixers if attention_of(part) is not None and not getattr(part, "reads_earlier", False)]
        full = [shape for part, shape in attentions if shape is not None and not (self.windows and is_windowed(part))]
        slid = [shape for part, shape in attentions if shape is not None and self.windows and is_windowed(part)]
        latent = any(isinstance(part, MLA) for part in mixers) and b.release.has("stores_latent_once")
        if full:
            b.full = self._window(full, b.prompt.cells, latent)
        if slid:
            b.slid = self._window(slid, b.prompt.window_cells or b.prompt.cells, latent)
        if any(isinstance(part, (Mamba1, Mamba2, GatedDeltaNet)) for part in mixers):
            self.states = States(b)

    def _window(self, shapes: list[Shape], cells: int, latent: bool) -> Window:
        heads = (shapes[0].key, shapes[0].value) if len({s.key for s in shapes}) == 1 else (0, 0)
        return self.b.window(cells, heads, one=latent)

    # -- blocks ---------------------------------------------------------------------------------------------------------------
    def _block(self, index: int, block: Any, x: Tensor) -> Tensor:
        if isinstance(block, Block):
            return self._two_branches(index, block, x)
        if isinstance(block, ParallelBlock):
            return self._parallel(index, block, x)
        if isinstance(block, MixerBlock):
            return self._one_branch(index, block, x)
        if isinstance(block, TwinBlock):
            return self._twin(index, block, x)
        if isinstance(block, Gemma4Block):
            return self._gemma4(index, block, x)
        if isinstance(block, PostNormBlock):
            self.mask = self.mask or encoder_mask(self.b)
            return encoder_block(self.b, index, block, x, self.mask, self.outputs if index == len(self.blocks) - 1 else None)
        raise NoGraph(type(block).__name__)

    def _picked(self, index: int, *values: Tensor) -> tuple[Tensor, ...]:
        """In the last block only rows that are put out go on."""
        if index < len(self.blocks) - 1 or self._picks_late():
            return values
        assert self.outputs is not None
        return tuple(op.get_rows(value, self.outputs) for value in values)

    def _norm(self, x: Tensor, norm: Any, name: str, layer: int) -> Tensor:
        if norm.kind == "rms":
            return self.b.norm(x, name, layer)
        return self.b.layer_norm(x, name, layer, bias=norm.bias)

    def _two_branches(self, index: int, block: Block, x: Tensor) -> Tensor:
        if block.after != ("", ""):
            raise NoGraph("a block with norms on its sums")
        y = self._norm(x, block.norm, "attn_norm", index) if block.pre[0] else x
        if self.has_delta_nets:
            self.b.graph.expand(y)
        y = self._mixer(index, block.mixer, y)
        y, x = self._picked(index, y, x)
        if block.post[0]:
            y = self._norm(y, block.norm, "post_attention_norm", index)
        if block.scaled:
            y = op.like("scale", y)
        middle = op.like("add", y, x)
        y = self._norm(middle, block.norm, "ffn_norm", index) if block.pre[1] else middle
        y = self._feed_forward(index, block.mlp, y)
        if block.post[1]:
            y = self._norm(y, block.norm, "post_ffw_norm", index)
        if block.scaled:
            y = op.like("scale", y)
        return op.like("add", middle, y) if _is_phi(block) else op.like("add", y, middle)

    def _parallel(self, index: int, block: ParallelBlock, x: Tensor) -> Tensor:
        """Both branches read the same norm, or each its own."""
        first = self._norm(x, block.norm, "attn_norm", index)
        y = self._mixer(index, block.mixer, first)
        if len(block.pre) > 1:
            y, x = self._picked(index, y, x)
            inner = self._norm(x, block.norm, "ffn_norm", index)
        else:
            y, x, inner = self._picked(index, y, x, first)
        return op.like("add", op.like("add", self._feed_forward(index, block.mlp, inner), y), x)

    def _one_branch(self, index: int, block: MixerBlock, x: Tensor) -> Tensor:
        y = self._norm(x, block.norm, "attn_norm", index)
        y = self._mixer(index, block.mixer, y)
        y, x = self._picked(index, y, x)
        return op.like("add", y, x)

    def _twin(self, index: int, block: TwinBlock, x: Tensor) -> Tensor:
        """Attention and Mamba 2 side by side, each behind the same norm (models/falcon-h1.cpp)."""
        left = self._mixer(index, block.attention, self._norm(x, block.norm, "attn_norm", index))
        right = self._mixer(index, block.mamba, self._norm(x, block.norm, "attn_norm", index))
        (x,) = self._picked(index, op.like("add", op.like("add", left, right), x))
        return op.like("add", self._feed_forward(index, block.mlp, self._norm(x, block.norm, "ffn_norm", index)), x)

    def _gemma4(self, index: int, block: Gemma4Block, x: Tensor) -> Tensor:
        b = self.b
        y = self._mixer(index, block.attention, b.norm(x, "attn_norm", index))
        y, x = self._picked(index, y, x)
        middle = op.like("add", b.norm(y, "post_attention_norm", index), x)
        y = feed_forward(b, index, b.norm(middle, "ffn_norm", index), block.mlp)
        if block.experts is not None:
            y = b.norm(y, "post_ffw_norm_1", index)
            y = op.like("add", y, self._gemma4_experts(index, block, middle))
        out = op.like("add", b.norm(y, "post_ffw_norm", index), middle)
        if block.own_input:
            out = self._own_input(index, block.own_input, out)
        return op.like("mul", out, b.vector("layer_output_scale", index, 1)) if block.scaled else out

    def _gemma4_experts(self, index: int, block: Gemma4Block, x: Tensor) -> Tensor:
        b, part = self.b, block.experts
        assert part is not None
        inner = b.norm(x, "pre_ffw_norm_2", index)
        seen = op.like("mul", op.like("scale", op.like("rms_norm", x)), b.vector("ffn_gate_inp.scale", index, b.hidden))
        logits = op.mul_mat(b.matrix("ffn_gate_inp", index, b.hidden, part.experts.count), seen)
        out = routed(b, index, inner, Router(part.experts.count, part.experts.top_k), part.experts, logits)
        return b.norm(out, "post_ffw_norm_2", index)

    # -- Gemma 4's inputs of every layer --------------------------------------------------------------------------------------
    def _own_inputs(self, stem: Gemma4Stem, x: Tensor) -> Tensor:
        """(width, tokens, layers): rows of a table of their own, mixed with a projection of the embedding; on the host."""
        b = self.b
        width = stem.own_input * stem.layers
        table = op.outside(b.placement.kind("per_layer_token_embd", -1), width, stem.own_vocab, device=b.cpu)
        rows = op.reshape(op.get_rows(table, op.new_input(I32, b.tokens)), stem.own_input, stem.layers, b.tokens)
        rows = op.like("scale", rows)
        b.graph.expand(rows)
        matrix = op.outside(b.placement.kind("per_layer_model_proj", -1), b.hidden, width, device=b.cpu)
        mixed = op.reshape(op.like("scale", op.mul_mat(matrix, x)), stem.own_input, stem.layers, b.tokens)
        mixed = op.like("mul", op.like("rms_norm", mixed), op.outside(F32, stem.own_input, device=b.cpu))
        return op.cont(op.permute(op.like("scale", op.like("add", mixed, rows)), 0, 2, 1, 3))

    def _own_input(self, index: int, width: int, x: Tensor) -> Tensor:
        b = self.b
        assert self.own_inputs is not None
        gate = op.like("unary", op.mul_mat(b.matrix("inp_gate", index, b.hidden, width), x))
        mine = op.view(self.own_inputs, width, b.tokens)
        (mine,) = self._picked(index, mine)
        mixed = op.mul_mat(b.matrix("proj", index, width, b.hidden), op.like("mul", gate, mine))
        return op.like("add", x, b.norm(mixed, "post_norm", index))

    # -- mixers ---------------------------------------------------------------------------------------------------------------
    def _feed_forward(self, index: int, part: Any, x: Tensor) -> Tensor:
        try:
            return feed_forward(self.b, index, x, part)
        except AttributeError as error:
            raise NoGraph(type(part).__name__) from error

    def _mixer(self, index: int, part: Any, x: Tensor) -> Tensor:
        b = self.b
        assert self.positions is not None
        if isinstance(part, Attention):
            return self._attention(index, part, x)
        if isinstance(part, Gemma4Attention):
            return self._gemma4_attention(index, part, x)
        if isinstance(part, MLA):
            assert b.full is not None
            if part.indexer is not None or part.gate:
                raise NoGraph("MLA with an indexer or a gate")
            return latent_attention(b, index, x, part, b.full, self.positions)
        if self.states is not None:
            if isinstance(part, Mamba1):
                return mamba1(b, index, x, part, self.states)
            if isinstance(part, Mamba2):
                return mamba2(b, index, x, part, self.states)
            if isinstance(part, GatedDeltaNet):
                return delta_net(b, index, x, part, self.states)
        if hasattr(part, "ffn") or hasattr(part, "experts"):
            return self._feed_forward(index, part, x)
        raise NoGraph(type(part).__name__)

    def _cache(self, part: Any) -> Window:
        found = self.b.slid if self.windows and is_windowed(part) else self.b.full
        assert found is not None
        return found

    def _rope(self, x: Tensor) -> Tensor:
        assert self.positions is not None
        return op.like("rope", x, self.positions)

    def _attention(self, index: int, part: Attention, x: Tensor) -> Tensor:
        if part.indexer is not None or part.scores.temperature or part.qk_norm.over == "each" or part.gate not in ("", "joined"):
            raise NoGraph("attention with an indexer, a temperature or a gate of its own")
        b = self.b
        shape = Shape(part.heads, part.kv_heads, part.head_dim, part.v_dim or part.head_dim)
        q, k, v, gate = self._projections(index, part, shape, x)
        if part.qk_norm.over == "head" and not part.qk_norm.late:
            q, k = b.norm(q, "attn_q_norm", index), b.norm(k, "attn_k_norm", index)
        if part.rotary is not None:
            q, k = self._rope(q), self._rope(k)
        if part.qk_norm.late:
            q, k = b.norm(q, "attn_q_norm", index), b.norm(k, "attn_k_norm", index)
        is_gemma = part.qk_norm.style == "gemma" and getattr(self.network.stem, "scaled", False)
        if part.scores.scaled_query or is_gemma or part.projections.fused == "qkv_proj":
            q = op.like("scale", q)
        sinks = b.vector("attn_sinks", index, part.heads) if part.scores.sinks else None
        out = attend(b, index, q, k, v, shape, self._cache(part), capped=part.scores.softcap and not is_fork(b.release), sinks=sinks, windowed=self.windows)
        if gate is not None:
            out = op.like("mul", out, op.like("unary", gate))
        return b.linear("attn_output", index, out, b.hidden, part.projections.out_bias)

    def _projections(self, index: int, part: Attention, shape: Shape, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q, k and v as (width, heads, tokens), and what gates the result."""
        b, n = self.b, self.b.tokens
        widths = shape.heads * shape.key, shape.kv_heads * shape.key, shape.kv_heads * shape.value
        if part.projections.fused:
            both = b.linear("attn_qkv", index, x, sum(widths), part.projections.qkv_bias)
            q, k, v = (
                op.view(both, width, heads, n, nb=(4, 4 * width, both.nb[1], both.nb[1] * n))
                for width, heads in ((shape.key, shape.heads), (shape.key, shape.kv_heads), (shape.value, shape.kv_heads))
            )
            return q, k, v, None
        gate = None
        if part.gate == "joined":
            whole = b.linear("attn_q", index, x, 2 * widths[0], part.projections.qkv_bias)
            steps = (4, 8 * shape.key, 8 * shape.key * shape.heads, 8 * shape.key * shape.heads * n)
            q = op.view(whole, shape.key, shape.heads, n, nb=steps)
            gate = op.cont(op.view(whole, shape.key, shape.heads, n, nb=steps), widths[0], n)
        else:
            q = b.linear("attn_q", index, x, widths[0], part.projections.qkv_bias)
            q = op.reshape(self._whole_norm(index, part, q, "attn_q_norm"), shape.key, shape.heads, n)
        k = self._whole_norm(index, part, b.linear("attn_k", index, x, widths[1], part.projections.qkv_bias), "attn_k_norm")
        v = b.linear("attn_v", index, x, widths[2], part.projections.qkv_bias)
        k = op.reshape(k, shape.key, shape.kv_heads, n)
        return q, k, v if is_fork(b.release) else op.reshape(v, shape.value, shape.kv_heads, n), gate

    def _whole_norm(self, index: int, part: Attention, x: Tensor, name: str) -> Tensor:
        return self.b.norm(x, name, index) if part.qk_norm.over == "all" else x

    def _gemma4_attention(self, index: int, part: Gemma4Attention, x: Tensor) -> Tensor:
        b, n = self.b, self.b.tokens
        shape = Shape(part.heads, part.kv_heads, part.head_dim, part.head_dim)
        q = op.reshape(b.linear("attn_q", index, x, part.heads * part.head_dim), part.head_dim, part.heads, n)
        q = self._rope(b.norm(q, "attn_q_norm", index))
        k = v = None
        if not part.reads_earlier:
            made = b.linear("attn_k", index, x, part.kv_heads * part.head_dim)
            values = made if part.one_projection else b.linear("attn_v", index, x, part.kv_heads * part.head_dim)
            k = self._rope(b.norm(op.reshape(made, part.head_dim, part.kv_heads, n), "attn_k_norm", index))
            v = op.like("rms_norm", op.reshape(values, part.head_dim, part.kv_heads, n))
        out = attend(b, index, q, k, v, shape, self._cache(part), windowed=True)
        return b.linear("attn_output", index, out, b.hidden)
