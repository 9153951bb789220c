"""What vLLM needs beside weights, activations and cache: growth of the CUDA context and NCCL's buffers (`non_torch`), and captured CUDA graphs."""

from __future__ import annotations

from everybyte.basics.units import GiB, KiB, MiB, round_up
from everybyte.engines.vllm.network import first_with
from everybyte.engines.vllm.release import is_v1
from everybyte.engines.vllm.settings import Settings, card
from everybyte.job import Job
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.models.widths import head_sizes
from everybyte.rules.accounting.account import Device
from everybyte.rules.communication.communicators import Communicator
from everybyte.rules.communication.nccl import Wires, nccl_lines, wires_of

GROWTH_SOURCE = (
    "vllm utils/mem_utils.py memory_profiling: used memory that is not torch's, after the profiling run less before the engine; measured on one GPU: "
    "0.10 to 0.35 GiB before 0.7, 0.02 to 0.12 up to 0.16, of these 0.13 on H100, 0.24 to 0.26 from 0.17 on; 0.07 with several GPUs, whose NCCL came first"
)
COPIES = ("world", "tensor parallel (torch)", "tensor parallel (pynccl)")
"""The communicators over the tensor-parallel ranks: torch's default group, the group of parallel_state.py, and pynccl's own for CUDA graphs."""
CUSTOM = {9: {2: 64 * MiB, 4: 32 * MiB, 6: MiB // 2, 8: MiB // 4}}
"""Largest all-reduce by generation and ranks (distributed/device_communicators/all_reduce_utils.py CUSTOM_ALL_REDUCE_MAX_SIZES)."""
FUSED = {9: {2: 64 * MiB, 4: 2 * MiB, 8: MiB // 2}, 10: {2: 64 * MiB, 4: 32 * MiB, 8: MiB}}
"""Largest all-reduce that is fused, by generation and ranks (compilation/passes/fusion/allreduce_rms_fusion.py)."""
FUSED_SOURCE = "flashinfer comm/trtllm_ar.py: workspace of the all-reduce that is fused with a norm; vllm compilation/passes/fusion/allreduce_rms_fusion.py"
HOPPER = 9
GROWTH_GIB = 0.07
"""With several GPUs, and of V0 since 0.7."""
CUSTOM_SOURCE = "vllm distributed/device_communicators/custom_all_reduce.py: a buffer that peers read, and one beside its signals"
CAPTURE_SOURCE = (
    "vllm v1/worker/gpu_model_runner.py capture_model: difference of free memory. FlashAttention 3's buffer for split keys (v1/attention/backends/"
    "flash_attn.py), and calibrated: 0.20 MiB of driver memory for a captured layer and graph on Hopper, 0.165 elsewhere, 1.25 times that "
    "with experts, 30 MiB for the first; "
    "V0 0.19 MiB a layer and graph, twice that with experts"
)
SPLITS = 32
"""flash_attn_max_num_splits_for_cuda_graph (config/attention.py)."""
LARGEST_WHOLE = 512
"""Sequences of the largest graph of a whole step."""
BY_TRITON = ("gemma3", "gemma3_text")
"""model_types whose attention is Triton's on Hopper."""
FIRST = 30 * MiB
"""What the first capture takes whatever it captures."""
NODE = 8


def non_torch(job: Job, s: Settings, device: Device, hidden: int) -> tuple[Line, ...]:
    """Rows of one rank; their sum is the figure."""
    many = s.tp * s.pp * s.dp > 1
    size = int(_growth_gib(s, many=many) * GiB)
    rows = [Line("non_torch/context growth", "context", size, plain("growth", growth=size), GROWTH_SOURCE, "calibrated", int(0.02 * GiB), int(0.35 * GiB))]
    if s.tp > 1:
        node = (job.hardware.gpus_per_node if job.hardware is not None else None) or NODE
        wires = _wires(job, s, device)
        names = COPIES[1:2] if s.release.has("snapshots_after_groups") else COPIES
        groups = tuple(Communicator(name, s.tp, min(s.tp, node)) for name in names)
        rows += nccl_lines(groups, wires)
        rows += _fused_all_reduce(hidden, s, wires)
        if wires.nvlink and s.tp <= min(NODE, node):
            most = CUSTOM.get(s.generation, {}).get(s.tp, 8 * MiB)
            rows.append(Line("non_torch/all-reduce", "context", 2 * most, plain("2·m", m=most), CUSTOM_SOURCE, "formula"))
    return tuple(rows)


def _fused_all_reduce(hidden: int, s: Settings, wires: Wires) -> list[Line]:
    """FlashInfer's workspace: the input of all ranks, flags, and three buffers of as much for the low-latency form."""
    most = FUSED.get(s.generation, {}).get(s.tp, 0)
    plain_mesh = s.dp == 1 and s.pp == 1
    if not most or s.eager or not wires.nvlink or not s.release.has("fuses_all_reduce") or (s.release.has("fuses_plain_meshes_only") and not plain_mesh):
        return []
    tokens = min(most // (2 * hidden), s.batched_tokens)
    each = 2 * s.tp * tokens * hidden
    size = round_up(each, 2 * MiB) + 2 * MiB + round_up(3 * each, 2 * MiB)
    text = plain("4·b + r", b=each, r=size - 4 * each)
    return [Line("non_torch/fused all-reduce", "context", size, text, FUSED_SOURCE, "formula")]


def _growth_gib(s: Settings, *, many: bool) -> float:
    """Growth of the CUDA context while the engine starts; with several GPUs NCCL's kernels came first."""
    kind = "hopper" if s.generation == HOPPER else "other"
    stated = s.release.find("context_growth_gib") or (None if many else s.release.find(f"context_growth_{kind}_gib"))
    return float(stated) if stated is not None else GROWTH_GIB


def _wires(job: Job, s: Settings, device: Device) -> Wires:
    """As the job says; cards for desktops and workstations talk over PCIe."""
    found = card(device)
    known = wires_of(job, device)
    nvlink = found is not None and known.nvlink and (found.interconnect_gb_s or 0) > 0 and found.segment == "datacenter"
    return Wires(s.generation, nvlink, known.release, known.settings)


def capture_sizes(stage: Network, s: Settings, fields_type: str) -> tuple[int, int]:
    """(graphs of the pieces between attention layers, graphs of whole steps) by version (config/compilation.py, config/vllm.py _set_cudagraph_sizes;
    V0: worker/model_runner.py)."""
    if s.eager:
        return 0, 0
    most = 1024 if fields_type == "gpt_oss" and s.release.has("captures_gpt_oss_wider") else 512
    if not is_v1(s.release):
        sizes = [1, 2, 4, *range(8, 8193, 8)]
        limit = -(-s.sequences // 8) * 8
        return 0, len(s.sizes) or sum(size <= max(limit, 1) for size in sizes if size <= 256 or s.sequences > 256)
    if s.sizes:
        pieces = len(s.sizes)
    elif s.release.has("captures_by_sequences"):
        limit = min(2 * s.sequences, most)
        pieces = sum(size <= limit for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)))
    else:
        pieces = sum(size <= max(min(most, s.batched_tokens), 1) for size in (1, 2, 4, *range(8, 513, 8)))
    whole = pieces if s.release.has("captures_whole") and s.sequences >= most else min(pieces, 3 + s.sequences // 8)
    return pieces, whole if s.release.has("captures_whole") else 0


def graph_line(stage: Network, s: Settings, fields_type: str) -> Line | None:
    """The graphs of one rank of a stage; None where nothing is captured."""
    pieces, whole = capture_sizes(stage, s, fields_type)
    if not pieces + whole:
        return None
    quarters = sum(run.count * _quarters(run.layer, s) for run in stage.runs)
    each = (51 if s.generation == HOPPER else 42) * KiB if is_v1(s.release) else 49 * KiB
    shared = FIRST + _splits(stage, s, fields_type, whole) if is_v1(s.release) else 0
    size = shared + each * quarters * (pieces + whole)
    text = plain("shared + k·Q·(pieces + whole)", shared=shared, k=each, Q=quarters, pieces=pieces, whole=whole)
    return Line("graphs/captured", "graph_pool", size, text, CAPTURE_SOURCE, "calibrated", size // 3, size * 2)


def _quarters(layer: object, s: Settings) -> int:
    """A layer's driver memory in quarters of a dense layer's: one with experts launches more kernels."""
    if first_with(layer, "count", "top_k", "ffn") is None:
        return 4
    return 5 if is_v1(s.release) else 8


def _splits(stage: Network, s: Settings, fields_type: str, whole: int) -> int:
    """FlashAttention 3 splits the keys of a decoding step over up to 32 blocks, whose partial results in fp32 have a buffer in the graphs of whole steps."""
    by_flash = "FLASH_ATTN" in s.attention if s.attention else fields_type not in BY_TRITON
    if s.generation != HOPPER or not whole or not by_flash:
        return 0
    widest = max((sizes.heads * (latent_rank(stage) or sizes.value) for sizes in head_sizes(stage)), default=0)
    return SPLITS * min(s.sequences, LARGEST_WHOLE) * widest // s.tp * 4


def latent_rank(stage: Network) -> int:
    """Numbers of a latent that decoding attends in place of keys and values; 0 where there is none."""
    found = next((part for run in stage.runs if (part := first_with(run.layer, "kv_rank", "nope", "v_dim")) is not None), None)
    return int(found.kv_rank) if found is not None else 0
