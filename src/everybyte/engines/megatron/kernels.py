"""Rules that the GPU, the environment and the versions decide: which attention kernel runs, which workspaces libraries keep."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from everybyte.basics.errors import Unsupported
from everybyte.basics.record import Record
from everybyte.basics.units import KiB, MiB
from everybyte.catalog.releases import Number, Release, newest, stated
from everybyte.engines.megatron.extra import Keys
from everybyte.engines.megatron.style import AttentionKernel
from everybyte.job import Train
from everybyte.ledger.build import Line, plain
from everybyte.rules.accounting.overhead import CUBLAS_SOURCE, cublas_workspace

TE_GEMM = "TransformerEngine pytorch/cpp_extensions/gemm.py get_cublas_workspace_size_bytes"
STORED = {"unfused": "unfused", "eager": "unfused", "flash2": "flash2"}
"""train.attention -> kernel, where the job names it."""


class Versions(Record, frozen=True):
    """The packages that rules depend on; of each the newest known one where the job does not say."""

    core: Release
    te: Release
    torch: Release

    @property
    def reuses_head_gradient(self) -> bool:
        """The head takes its dummy gradient from the cache of the linear layers."""
        return self.core.has("reuses_head_gradient") and self.te.has("reuses_gradients")


CORE_NAMES, TE_NAMES, TORCH_NAMES = ("megatron-lm", "megatron-core", "mcore", "megatron"), ("te", "transformer-engine"), ("torch", "pytorch")


def versions_of(train: Train) -> Versions:
    """What `train.version` says: `Megatron-LM 0.13, Transformer Engine 2.2` (or megatron-core, mcore, TE)."""
    text = (train.version or "").replace("Transformer Engine", "te").replace("TransformerEngine", "te").replace("Megatron Core", "mcore")
    found = stated(text)
    named = (("megatron-core", CORE_NAMES), ("transformer-engine", TE_NAMES), ("torch", TORCH_NAMES))
    core, te, torch = (_named(found, line, names) for line, names in named)
    return Versions(core, te, torch)


def _named(found: Mapping[str, Number], line: str, names: tuple[str, ...]) -> Release:
    number = next((found[name] for name in names if name in found), None)
    return newest(line) if number is None else Release(line, number)


def major(compute_capability: str) -> int:
    """Generation of a GPU; 9 where the catalogue does not say."""
    head = compute_capability.split(".", maxsplit=1)[0]
    return int(head) if head.isdigit() else 9


def is_deterministic(keys: Keys) -> bool:
    """Whether Transformer Engine may use deterministic algorithms alone."""
    return keys.deterministic_mode or str(keys.NVTE_ALLOW_NONDETERMINISTIC_ALGO) == "0"


def attention_kernel(train: Train, keys: Keys, capability: str, *, te: bool, drops: bool) -> AttentionKernel:
    """The kernel that the job names, or the one that Transformer Engine chooses.

    It takes FlashAttention 2 below compute capability 9.0, else cuDNN (attention/dot_product_attention/utils.py get_attention_backend), unless cuDNN
    has no deterministic backward: from 10.0 on with dropout (common/fused_attn/fused_attn.cpp). Of local layers only the legacy ones run FlashAttention
    (megatron/model/transformer.py ParallelAttention, --use-flash-attn); Megatron Core's have scores of all pairs of positions.
    """
    word = train.attention or {"flash": "flash2", "fused": "te"}.get(keys.attention_backend, keys.attention_backend)
    if not te:
        return "flash2" if STORED.get(word) == "flash2" else "unfused"
    if word in STORED:
        return "unfused" if STORED[word] == "unfused" else "flash2"
    if word not in ("te", "auto", "flash3"):
        raise Unsupported("train.attention", f"{word!r} is not supported by Megatron-LM; supported: te (its own choice), flash2, flash3 and unfused")
    if word == "te" and (major(capability) < 9 or (major(capability) >= 10 and drops and is_deterministic(keys))):
        return "flash2"
    return "cudnn"


class Site(Record, frozen=True):
    """What decides the workspaces."""

    capability: str
    versions: Versions
    config: str
    """CUBLAS_WORKSPACE_CONFIG."""
    te: bool
    """Some product runs in Transformer Engine: its layers, or the router of a mixture."""
    grouped: bool
    """Experts run as grouped products."""
    overlapped: bool
    """Communication of the tensor-parallel group is split and overlapped with products (tp_comm_overlap)."""
    graphs: bool
    """PyTorch's own products run in CUDA graphs: once before capture and once in it, each on a stream of its own."""
    streams: bool
    """Forward and backward of two micro-batches run on streams of their own (overlap_moe_expert_parallel_comm)."""

    @property
    def handle_workspace(self) -> int:
        """Bytes of one cuBLAS handle's workspace."""
        return handle_workspace(self.capability, self.config, widens_blackwell=self.versions.torch.has("wide_blackwell_workspaces"))


def workspace_config(keys: Keys) -> str:
    """CUBLAS_WORKSPACE_CONFIG; deterministic mode sets it where the environment does not (training/determinism.py)."""
    return keys.CUBLAS_WORKSPACE_CONFIG if keys.CUBLAS_WORKSPACE_CONFIG is not None else ":4096:8" if keys.deterministic_mode else ""


def handle_workspace(capability: str, config: str, *, widens_blackwell: bool = True) -> int:
    """Bytes of one cuBLAS handle's workspace: `:SIZE:COUNT` pairs in KiB, or PyTorch's default for the GPU."""
    numbers = [part for part in config.split(":") if part]
    if len(numbers) % 2 == 0 and numbers and all(n.isdigit() for n in numbers):
        return sum(int(size) * int(count) for size, count in zip(numbers[::2], numbers[1::2], strict=True)) * KiB
    return cublas_workspace(capability if widens_blackwell or major(capability) < 10 else "8.0")


@lru_cache(maxsize=1024)
def workspace_lines(site: Site) -> tuple[Line, ...]:
    """Workspaces of PyTorch's cuBLAS handles and of Transformer Engine, each made once and kept."""
    one, handles = site.handle_workspace, 4 if site.streams else 2
    found = [Line("workspace/cublas", "workspace", handles * one, plain("handles·w", handles=handles, w=one), CUBLAS_SOURCE, "formula")]
    if not site.te:
        return tuple(found)
    own = 32 * MiB + KiB if major(site.capability) >= 9 else 4 * MiB
    found.append(Line("workspace/transformer_engine", "workspace", own, plain("w_te", w_te=own), TE_GEMM, "formula"))
    for wanted, name, count in ((site.overlapped, "userbuffers", 3), (site.grouped, "grouped", 4)):
        if wanted:
            text = plain("streams·w_te", streams=count, w_te=own)
            found.append(Line(f"workspace/transformer_engine/{name}", "workspace", count * own, text, f"{TE_GEMM}, one for each stream", "formula"))
    return tuple(found)


def graph_workspaces(site: Site) -> tuple[Line, ...]:
    """Workspaces of two more streams, on which graphs run before capture and in it, each with forward's and autograd's thread."""
    if not site.graphs:
        return ()
    one = site.handle_workspace
    return (Line("graphs/workspaces", "workspace", 4 * one, plain("handles·w", handles=4, w=one), CUBLAS_SOURCE, "formula"),)
