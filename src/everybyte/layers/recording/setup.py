"""How a network is run: number formats, what is trained, and which implementation of each step is used.

Implementations are values, not branches: an engine chooses them once, a layer asks for them when it writes its steps, and
nobody else asks which framework runs.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

import msgspec
from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP32, DType
from everybyte.basics.record import Record

AttentionKernel = Literal["eager", "sdpa", "flash"]
ExpertsKernel = Literal["grouped", "loop", "linears"]
"""grouped: one product over all experts of a stacked weight; loop: one expert after the other; linears: each is linear layers of its own too."""


SharedTable = Literal["", "in place", "new"]
"""in place: a second gradient of a table is written over the first; new: autograd makes a new tensor of both."""


WHERE_ASKED = -1.0
"""The rate of a layer that can drop, of a model that states no rate: the job's, or none."""


class Kernels(Record, frozen=True):
    """Which implementation runs each step."""

    attention: AttentionKernel = "sdpa"
    norm: Literal["eager", "fused", "narrow"] = "eager"
    """eager: as HF writes it (fp32 upcast, mean, rsqrt, two products); fused: one kernel that keeps its input and one statistic a row; narrow: LayerNorm in
    the compute type, outside of autocast."""
    mlp: Literal["eager", "fused"] = "eager"
    """fused: gate·silu·up in one kernel that keeps gate and up and recomputes the product."""
    rope: Literal["eager", "pairs", "fused"] = "eager"
    """pairs: neighbours turn together, in fp32 (torchtune)."""
    loss: str = "hf"
    """Name of a loss in `layers.loss.LOSSES`."""
    chunks: int = 8
    """Parts of the tokens whose loss is worked out one after the other, where the loss does so."""
    rows: int = 1
    """Sequences of the micro-batch, where the loss works them off one after the other (layers.logprobs)."""
    scored: tuple[int, int] = (1, 1)
    """(part, whole): of a sequence's tokens, those that the head runs on (logits_to_keep)."""
    lora: Literal["peft", "fused"] = "peft"
    experts: ExpertsKernel = "grouped"
    scan: Literal["eager", "fused"] = "eager"
    """State-space and linear-attention layers: plain operations as transformers writes them, or the kernels of mamba-ssm, causal-conv1d and fla."""
    repeat_kv: bool = False
    """Keys and values are repeated to all heads before a fused attention call."""
    masked: bool = False
    """An explicit attention mask is passed (padded batches): SDPA then repeats keys and values and keeps the mask."""
    past: Literal["none", "forward", "backward"] = "none"
    """Training passes put keys and values into a cache as if more tokens came (transformers' config.use_cache): not, or into one that lives to
    the end of forward, or with the model's output to that of backward."""
    slices_whole: bool = False
    """Indexing by `:` is an operation of its own, whose backward makes zeros and copies into them (torch before 2.9)."""
    device: Literal["cuda", "cpu"] = "cuda"
    """CPU stores dropout masks and LayerNorm statistics in the activation's type; CUDA as bool and fp32."""
    holds_linear_inputs: bool = False
    """bitsandbytes before 2024-07-16 kept the input of every 4-bit matmul for backward."""


class Adapter(Record, frozen=True):
    """Adapters of one kind (`layers.adapters.WRITERS`) on frozen linear layers, or before the first block."""

    kind: str
    rank: int
    targets: tuple[str, ...]
    """Ends of module paths, whole components as in peft: `q_proj`, `shared_expert.gate_proj`; `*` for every linear layer but the head."""
    dtype: DType = FP32
    dropout: float = 0.0
    options: tuple[tuple[str, int], ...] = ()
    """Settings that only this kind has, by peft's names (`n_frequency`, `num_virtual_tokens`)."""
    feedforward: tuple[str, ...] = ()
    """Targets whose input is scaled, not their result ((IA)³)."""

    def option(self, key: str, default: int) -> int:
        """A setting of this kind."""
        return dict(self.options).get(key, default)

    def feeds_forward(self, place: str) -> bool:
        """Whether the linear layer at `place` is one of `feedforward`."""
        return place.rsplit(".", 1)[-1] in self.feedforward

    def covers(self, place: str) -> bool:
        """Whether the linear layer at `place` (its path) has an adapter."""
        last = place.rsplit(".", 1)[-1]
        if "*" in self.targets and last not in ("lm_head", "embed_out", "score"):
            return True
        return any(place == target or place.endswith(f".{target}") for target in self.targets)


