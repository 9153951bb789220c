"""Weights as vLLM has them loaded, by pipeline stage: parameters divided over the ranks, packed formats, tables of rotary positions, a block of
multi-token prediction, slots of adapters.

The engine's log says them as `Model loading took ... GiB`: bytes that loading left allocated (worker/model_runner.py, DeviceMemoryProfiler).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from everybyte.basics.dtypes import DTYPES
from everybyte.basics.units import ceil_div, round_up
from everybyte.engines.vllm.network import first_with, inside
from everybyte.engines.vllm.settings import Settings
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.network import Network, Run
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line, plain
from everybyte.rules.serving.tensor_parallel import Cut
from everybyte.rules.step.persistent_state import Group, groups, weight_lines

ROPE = "vllm model_executor/layers/rotary_embedding: cos and sin of every position, in the type of the model, whole on every rank"
ABSORBED = "vllm v1/attention/backends/mla/common.py process_weights_after_loading: W_UK and W_UV beside kv_b_proj, in the type of the model"
ADAPTERS = "vllm lora/layers: a pair of factors in every linear layer for each slot, of the largest rank"
PREDICTION = "vllm model_executor/models: the draft's own block and its projection of two hidden states to one"
STRETCHING = ("yarn", "deepseek_yarn", "linear", "dynamic")
"""Kinds of rope_scaling whose table has factor × as many positions."""


JOINED = (
    (("q_proj", "k_proj", "v_proj"), "qkv_proj", "(A+2K)"),
    (("gate_proj", "up_proj"), "gate_up_proj", "2f"),
    (("in_proj_qkv", "in_proj_z"), "in_proj_qkvz", "(2K+2V)"),
    (("in_proj_b", "in_proj_a"), "in_proj_ba", "2v"),
    (("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj", "(r_q+r_kv+d_r)"),
)
"""Linear layers that vLLM loads into one tensor each; the allocator rounds that one up."""
MXFP4_MULTIPLES = {8: (128, 256, 1), 9: (64, 1, 256), 10: (256, 256, 1), 12: (128, 256, 1)}
"""Generation of the GPU -> multiples to which an expert's width, the hidden size, and the axis along which numbers are packed are padded: Marlin,
Triton's Hopper layout, TRT-LLM (fused_moe/oracle/mxfp4.py mxfp4_round_up_hidden_size_and_intermediate_size)."""


