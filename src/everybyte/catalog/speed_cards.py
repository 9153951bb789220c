"""How fast a device works: the shares of its data sheet that kernels reach, and the links between devices. Each row of the data names its source."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import Gpu, find_gpu
from everybyte.catalog.names import read_table

CARDS, ATTENTION = "speed_cards.csv", "speed_attention.csv"
US, GB, TERA = 1e-6, 1e9, 1e12
NODE = 8
"""Devices that share a machine or an NVLink domain where no row says."""
TENSOR_SINCE = 8.0
"""Compute capability of Ampere."""
LINK_SHARE = 0.75
"""Share of one direction of NVLink that long collectives reach (aiconfigurator's NCCL tables: 335 of 450 GB/s on H100, 215 of 300 on A100)."""
PCIE_GB_S = {3: 6.0, 4: 12.0, 5: 23.0, 6: 46.0}
"""What collectives reach over PCIe, by its generation: L40S and RTX PRO 6000 in the same tables, others in proportion to the lanes' rate."""


class SpeedCard(NamedTuple):
    """One device as a clock sees it. Rates are FLOP/s and bytes/s, one way; times are seconds."""

    name: str
    products: dict[str, float]
    """Peak of dense matrix products by format (bf16, fp8, fp4)."""
    reached: dict[str, float]
    """Share of the peak that large products reach alone, by format."""
    sustained: dict[str, float]
    """Share of that which is left in a long run (power limit), by format."""
    memory: float
    """Peak bandwidth of the device's memory."""
    memory_share: float
    """What long streams reach of it."""
    multiprocessors: int
    launch: float
    """What a product takes beside its work."""
    link: float
    """What long collectives reach inside a machine."""
    latency: float
    """A small collective inside a machine."""
    domain: int
    """Devices that NVLink joins."""
    network: float
    """Line rate of a device to other machines, on the usual fabric of its generation."""
    host_link: float
    """Device to host memory."""
    narrow_gain: float
    """Rate of 16-bit products that also accumulate in 16 bits, as ggml's do: twice on GeForce cards, the same elsewhere (NVIDIA's Ampere and Ada white
    papers)."""
    generation: str
    clock: float
    """Of the multiprocessors, Hz, where decoding is known to be bound by it."""
    source: str

    def rate(self, form: str) -> float:
        """FLOP/s of large products in a long run."""
        return self.products[form] * self.reached[form] * self.sustained[form]

    @property
    def stream(self) -> float:
        """Bytes a second of a long read or write."""
        return self.memory * self.memory_share


class AttentionKernel(NamedTuple):
    """Share of the 16-bit peak that an attention kernel reaches: `share`·s / (s + `half_length`), causal half counted; backward relative to it."""

    share: float
    half_length: float
    backward: float
    source: str


def speed_card(name: str) -> SpeedCard | None:
    """The speed of the device called so: its own row, else that of its generation with the rates of its data sheet. None where no rate is known."""
    rows = _rows()
    if name in rows and rows[name]["hbm_gb_s"]:
        return _card(name, rows[name], None)
    try:
        gpu = find_gpu(name)
    except BadInput:
        return None
    row = rows.get(gpu.name) or rows.get(generation(gpu))
    if row is None or not gpu.bandwidth_gb_s or not _half(gpu):
        return None
    return _card(gpu.name, row, gpu)


def attention_kernel(card: SpeedCard, kernel: str) -> AttentionKernel:
    """The kernel on the card's generation; where it has no row, PyTorch's own on the nearest generation that has one."""
    rows = _attention()
    near = {"sm86": "sm80", "sm103": "sm100", "sm120": "sm89", "apple": "sm80"}.get(card.generation, card.generation)
    return rows.get((near, kernel)) or rows.get((near, "sdpa")) or rows["sm80", "sdpa"]


def generation(gpu: Gpu) -> str:
    """`sm90`, `gfx9`, `apple`: the architecture by which rows of the data are shared."""
    if gpu.vendor == "Apple":
        return "apple"
    if gpu.compute_capability.startswith("gfx"):
        return gpu.compute_capability[:4]
    return f"sm{gpu.compute_capability.replace('.', '')}"


@cache
def _rows() -> dict[str, dict[str, str]]:
    header, *rows = read_table(CARDS)
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


@cache
def _attention() -> dict[tuple[str, str], AttentionKernel]:
    return {(row[0], row[1]): AttentionKernel(float(row[2]), float(row[3]), float(row[4]), row[5]) for row in read_table(ATTENTION)[1:]}


def _card(name: str, row: dict[str, str], gpu: Gpu | None) -> SpeedCard:
    """The row with what the data sheet says where the row is silent; a format that the device lacks runs at the rate of the next wider one."""
    bf16 = float(row["bf16_tflops"] or 0) or (_half(gpu) if gpu else 0.0)
    fp8 = float(row["fp8_tflops"] or 0) or float((gpu and gpu.fp8_tflops) or 0) or bf16
    fp4 = float(row["fp4_tflops"] or 0) or float((gpu and gpu.fp4_tflops) or 0) or fp8
    return SpeedCard(
        name=name,
        products={"bf16": bf16 * TERA, "fp8": fp8 * TERA, "fp4": fp4 * TERA},
        reached={"bf16": float(row["products_bf16"]), "fp8": float(row["products_fp8"]), "fp4": float(row["products_fp4"])},
        sustained={"bf16": float(row["sustained_bf16"]), "fp8": float(row["sustained_fp8"]), "fp4": float(row["sustained_fp8"])},
        memory=GB * (float(row["hbm_gb_s"] or 0) or float((gpu and gpu.bandwidth_gb_s) or 0)),
        memory_share=float(row["hbm_share"]),
        multiprocessors=int(row["multiprocessors"] or 0) or int((gpu and gpu.multiprocessors) or 100),
        launch=float(row["launch_us"]) * US,
        link=GB * (float(row["link_gb_s"] or 0) or _link(gpu)),
        latency=float(row["link_latency_us"]) * US,
        domain=int(row["domain"] or NODE),
        network=GB * float(row["network_gb_s"]),
        host_link=GB * float(row["host_link_gb_s"]),
        narrow_gain=2.0 if gpu and gpu.segment == "consumer" and gpu.vendor == "NVIDIA" else 1.0,
        generation=row["generation"] or (generation(gpu) if gpu else ""),
        clock=float(row["clock_ghz"] or 0) * 1e9,
        source=row["source"],
    )


def _half(gpu: Gpu) -> float:
    """Peak of 16-bit products with fp32 accumulation, TFLOP/s; GeForce cards since Ampere run them at twice the rate of fp32 (white papers)."""
    stated = gpu.bf16_tflops or gpu.fp16_tflops
    if stated or gpu.segment != "consumer" or not gpu.compute_capability[:1].isdigit() or float(gpu.compute_capability) < TENSOR_SINCE:
        return stated or 0.0
    return 2 * (gpu.fp32_tflops or 0.0)


def _link(gpu: Gpu | None) -> float:
    """GB/s one way inside a machine."""
    if gpu is None:
        return PCIE_GB_S[4]
    if gpu.interconnect_gb_s:
        return gpu.interconnect_gb_s / 2 * LINK_SHARE
    return PCIE_GB_S.get(gpu.pcie_gen or 4, PCIE_GB_S[4])