class Packed(Record, frozen=True):
    """Frozen linear weights in a packed format; dequantised to the compute type whenever they are used."""

    format: str
    skip: tuple[str, ...] = ("lm_head", "embed_out")
    group_size: int = 64
    double: bool = False
    bits: int = 4
    parts: int = 1
    """`bits` are counted in so many parts of a bit: 4.25 bits are 17 of 4."""
    experts: bool = False
    """Experts that are joined in one three-dimensional weight are packed as well, not linear layers alone."""

    @property
    def computes(self) -> bool:
        """The kernels multiply packed numbers; they need no dense copy of the weight."""
        return self.format in ("fp8", "mxfp8", "mxfp4", "nvfp4")

    def covers(self, place: str) -> bool:
        """Whether the linear layer at `place` is packed."""
        return not any(fnmatchcase(place, f"*{pattern}") or fnmatchcase(place, f"*{pattern}.*") for pattern in self.skip)


class Setup(Record, frozen=True):
    """Number formats and choices of one run. Hashable: a layer's steps are worked out once for each."""

    weights: DType = BF16
    compute: DType | None = None
    """Autocast type: linear layers and matmuls cast their inputs to it. None: everything runs in the type of the weights."""
    grad: bool = True
    """Whether anything is trained. False: inference mode, nothing is kept for backward."""
    trainable: tuple[str, ...] = ("*",)
    """Patterns of parameter names that are trained; empty when the whole base is frozen."""
    frozen: tuple[str, ...] = ()
    """Patterns of parameter names that are not trained though `trainable` has them."""
    keeps_originals: bool = False
    """Beside each trained tensor of the base its frozen original stays (peft ModulesToSaveWrapper)."""
    adapter: Adapter | None = None
    packed: Packed | None = None
    norm_weights: DType | None = None
    """Type of the norms where it differs from the other weights (k-bit preparation turns them into fp32)."""
    outer_weights: DType | None = None
    """Type of embedding and head where it differs from the other weights."""
    kernels: Kernels = msgspec.field(default_factory=Kernels)
    input_grads: bool = False
    """The embedding's result needs a gradient though its table is frozen (HF enable_input_require_grads, for recomputed blocks)."""
    single: bool = False
    """One sequence: a broadcast of one KV head then stays a view."""
    past_window: bool = False
    """Sequences are longer than the sliding windows: SDPA then gets an explicit mask in the layers that have one."""
    cache: Literal["none", "prefill", "decode"] = "none"
    """Whether keys and values are stored (a whole prompt, or one more token behind a past), or only used."""
    shared_table: SharedTable = ""
    """How the gradient of the embedding's table is added to that of the head, which has the same table and where it is counted. Empty: the table is
    the embedding's own."""
    dropout: float | None = None
    """Overrides the model's dropout rates; None keeps them."""

    def trains(self, name: str) -> bool:
        """Whether the base parameter called `name` is trained."""
        return self.grad and _matches(name, self.trainable) and not _matches(name, self.frozen)

    def of_blocks(self, path: str) -> Setup:
        """The setup of blocks whose parameters are called `{path}.0...`: nothing of them is trained if their path is frozen."""
        return replace(self, trainable=()) if self.frozen and _matches(path, self.frozen) else self

    def rate(self, model_rate: float) -> float:
        """The dropout rate that applies to a layer of the model."""
        if not self.grad:
            return 0.0
        if model_rate == WHERE_ASKED:
            return self.dropout or 0.0
        return model_rate if self.dropout is None else (self.dropout if model_rate else 0.0)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