class Ranks(Cut, frozen=True):
    """How the ranks divide a stage, with the tensors that vLLM joins."""

    mxfp4: tuple[int, int, int] = (1, 1, 1)
    """Multiples of an expert's width, of the hidden size and of the packed axis."""
    mxfp4_experts: bool = False
    """Experts are in MXFP4 whatever the job's format is (`expert_dtype` of the config, DeepSeek-V4)."""
    gguf: Fraction = Fraction()
    """Bits a number of all matrices, where a GGUF file is served."""

    def local(self, whole: tuple[Group, ...], setup: Setup) -> tuple[Group, ...]:
        """The groups as they lie on this rank."""
        return tuple(group._replace(members=tuple(self._stored(_joined(group.members), setup))) for group in super().local(whole, setup))

    def _stored(self, members: tuple[Parameter, ...], setup: Setup) -> Iterable[Parameter]:
        if setup.packed is not None and setup.packed.format == "mxfp4":
            return self._padded(members)
        return (self._in_blocks(p) for p in members) if self.mxfp4_experts or self.gguf else members

    def _in_blocks(self, p: Parameter) -> Parameter:
        """A weight as bytes: 17 for 32 numbers of MXFP4, or the blocks of a GGUF file."""
        experts = len(p.dims) == 3 and "experts" in p.name
        matrix = len(p.dims) == 2 and p.name.endswith("weight")
        if not (experts or (matrix and self.gguf)):
            return p
        size = p.dims[-1].size
        wide = ceil_div(size * self.gguf.numerator, 8 * self.gguf.denominator) if self.gguf else DTYPES["mxfp4"].nbytes(size)
        return replace(p, packed=False, dtype=DTYPES["int8"], dims=(*p.dims[:-1], Dim("m", wide)))

    def _padded(self, members: tuple[Parameter, ...]) -> Iterator[Parameter]:
        """Experts in MXFP4."""
        width, hidden, along = self.mxfp4
        for p in members:
            if not (p.packed and len(p.dims) == 3 and "experts" in p.name):
                yield p
                continue
            experts, rows, cols = p.dims
            down = "down" in p.name
            f = round_up(cols.size if down else rows.size // 2, width)
            h = round_up(rows.size if down else cols.size, hidden)
            sizes = (h, round_up(f, along)) if down else (2 * f, round_up(h, along))
            yield replace(p, dims=(experts, Dim(rows.letter, sizes[0]), Dim(cols.letter, sizes[1])))


def _joined(members: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """The members with those of JOINED made one."""
    found = list(members)
    for leaves, name, letter in JOINED:
        for suffix in ("weight", "bias"):
            parts = [p for leaf in leaves for p in found if p.name.endswith(f"{leaf}.{suffix}") and not p.adapter]
            scopes = {p.name.rsplit(".", 2)[0] if p.name.count(".") > 1 else "" for p in parts}
            if len(parts) != len(leaves) or len(scopes) != 1 or len({p.packed for p in parts}) != 1 or any(p.count > 1 for p in parts):
                continue
            whole = Dim(letter, sum(p.dims[0].size for p in parts))
            path = scopes.pop()
            one = replace(parts[0], name=f"{path}.{name}.{suffix}" if path else f"{name}.{suffix}", dims=(whole, *parts[0].dims[1:]))
            found = [one if p is parts[0] else p for p in found if p is parts[0] or all(p is not other for other in parts)]
    return tuple(found)


def ranks_of(s: Settings, fields: Mapping[str, Any]) -> Ranks:
    """How the ranks divide a stage."""
    whole, width = (s.tp * s.dp, 1) if s.experts_parallel else (1, s.tp * s.dp)  # replicas share the experts (FusedMoEParallelConfig)
    multiples = MXFP4_MULTIPLES.get(s.generation, (128, 256, 1))
    return Ranks(s.tp, s.tp, whole, width, s.tp, s.tp, mxfp4=multiples, mxfp4_experts=fields.get("expert_dtype") == "fp4", gguf=s.gguf)


def weight_rows(stage: Network, s: Settings, setup: Setup, fields: Mapping[str, Any], *, last: bool) -> tuple[Line, ...]:
    """The rows of one rank of a stage. `last`: the stage that holds the head, and the draft with it."""
    cut = ranks_of(s, fields)
    lines = [*weight_lines(stage, setup, cut), *_rope(stage, s, fields)]
    lines += _absorbed(stage, s)
    if last and s.draft.endswith("mtp"):
        lines += _prediction(stage, s, setup, fields)
    if s.lora is not None and s.release.has("counts_adapters"):
        lines.append(_adapters(stage, s, setup, fields))
    return tuple(_offloaded(lines, s.offload))


def _rope(stage: Network, s: Settings, fields: Mapping[str, Any]) -> Iterator[Line]:
    """One table for each width of what turns."""
    positions = stage.max_positions
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters")
    if isinstance(scaling, Mapping) and (scaling.get("rope_type") or scaling.get("type")) in STRETCHING:
        factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
        if isinstance(factor, int | float):
            positions = int((original if isinstance(original, int) else positions) * factor)
    for width in dict.fromkeys(width for run in stage.runs for width in _turned(run.layer)):
        text = plain("e·p·d", e=s.compute.block_bytes, p=positions, d=width)
        yield Line(f"weights/rope {width}", "parameter", s.compute.nbytes(positions * width), text, ROPE, "formula")


@lru_cache(maxsize=4096)
def _turned(layer: Any) -> tuple[int, ...]:
    """Widths of the part of a head that turns."""
    found = []
    for part in inside(layer):
        if isinstance(part, Attention):
            found += [part.rotary.dim or part.head_dim] if part.rotary is not None else []
        elif getattr(part, "kv_rank", 0) and getattr(part, "turned", True):
            found.append(part.rope)  # type: ignore[attr-defined]
        elif hasattr(part, "one_projection"):
            found.append(part.head_dim)  # type: ignore[attr-defined]
    return tuple(found)


def _absorbed(stage: Network, s: Settings) -> Iterator[Line]:
    """Latent attention multiplies queries and results by halves of kv_b_proj, which are kept in an order of their own."""
    size = 0
    for run in stage.runs:
        layer = first_with(run.layer, "kv_rank", "nope", "v_dim")
        if layer is not None:
            size += run.count * layer.heads // s.tp * layer.kv_rank * (layer.nope + layer.v_dim)
    if size and s.release.has("absorbs_latent_weights") and not s.offload:
        e = s.compute.block_bytes
        yield Line("weights/absorbed", "parameter", e * size, plain("e·P", e=e, P=size), ABSORBED, "formula")


def _prediction(stage: Network, s: Settings, setup: Setup, fields: Mapping[str, Any]) -> Iterator[Line]:
    """A block like the last one that attends."""
    count = int(fields.get("mtp_num_hidden_layers") or fields.get("num_nextn_predict_layers") or 0)
    whole = [run for run in stage.runs if any(first_with(run.layer, name) is not None for name in ("kv_heads", "kv_rank", "compressor"))]
    if not count or not whole:
        return
    alone = replace(stage, runs=(Run("mtp", 0, 1, whole[-1].layer, whole[-1].dims),), towers=(), stem=None, tail=None, head=None)
    block = sum(line.bytes for line in weight_lines(alone, setup, ranks_of(s, fields)))
    e, h = s.compute.block_bytes, stage.hidden
    text = plain("n·(block + 2·e·h·h)", n=count, block=block, e=e, h=h)
    yield Line("weights/mtp", "parameter", count * (block + 2 * e * h * h), text, PREDICTION, "formula")


def _adapters(stage: Network, s: Settings, setup: Setup, fields: Mapping[str, Any]) -> Line:
    """Both factors beside every linear layer of a block, and beside each expert's three in releases that adapt them; heads have none."""
    assert s.lora is not None
    width = 0
    for group in groups(stage, setup, ranks_of(s, fields)):
        if group.part in ("embed", "head", "norm"):
            continue
        for p in group.members:
            if len(p.dims) == 2 and p.name.endswith(".weight") and "norm" not in p.name:
                width += group.copies * p.count * (p.dims[0].size + p.dims[1].size)
            elif len(p.dims) == 3 and "experts" in p.name and s.release.has("adapts_experts"):
                experts, rows, cols = (d.size for d in p.dims)
                inputs = 2 if "gate_up" in p.name else 1  # gate and up have a first factor each
                width += group.copies * p.count * experts * (rows + inputs * cols)
    e, slots, rank = s.compute.block_bytes, s.lora.count, s.lora.rank
    return Line("lora/slots", "parameter", e * slots * rank * width, plain("e·slots·r·w", e=e, slots=slots, r=rank, w=width), ADAPTERS, "formula")


def _offloaded(lines: list[Line], budget: int) -> Iterator[Line]:
    """--cpu-offload-gb: weights of the first blocks wait in host memory until the budget is used up."""
    for line in lines:
        gone = min(line.bytes, budget) if line.id.startswith("weights/layers") else 0
        budget -= gone
        yield line._replace(bytes=line.bytes - gone, text=plain("w - offloaded", w=line.bytes, offloaded=gone)) if gone else line
