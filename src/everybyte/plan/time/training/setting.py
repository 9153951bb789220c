"""What of a training job the clock needs, as plain numbers and switches."""

from __future__ import annotations

import re
from typing import Any

from everybyte.basics.record import Record
from everybyte.catalog.speed_cards import NODE, SpeedCard
from everybyte.job import Job
from everybyte.job.form import Train
from everybyte.plan.time.shape import NetworkShape

MEGATRON = ("megatron", "nemo")
FSDP = ("fsdp1", "fsdp2", "fsdp1-grad-op", "fsdp2-no-reshard", "hsdp", "zero3", "megatron-fsdp")
NO_REGATHER = ("fsdp1-grad-op", "fsdp2-no-reshard")
SHARDED_UPDATE = ("zero1", "zero2", "distributed-optimizer")
RECIPES = ("Bridge", "NeMo", "MLPerf", "ModelZoo", "SimuMax")
"""Collections of tuned recipes that turn the overlap of gradients and parameters on, and keep gradients in 16 bits."""
RELEASE = re.compile(r"(?:Bridge|NeMo|AutoModel) (\d\d\.\d\d)")
MODEL_ZOO = 25.06
"""Release of Megatron behind the layouts of NVIDIA's model zoo."""
NEWEST = 99.0
ATTENTION = {"flash_attention_2": "flash2", "flash_attention_3": "flash3"}
UNFUSED = ("unfused", "eager")


class TrainSetting(Record, frozen=True):
    """A training job, read. Widths are ranks; `shard` counts the ranks that weights are spread over."""

    framework: str
    version: str
    release: float
    """Year and month of the recipe's release; the newest where none is named."""
    micro_batch: int
    length: int
    grad_accum: int
    gpus: int
    domain: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    dp: int
    shard: int
    replicas: int
    sequence_parallel: bool
    virtual: int
    schedule: str
    form: str
    """Format of the products: bf16, fp8, fp4."""
    precision: str
    sharding: str
    attention: str
    recompute: str
    recompute_modules: tuple[str, ...]
    recompute_every: int
    recompute_share: float
    """Share of the layers that full recomputation takes (Megatron's method `block`)."""
    lora: bool
    lora_mlp: bool
    lora_bytes: float
    """What an adapter reads of each input element beside its two bytes."""
    quantized: bool
    compiled: bool
    fused_kernels: bool
    dropout: bool
    gradient_bytes: float
    gather_bytes: float
    offload_optimizer: bool
    offload_params: bool
    overlap_gradients: bool
    overlap_parameters: bool
    hidden_tp: bool
    hidden_experts: float
    """Share of the experts' traffic that is not hidden."""
    cp_all_to_all: bool
    dispatch_once: bool
    deterministic: bool
    mtp: bool
    layers: int

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on a rank."""
        return self.micro_batch * self.length / self.cp

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all ranks in a step."""
        return self.micro_batch * self.length * self.grad_accum * self.dp

    @property
    def is_megatron(self) -> bool:
        """Whether Transformer Engine's fused kernels and Megatron's schedule run."""
        return self.framework in MEGATRON

    @property
    def is_fsdp(self) -> bool:
        """Whether weights are gathered layer by layer."""
        return self.sharding in FSDP


