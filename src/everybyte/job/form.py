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
    """Sizes in the words of the field (`layers`, `hidden`, `heads`, ...); the model families check them."""


class CustomGpu(Form, frozen=True, kw_only=True):
    """A GPU that is not in the catalogue."""

    memory_bytes: Bytes
    """Bytes that a program can allocate on it, as `torch.cuda.mem_get_info` reports the total."""
    name: str | None = None
    """How the answer calls it."""


class Measured(Form, frozen=True, kw_only=True):
    """Rates of the user's own machine; speed follows them, memory does not."""

    matmul_tflops: Positive | None = None
    """Large 16-bit matrix products in a long run, TFLOP/s."""
    hbm_gb_s: Positive | None = None
    """A long copy inside the device's memory, bytes read and written, GB/s."""
    allreduce_gb_s: Positive | None = None
    """Bus bandwidth of a long all-reduce inside a machine, GB/s (nccl-tests' busbw)."""


class Hardware(Form, frozen=True, kw_only=True):
    """What the job runs on. Without a GPU the answer has figures and no verdict."""

    gpu: str | CustomGpu | None = None
    """A name of the catalogue (`everybyte gpus`), or a GPU that is not in it."""
    gpus: CountOrZero | None = None
    """All GPUs of the job; 0 is CPU only, for serving engines that can."""
    gpus_per_node: Count | None = None
    """Decides which links ranks talk over."""
    host_memory_gib: Positive | None = None
    """Per node."""
    measured: Measured | None = None
    """Rates that were measured on the user's own machine, instead of those of the catalogue's card."""


class Env(Form, frozen=True, kw_only=True):
    """Settings of the process that change memory."""

    alloc_conf: str | None = None
    """PYTORCH_CUDA_ALLOC_CONF, with all options that change what is reserved (backend:cudaMallocAsync is refused)."""
    driver: str | None = None
    """Version of the GPU driver; the CUDA context depends on it."""
    nccl: dict[str, str | int | float | bool] | None = None
    """NCCL environment variables by their own names."""


class DTypes(Form, frozen=True, kw_only=True):
    """Single number formats that override the precision recipe."""

    weights: words.RecipeDType | None = None
    """What parameters are stored in."""
    compute: words.RecipeDType | None = None
    """What matrix products are computed in; autocast if it differs from `weights`."""
    grads: words.RecipeDType | None = None
    """What gradients are stored in."""
    reduce: words.RecipeDType | None = None
    """What gradients are summed over ranks in."""
    master: words.RecipeDType | None = None
    """The copy that the optimizer updates; `none` if it updates the weights themselves."""
    optimizer: words.RecipeDType | None = None
    """What the optimizer's states are stored in."""


class Optimizer(Form, frozen=True, kw_only=True):
    """The optimizer; names are those of the framework (`adamw`, `adamw-8bit`, `muon`) and the engine knows which it can answer for."""

    name: str | None = None
    """`adamw`, `adamw-8bit`, `muon`, ..."""
    impl: words.OptimizerImpl | None = None
    """How PyTorch runs the step: `foreach` makes a temporary of all trained weights, `fused` none."""
    state_dtype: words.StateDType | None = None
    """What states are stored in, where the optimizer lets one choose."""
    rank: Count | None = None
    """Of GaLore and APOLLO projections."""
    paged: bool | None = None
    """States are in managed memory and can move to the host."""
    in_backward: bool | None = None
    """The step of a parameter runs as soon as its gradient is there, so that gradients do not accumulate."""


class Adapter(Form, frozen=True, kw_only=True):
    """A small trainable addition to a frozen model."""

    kind: words.AdapterKind | None = None
    """What is added."""
    rank: Count | None = None
    """Of the two factors; number of virtual tokens for prompts and prefixes."""
    alpha: Positive | None = None
    """Scale of the addition; no bytes depend on it."""
    targets: Literal["all-linear"] | Names | None = None
    """Last parts of the names of adapted modules (`q_proj`), or `all-linear`."""
    modules_to_save: Names | None = None
    """Modules that are trained whole beside the adapters."""
    dtype: words.FloatDType | None = None
    """What adapter weights are stored in."""
    layers: Count | tuple[CountOrZero, ...] | None = None
    """How many layers, or which."""
    trainable_params: Parameters | None = None
    """What the run printed, for kinds whose count depends on more than the form holds."""


class Quantization(Form, frozen=True, kw_only=True):
    """Packed frozen base weights."""

    format: words.QuantFormat | None = None
    """How they are packed."""
    bits: Annotated[int, msgspec.Meta(ge=1, le=16)] | None = None
    """Bits a weight, where the format leaves a choice."""
    group_size: GroupSize | None = None
    """-1: one group a row."""
    double: bool | None = None
    """The scales are quantised as well."""
    modules: Names | None = None
    """Names of packed modules; without it the format's usual ones."""
    kbit_prep: bool | None = None
    """peft.prepare_model_for_kbit_training: unquantised parameters become fp32."""
    storage: words.StorageDType | None = None
    """Type of the tensor that the packed bits lie in."""


