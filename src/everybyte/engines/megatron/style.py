"""Which implementation of each step runs: what Megatron-LM's arguments, the GPU and the versions behind them decide."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from everybyte.basics.record import Record

AttentionKernel = Literal["unfused", "cudnn", "flash2"]
Dispatcher = Literal["allgather", "alltoall", "flex"]
CrossEntropy = Literal["eager", "native", "te"]


class Style(Record, frozen=True):
    """The choices that a layer asks for. Hashable: a layer's steps are worked out once for each."""

    te: bool = True
    """Layers of Transformer Engine; else Megatron Core's local ones."""
    attention: AttentionKernel = "cudnn"
    dropout: bool = False
    """Hidden states and attention drop out in training."""
    rope_fused: bool = True
    rotary: tuple[int, int] = (1, 1)
    """Share of each head that turns."""
    qk_norm: bool = False
    glu_fused: bool = True
    """The gated activation is one kernel with the bias (bias_swiglu_fusion)."""
    relu_fused: bool = False
    """Squared ReLU of experts is one kernel with the routing weights (use_fused_weighted_squared_relu)."""
    wgrad_fused: bool = True
    """Weight gradients are added into the main gradients by the product itself (gradient_accumulation_fusion)."""
    deterministic: bool = False
    """torch.use_deterministic_algorithms."""
    permute_fused: bool = False
    dispatcher: Dispatcher = "allgather"
    late_weights: bool = False
    """Routing weights multiply the experts' results, not their activations (Megatron Core before 0.13)."""
    capacity: tuple[int, int] = (0, 1)
    """Tokens that an expert takes at most, as a multiple of its balanced share (moe_expert_capacity_factor): (numerator, denominator), 0 for no limit."""
    pads_experts: bool = False
    """Experts are given as many tokens as they take at most (moe_pad_expert_input_to_capacity)."""
    forces_balance: bool = False
    """Tokens choose experts at random (moe_router_force_load_balancing)."""
    fp8: bool = False
    recompute: tuple[str, ...] = ()
    """Modules that backward runs again (recompute_modules)."""
    offloaded: tuple[str, ...] = ()
    """Modules whose kept tensors wait in host memory (offload_modules)."""
    captured: bool = False
    """Attention is captured in CUDA graphs."""
    replayed: bool = False
    """It is replayed from the first step on, so that what it makes and keeps never lies outside of the graphs' pool."""
    cross_entropy: CrossEntropy = "eager"
    loads_mask: bool = True
    """The data loader makes an attention mask of b·s² bytes."""

    mtp_repeated: bool = False
    """One block of multi-token prediction runs once for every depth (mtp_use_repeated_layer)."""
    binary_head: bool = True
    """BERT also learns the order of two sentences."""

    @property
    def at_ends(self) -> Style:
        """What of it the embedding and the head ask for: modules of transformer layers are not theirs."""
        return replace(self, recompute=(), offloaded=()) if self.recompute or self.offloaded else self

    def again(self, module: str) -> bool:
        """Whether backward runs a module again."""
        return module in self.recompute

    def parks(self, module: str) -> bool:
        """Whether what a module keeps waits in host memory."""
        return module in self.offloaded
