"""The form of a job (contract, section 1): frozen structs whose attributes are the keys of the file.

An attribute that is None was not given. That is not the same as its default: the engines fill defaults in and record where each came from.
"""

# No `from __future__ import annotations`: msgspec reads every annotation of this file, and evaluating them as text would take two milliseconds of each start.

from typing import Annotated, Any, Literal

import msgspec

from everybyte.job import words

VERSION: Literal[1] = 1
MOST = 10**9
"""No count in a job (tokens, sequences, ranks) is larger than this; what is larger is a slip of the pen."""

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
CountOrZero = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**60)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Parameters = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
GroupSize = Annotated[int, msgspec.Meta(ge=-1, le=MOST)]
Figure = Annotated[int, msgspec.Meta(ge=-(2**60), le=2**60)] | Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
"""Engines print negative sizes too: a cache budget below zero is how a start-up fails."""
Names = tuple[str, ...]


class Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a job. Keys that are not in the form are refused."""


class InlineModel(Form, frozen=True, kw_only=True):
    """A model that no name stands for; exactly one of the two is given."""

    config: dict[str, Any] | None = None
    """Fields of a Hugging Face config.json."""
    shape: dict[str, Any] | None = None
    """Sizes in field-standard letters (contract, section 2); the model families check them."""


class CustomGpu(Form, frozen=True, kw_only=True):
    """A GPU that is not in the catalogue."""

    memory_bytes: Bytes
    """Bytes that a program can allocate on it, as `torch.cuda.mem_get_info` reports the total."""
    name: str | None = None


class Hardware(Form, frozen=True, kw_only=True):
    """What the job runs on. Without a GPU the answer has figures and no verdict."""

    gpu: str | CustomGpu | None = None
    gpus: CountOrZero | None = None
    """All GPUs of the job; 0 is CPU only, for serving engines that can."""
    gpus_per_node: Count | None = None
    host_memory_gib: Positive | None = None
    """Per node."""


class Env(Form, frozen=True, kw_only=True):
    """Settings of the process that change memory."""

    alloc_conf: str | None = None
    """PYTORCH_CUDA_ALLOC_CONF."""
    driver: str | None = None
    nccl: dict[str, str | int | float | bool] | None = None
    """NCCL environment variables by their own names."""


class DTypes(Form, frozen=True, kw_only=True):
    """Single number formats that override the precision recipe."""

    weights: words.RecipeDType | None = None
    compute: words.RecipeDType | None = None
    grads: words.RecipeDType | None = None
    reduce: words.RecipeDType | None = None
    master: words.RecipeDType | None = None
    optimizer: words.RecipeDType | None = None


class Optimizer(Form, frozen=True, kw_only=True):
    """The optimizer; names are those of the framework (`adamw`, `adamw-8bit`, `muon`) and the engine knows which it can answer for."""

    name: str | None = None
    impl: words.OptimizerImpl | None = None
    state_dtype: words.StateDType | None = None
    rank: Count | None = None
    """Of GaLore and APOLLO projections."""
    paged: bool | None = None
    in_backward: bool | None = None
    """The step of a parameter runs as soon as its gradient is there, so that gradients do not accumulate."""


class Adapter(Form, frozen=True, kw_only=True):
    """A small trainable addition to a frozen model."""

    kind: words.AdapterKind | None = None
    rank: Count | None = None
    alpha: Positive | None = None
    targets: Literal["all-linear"] | Names | None = None
    modules_to_save: Names | None = None
    dtype: words.FloatDType | None = None
    layers: Count | tuple[CountOrZero, ...] | None = None
    """How many layers, or which."""
    trainable_params: Parameters | None = None
    """What the run printed, for kinds whose count depends on more than the form holds."""


class Quantization(Form, frozen=True, kw_only=True):
    """Packed frozen base weights."""

    format: words.QuantFormat | None = None
    bits: Annotated[int, msgspec.Meta(ge=1, le=16)] | None = None
    group_size: GroupSize | None = None
    """-1: one group a row."""
    double: bool | None = None
    """The scales are quantised as well."""
    modules: Names | None = None
    kbit_prep: bool | None = None
    """peft.prepare_model_for_kbit_training: unquantised parameters become fp32."""
    storage: words.StorageDType | None = None


class Mesh(Form, frozen=True, kw_only=True):
    """Sizes of the axes; what is left of the GPUs goes to data parallel."""

    dp_replicate: Count | None = None
    dp_shard: Count | None = None
    tp: Count | None = None
    sp: bool | None = None
    cp: Count | None = None
    pp: Count | None = None
    ep: Count | None = None
    etp: Count | None = None
    ulysses: Count | None = None


class Pipeline(Form, frozen=True, kw_only=True):
    """How layers and micro-batches go through the stages."""

    schedule: words.Schedule | None = None
    virtual: Count | None = None
    """Chunks of layers on one rank."""
    layers: tuple[CountOrZero, ...] | str | None = None
    """Per stage, or a layout text such as `Et|(tt|)*6mL`."""
    microbatches: Count | None = None


class Recompute(Form, frozen=True, kw_only=True):
    """What the forward pass drops and the backward pass computes again."""

    policy: words.RecomputePolicy | None = None
    every: Count | None = None
    modules: Names | None = None
    method: words.RecomputeMethod | None = None
    layers: Count | None = None
    reentrant: bool | None = None
    offload: bool | None = None
    """The kept inputs wait in host memory."""


class Offload(Form, frozen=True, kw_only=True):
    """What lives in host memory or on disk between its uses."""

    optimizer: words.OffloadTarget | None = None
    params: words.OffloadTarget | None = None
    activations: words.OffloadTarget | None = None
    fraction: Fraction | None = None


class Loss(Form, frozen=True, kw_only=True):
    """How logits and cross entropy are computed."""

    kind: words.LossKind | None = None
    chunks: Count | None = None
    logits_dtype: words.FloatDType | None = None


class Buckets(Form, frozen=True, kw_only=True):
    """Sizes of communication buffers, in elements."""

    reduce: CountOrZero | None = None
    gather: CountOrZero | None = None
    prefetch: CountOrZero | None = None
    live: CountOrZero | None = None


class Train(Form, frozen=True, kw_only=True):
    """A training step."""

    framework: words.Framework | None = None
    version: str | None = None
    micro_batch: Count | None = None
    """Sequences per data-parallel rank and micro-batch."""
    seq_len: Count | None = None
    tokens: Count | None = None
    """Per micro-batch; may stand for micro_batch × seq_len when sequences are packed."""
    grad_accum: Count | None = None
    precision: words.Precision | None = None
    dtypes: DTypes | None = None
    optimizer: Optimizer | None = None
    adapter: Adapter | None = None
    quantization: Quantization | None = None
    freeze: Names | None = None
    mesh: Mesh | None = None
    sharding: words.Sharding | None = None
    pipeline: Pipeline | None = None
    recompute: Recompute | None = None
    offload: Offload | None = None
    attention: words.TrainAttention | None = None
    loss: Loss | None = None
    kernels: tuple[words.Kernel, ...] | None = None
    compile: bool | None = None
    buckets: Buckets | None = None
    dropout: Fraction | None = None
    zero_grad_set_to_none: bool | None = None
    grad_clip: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    extra: dict[str, Any] | None = None


class Weights(Form, frozen=True, kw_only=True):
    """Format of served weights; without it the checkpoint's own."""

    format: str | None = None
    bits: Annotated[float, msgspec.Meta(gt=0, le=64)] | None = None
    """Bits a weight in the mean, as the tool that packed them printed it."""
    group_size: GroupSize | None = None
    kind: Literal["weight-only", "weight-activation"] | None = None
    double: bool | None = None
    modules: Names | None = None