class Mesh(Form, frozen=True, kw_only=True):
    """Sizes of the axes; what is left of the GPUs goes to data parallel."""

    dp_replicate: Count | None = None
    """Ranks that hold the same shards."""
    dp_shard: Count | None = None
    """Ranks that share the states."""
    tp: Count | None = None
    """Tensor parallel."""
    sp: bool | None = None
    """Sequence parallel inside the tensor-parallel group."""
    cp: Count | None = None
    """Context parallel."""
    pp: Count | None = None
    """Pipeline stages."""
    ep: Count | None = None
    """Expert parallel."""
    etp: Count | None = None
    """Tensor parallel inside experts."""
    ulysses: Count | None = None
    """Sequence parallel by exchanging heads."""


class Pipeline(Form, frozen=True, kw_only=True):
    """How layers and micro-batches go through the stages."""

    schedule: words.Schedule | None = None
    """Order of forward and backward."""
    virtual: Count | None = None
    """Chunks of layers on one rank."""
    layers: tuple[CountOrZero, ...] | str | None = None
    """Per stage, or a layout text such as `Et|(tt|)*6mL`."""
    microbatches: Count | None = None
    """Micro-batches a step; without it `train.grad_accum`."""


class Recompute(Form, frozen=True, kw_only=True):
    """What the forward pass drops and the backward pass computes again."""

    policy: words.RecomputePolicy | None = None
    """Nothing, what is cheap to compute again, or whole layers."""
    every: Count | None = None
    """Every so many layers."""
    modules: Names | None = None
    """Names of the recomputed parts (`core_attn`, `mlp`)."""
    method: words.RecomputeMethod | None = None
    """How Megatron groups layers."""
    layers: Count | None = None
    """Layers a group."""
    reentrant: bool | None = None
    """PyTorch's older way, which runs the forward without a graph."""
    offload: bool | None = None
    """The kept inputs wait in host memory."""


class Offload(Form, frozen=True, kw_only=True):
    """What lives in host memory or on disk between its uses."""

    optimizer: words.OffloadTarget | None = None
    """Where optimizer states wait."""
    params: words.OffloadTarget | None = None
    """Where weights wait."""
    activations: words.OffloadTarget | None = None
    """Where kept activations wait."""
    fraction: Fraction | None = None
    """Share that is moved."""


class Loss(Form, frozen=True, kw_only=True):
    """How logits and cross entropy are computed."""

    kind: words.LossKind | None = None
    """Whose cross entropy."""
    chunks: Count | None = None
    """Into how many pieces the tokens are cut."""
    logits_dtype: words.FloatDType | None = None
    """What the cross entropy computes in."""


class Buckets(Form, frozen=True, kw_only=True):
    """Sizes of communication buffers, in elements."""

    reduce: CountOrZero | None = None
    """Of gradient reduction."""
    gather: CountOrZero | None = None
    """Of parameter gathering."""
    prefetch: CountOrZero | None = None
    """Gathered ahead of use."""
    live: CountOrZero | None = None
    """Gathered parameters at once, at most."""


class Train(Form, frozen=True, kw_only=True):
    """A training step."""

    framework: words.Framework | None = None
    """Whose code runs the step; it decides which tensors are kept."""
    version: str | None = None
    """Of the framework and its companions: `trl 0.13, transformers 4.48`."""
    micro_batch: Count | None = None
    """Sequences per data-parallel rank and micro-batch."""
    seq_len: Count | None = None
    """Tokens of a sequence."""
    tokens: Count | None = None
    """Per micro-batch; may stand for micro_batch × seq_len when sequences are packed."""
    grad_accum: Count | None = None
    """Micro-batches a step."""
    precision: words.Precision | None = None
    """Pure (`bf16`), autocast (`bf16-mixed`), with a master copy (`bf16-master`), ..."""
    dtypes: DTypes | None = None
    optimizer: Optimizer | None = None
    adapter: Adapter | None = None
    quantization: Quantization | None = None
    freeze: Names | None = None
    """Patterns of modules that are not trained."""
    added_tokens: Count | None = None
    """Tokens that the trainer adds to the vocabulary (a padding token, special tokens): embedding and head have so many rows more."""
    mesh: Mesh | None = None
    sharding: words.Sharding | None = None
    """What data-parallel ranks share."""
    pipeline: Pipeline | None = None
    recompute: Recompute | None = None
    offload: Offload | None = None
    attention: words.TrainAttention | None = None
    """Whose attention runs; it decides whether scores are stored."""
    loss: Loss | None = None
    kernels: tuple[words.Kernel, ...] | None = None
    """Fused kernels in use."""
    compile: bool | None = None
    """torch.compile."""
    buckets: Buckets | None = None
    dropout: Fraction | None = None
    """Overrides the model's rates."""
    zero_grad_set_to_none: bool | None = None
    """Gradients are freed after the step, or kept as zeros."""
    grad_clip: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """Largest norm of the gradients."""
    extra: dict[str, Any] | None = None
    """Settings that only this framework has, by their own names. A key that it does not have is refused with the nearest; what changes nothing is said."""


