"""What vLLM needs beside weights, activations and cache: growth of the CUDA context and NCCL's buffers (`non_torch`), and captured CUDA graphs."""

from __future__ import annotations

from everybyte.basics.units import GiB, KiB, MiB
from everybyte.catalog.generations import USUAL, generation_of
from everybyte.engines.vllm.network import first_with
from everybyte.engines.vllm.release import is_v1
from everybyte.engines.vllm.settings import Settings, card
from everybyte.job import Job
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
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
CUSTOM_SOURCE = "vllm distributed/device_communicators/custom_all_reduce.py: a buffer that peers read, and one beside its signals"
CAPTURE_SOURCE = (
    "vllm v1/worker/gpu_model_runner.py capture_model: difference of free memory. Learnt: 0.16 MiB of driver memory for a captured layer and graph, twice "
    "that with experts, and 0.35 GiB that all graphs share; V0 0.19 MiB a layer and graph (records of vLLM 0.6 to 0.27: median error 15 %)"
)
NODE = 8


def non_torch(job: Job, s: Settings, device: Device) -> tuple[Line, ...]:
    """Rows of one rank; their sum is the figure."""
    many = s.tp * s.pp * s.dp > 1
    size = int(_growth_gib(s, many=many) * GiB)
    rows = [Line("non_torch/context growth", "context", size, plain("growth", growth=size), GROWTH_SOURCE, "calibrated", int(0.02 * GiB), int(0.35 * GiB))]
    if s.tp > 1:
        node = (job.hardware.gpus_per_node if job.hardware is not None else None) or NODE
        wires = _wires(job, s, device)
        groups = tuple(Communicator(name, s.tp, min(s.tp, node)) for name in COPIES)
        rows += nccl_lines(groups, wires)
        if wires.nvlink and s.tp <= min(NODE, node):
            most = CUSTOM.get(s.generation, {}).get(s.tp, 8 * MiB)
            rows.append(Line("non_torch/all-reduce", "context", 2 * most, plain("2·m", m=most), CUSTOM_SOURCE, "formula"))
    return tuple(rows)


def _growth_gib(s: Settings, *, many: bool) -> float:
    """Growth of the CUDA context while the engine starts."""
    stated = s.release.find("context_growth_gib") or (None if many else s.release.find("context_growth_alone_gib"))
    if stated is not None:
        return float(stated)
    generation = s.generation if is_v1(s.release) and not many else USUAL
    return generation_of(str(generation)).vllm_growth_gib


def _wires(job: Job, s: Settings, device: Device) -> Wires:
    """As the job says; cards for desktops and workstations talk over PCIe."""
    found = card(device)
    known = wires_of(job, device)
    nvlink = found is not None and (found.interconnect_gb_s or 0) > 0 and found.segment == "datacenter"
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
    layers = sum(run.count * (2 if first_with(run.layer, "count", "top_k", "ffn") is not None else 1) for run in stage.runs)
    each, shared = (164 * KiB, int(0.35 * GiB)) if is_v1(s.release) else (195 * KiB, 0)
    size = shared + each * layers * (pieces + whole)
    text = plain("shared + k·L·(pieces + whole)", shared=shared, k=each, L=layers, pieces=pieces, whole=whole)
    return Line("graphs/captured", "graph_pool", size, text, CAPTURE_SOURCE, "calibrated", size // 3, size * 2)