def train_setting(job: Job, shape: NetworkShape, card: SpeedCard) -> TrainSetting:
    """The job's setting; what it leaves open is taken as the plainest: one rank an axis, no recomputation, 16 bits."""
    train = job.train
    assert train is not None
    extra = train.extra or {}
    mesh, hardware = train.mesh, job.hardware
    gpus = (hardware.gpus if hardware else None) or 1
    tp, pp = (mesh and mesh.tp) or 1, (mesh and mesh.pp) or 1
    cp = ((mesh and mesh.cp) or 1) * ((mesh and mesh.ulysses) or 1)
    dp = max(1, gpus // (tp * pp * cp))
    framework, version = train.framework or "pytorch", train.version or ""
    tuned = any(name in version for name in RECIPES)
    overlaps = bool(extra.get("overlap-grad-reduce")) or tuned
    sharding = train.sharding or "ddp"
    form, precision = _form(train, extra)
    node = (hardware.gpus_per_node if hardware else None) or NODE
    return TrainSetting(
        framework=framework,
        version=version,
        release=_release(version),
        micro_batch=train.micro_batch or 1,
        length=train.seq_len or 1,
        grad_accum=train.grad_accum or 1,
        gpus=gpus,
        domain=card.domain if card.domain > NODE else min(node, card.domain),
        tp=tp,
        pp=pp,
        cp=cp,
        ep=(mesh and mesh.ep) or 1,
        etp=(mesh and mesh.etp) or 1,
        dp=dp,
        shard=(mesh.dp_shard or 1) if mesh and sharding == "hsdp" else dp * cp,
        replicas=(mesh.dp_replicate or 1) if mesh and sharding == "hsdp" else 1,
        sequence_parallel=mesh.sp if mesh and mesh.sp is not None else tp > 1,
        virtual=(train.pipeline and train.pipeline.virtual) or 1,
        schedule=(train.pipeline and train.pipeline.schedule) or "1f1b",
        form=form,
        precision=precision,
        sharding=sharding,
        attention=_attention(train, extra, framework, version),
        **_recompute(train, shape.count),
        **_adapter(train, extra, framework, version),
        quantized=train.quantization is not None,
        compiled=bool(train.compile),
        fused_kernels=bool(train.kernels),
        dropout=bool(train.dropout),
        gradient_bytes=_gradient_bytes(train, extra, framework, sharding, tuned=tuned),
        gather_bytes=_gather_bytes(train, framework, sharding, form),
        offload_optimizer=_is_off(train, "optimizer"),
        offload_params=_is_off(train, "params"),
        overlap_gradients=overlaps,
        overlap_parameters=bool(extra.get("overlap-param-gather")) or (tuned and not extra.get("overlap-grad-reduce")),
        hidden_tp=_hides_tp(extra, framework, version, tp, is_moe=shape.expert_parameters > 0),
        hidden_experts=_exposed_experts(train, extra, version),
        cp_all_to_all=extra.get("cp_comm_type") == "a2a" or extra.get("cp-comm-type") == "a2a" or bool(mesh and (mesh.ulysses or 1) > 1),
        dispatch_once=extra.get("moe-token-dispatcher-type") != "alltoall",
        deterministic=bool(extra.get("deterministic-mode")),
        mtp=bool(shape.mtp) and framework in MEGATRON and extra.get("mtp", 1) != 0,
        layers=int(extra.get("num_layers") or shape.count),
    )


def _release(version: str) -> float:
    found = RELEASE.search(version)
    if found:
        return float(found[1])
    return MODEL_ZOO if "ModelZoo" in version else NEWEST


def _form(train: Train, extra: dict[str, Any]) -> tuple[str, str]:
    precision = train.precision or "bf16"
    if extra.get("fp4") == "nvfp4":
        return "fp4", precision
    return ("fp8" if precision == "fp8" else "bf16"), precision


def _attention(train: Train, extra: dict[str, Any], framework: str, version: str) -> str:
    named = extra.get("attention")
    kernel: str = train.attention or ("te" if framework in MEGATRON else "sdpa")
    if isinstance(named, str):
        kernel = ATTENTION.get(named, kernel)
    if kernel in UNFUSED:
        return "unfused"
    if "llm-foundry 2023" in version:
        return "flash1"
    if framework in MEGATRON:
        return "flash2" if "NeMo 24.03" in version else "te"
    return kernel


def _recompute(train: Train, layers: int) -> dict[str, Any]:
    stated, pipeline, mesh = train.recompute, train.pipeline, train.mesh
    chunks = ((mesh and mesh.pp) or 1) * ((pipeline and pipeline.virtual) or 1)
    share = min(1.0, stated.layers * chunks / layers) if stated is not None and stated.method == "block" and stated.layers else 1.0
    return {
        "recompute_share": share,
        "recompute": (stated and stated.policy) or "none",
        "recompute_modules": tuple((stated and stated.modules) or ()),
        "recompute_every": (stated and stated.every) or 0,
    }


def _adapter(train: Train, extra: dict[str, Any], framework: str, version: str) -> dict[str, Any]:
    adapter = train.adapter
    if adapter is None:
        return {"lora": False, "lora_mlp": False, "lora_bytes": 0.0}
    targets = adapter.targets or "all-linear"
    names = () if isinstance(targets, str) else targets
    everywhere = isinstance(targets, str) or any(word in name for name in names for word in ("gate", "up", "down", "fc"))
    return {
        "lora": True,
        "lora_mlp": everywhere,
        "lora_bytes": (5.0 if extra.get("lora_dropout") else 0.0) + (6.0 if adapter.dtype == "fp32" else 0.0),
    }


def _gradient_bytes(train: Train, extra: dict[str, Any], framework: str, sharding: str, *, tuned: bool) -> float:
    """Bytes an element of the gradients that ranks exchange."""
    if sharding in FSDP:
        wide = "mixed" in (train.precision or "") or framework in ("torchtitan", "megatron")
        return 2.0 if extra.get("mp_mode") in ("PURE", "DEFAULT") or not wide else 4.0
    if sharding in SHARDED_UPDATE or framework in MEGATRON:
        narrow = (train.dtypes is not None and train.dtypes.grads == "bf16") or framework == "nemo" or tuned
        return 2.0 if narrow else 4.0
    return 2.0 if "fp16" in (train.precision or "") else 4.0


def _gather_bytes(train: Train, framework: str, sharding: str, form: str) -> float:
    """Bytes an element of the weights that ranks gather."""
    if sharding in FSDP:
        if train.quantization is not None:
            return 0.55
        return 1.0 if framework == "torchtitan" and form == "fp8" else 2.0
    return 2.0 if form == "bf16" else 1.0


def _is_off(train: Train, part: str) -> bool:
    return train.offload is not None and getattr(train.offload, part) not in (None, "none")


def _hides_tp(extra: dict[str, Any], framework: str, version: str, tp: int, *, is_moe: bool) -> bool:
    """Whether traffic of tensor parallelism runs beside the products: user buffers, or asynchronous tensor parallelism."""
    if extra.get("tp-comm-overlap") or extra.get("async_tp"):
        return True
    return framework == "megatron" and ("Bridge" in version or "NeMo 2" in version) and not is_moe and tp > 1


def _exposed_experts(train: Train, extra: dict[str, Any], version: str) -> float:
    """Share of the experts' traffic that nothing hides: 0.1 under DualPipe, 0.3 with 1F1B overlap, 0.5 in tuned recipes (speed measurements of these)."""
    if train.pipeline is not None and (train.pipeline.schedule or "").startswith("dualpipe"):
        return 0.1
    if "Bridge" in version:
        return 0.5
    return 0.3 if extra.get("overlap-moe-expert-parallel-comm") else 1.0