class Weights(Form, frozen=True, kw_only=True):
    """Format of served weights; without it the checkpoint's own."""

    format: str | None = None
    """`bf16`, `nf4`, `gptq`, `q4_k_m`, ..."""
    bits: Annotated[float, msgspec.Meta(gt=0, le=64)] | None = None
    """Bits a weight in the mean, as the tool that packed them printed it."""
    group_size: GroupSize | None = None
    kind: Literal["weight-only", "weight-activation"] | None = None
    """Whether activations are quantised too."""
    double: bool | None = None
    """The scales are quantised as well."""
    modules: Names | None = None
    """Names of packed modules."""


class KvDType(Form, frozen=True, kw_only=True):
    """Formats of the cache's keys and values."""

    k: str | None = None
    """Of keys."""
    v: str | None = None
    """Of values."""


class ServeMesh(Form, frozen=True, kw_only=True):
    """Sizes of the axes of a serving engine."""

    tp: Count | None = None
    """Tensor parallel."""
    pp: Count | None = None
    """Pipeline stages."""
    ep: Count | None = None
    """Expert parallel."""
    dp: Count | None = None
    """Replicas that share experts."""
    cp: Count | None = None
    """Context parallel."""


class CudaGraphs(Form, frozen=True, kw_only=True):
    """Batch sizes that are captured."""

    sizes: tuple[Count, ...] | None = None


class ServeLoad(Form, frozen=True, kw_only=True):
    """What is asked of the server; speed is answered for it. It has no effect on memory, which an engine reserves before it."""

    prompt: Count | None = None
    """Tokens of a prompt."""
    output: Count | None = None
    """Tokens generated for it."""
    concurrency: Count | None = None
    """Requests at once, in a closed loop."""
    rate: Positive | None = None
    """Requests a second, in an open loop."""


class Draft(Form, frozen=True, kw_only=True):
    """Speculative decoding."""

    method: str | None = None
    """Of speculation."""
    model: str | None = None
    """The draft model."""
    tokens: Count | None = None
    """Guessed at once."""


class ServeLora(Form, frozen=True, kw_only=True):
    """Adapters that are served along with the model."""

    rank: Count | None = None
    """Largest rank served."""
    count: Count | None = None
    """Adapters held at once."""
    dtype: words.FloatDType | None = None
    """What adapter weights are stored in."""
    targets: Names | None = None
    """Adapted modules."""


class Serve(Form, frozen=True, kw_only=True):
    """A serving process."""

    engine: words.Engine | None = None
    """Whose memory rules apply."""
    version: str | None = None
    """Of the engine."""
    weights: Weights | None = None
    kv_dtype: KvDType | None = None
    context: Count | None = None
    """Tokens per sequence."""
    sequences: Count | None = None
    """How many at once."""
    batched_tokens: Count | None = None
    """Tokens an engine computes at once, at most."""
    ubatch: Count | None = None
    """Tokens llama.cpp computes at once."""
    memory_fraction: Share | None = None
    """Share of the device that the engine may use."""
    mesh: ServeMesh | None = None
    cuda_graphs: bool | CudaGraphs | None = None
    attention: str | None = None
    """Whose attention runs."""
    block_size: Count | None = None
    """Tokens a page of the cache."""
    gpu_layers: Annotated[int, msgspec.Meta(ge=-1, le=MOST)] | None = None
    """-1: all."""
    parallel_slots: Count | None = None
    """Sequences of llama.cpp's server."""
    swa_full: bool | None = None
    """Sliding-window layers keep the whole context."""
    unified_kv: bool | None = None
    """All sequences share one cache."""
    tensor_split: tuple[Annotated[float, msgspec.Meta(ge=0, le=1e9)], ...] | None = None
    """Shares of the devices."""
    load: ServeLoad | None = None
    """For figures of speed: prompt, output, concurrency or rate."""
    draft: Draft | None = None
    lora: bool | ServeLora | None = None
    """Whether, or which adapters are served."""
    multimodal: bool | dict[str, CountOrZero] | None = None
    """Whether, or how many items of each kind a request may hold."""
    extra: dict[str, Any] | None = None
    """Settings that only this engine has, by their own names. A key that it does not have is refused with the nearest; what changes nothing is said."""


class Job(Form, frozen=True, kw_only=True):
    """One thing that a person wants to run: exactly one of `train` and `serve`."""

    everybyte: Literal[1] = VERSION
    """Version of this form."""
    name: str | None = None
    """Any text; answers carry it."""
    model: str | InlineModel
    """A name (`everybyte models`), a path to a config.json, a model folder, a .safetensors (or its index) or .gguf file, `hf:ORG/NAME`, or a mapping."""
    hardware: Hardware | None = None
    """What it runs on."""
    env: Env | None = None
    """Environment of the process."""
    train: Train | None = None
    """A training step."""
    serve: Serve | None = None
    """A serving process."""
    given: dict[str, Figure] | None = None
    """Figures that are known already, in bytes; they replace the computed ones."""