class KvDType(Form, frozen=True, kw_only=True):
    """Formats of the cache's keys and values."""

    k: str | None = None
    v: str | None = None


class ServeMesh(Form, frozen=True, kw_only=True):
    """Sizes of the axes of a serving engine."""

    tp: Count | None = None
    pp: Count | None = None
    ep: Count | None = None
    dp: Count | None = None
    cp: Count | None = None


class CudaGraphs(Form, frozen=True, kw_only=True):
    """Batch sizes that are captured."""

    sizes: tuple[Count, ...] | None = None


class Draft(Form, frozen=True, kw_only=True):
    """Speculative decoding."""

    method: str | None = None
    model: str | None = None
    tokens: Count | None = None


class ServeLora(Form, frozen=True, kw_only=True):
    """Adapters that are served along with the model."""

    rank: Count | None = None
    count: Count | None = None
    dtype: words.FloatDType | None = None
    targets: Names | None = None


class Serve(Form, frozen=True, kw_only=True):
    """A serving process."""

    engine: words.Engine | None = None
    version: str | None = None
    weights: Weights | None = None
    kv_dtype: KvDType | None = None
    context: Count | None = None
    """Tokens per sequence."""
    sequences: Count | None = None
    """How many at once."""
    batched_tokens: Count | None = None
    ubatch: Count | None = None
    memory_fraction: Share | None = None
    mesh: ServeMesh | None = None
    cuda_graphs: bool | CudaGraphs | None = None
    attention: str | None = None
    block_size: Count | None = None
    gpu_layers: Annotated[int, msgspec.Meta(ge=-1, le=MOST)] | None = None
    """-1: all."""
    parallel_slots: Count | None = None
    swa_full: bool | None = None
    unified_kv: bool | None = None
    tensor_split: tuple[Annotated[float, msgspec.Meta(ge=0, le=1e9)], ...] | None = None
    draft: Draft | None = None
    lora: bool | ServeLora | None = None
    multimodal: bool | dict[str, CountOrZero] | None = None
    """Whether, or how many items of each kind a request may hold."""
    extra: dict[str, Any] | None = None


class Job(Form, frozen=True, kw_only=True):
    """One thing that a person wants to run: exactly one of `train` and `serve`."""

    everybyte: Literal[1] = VERSION
    name: str | None = None
    model: str | InlineModel
    hardware: Hardware | None = None
    env: Env | None = None
    train: Train | None = None
    serve: Serve | None = None
    given: dict[str, Figure] | None = None
    """Figures that are known already, in bytes; they replace the computed ones."""
