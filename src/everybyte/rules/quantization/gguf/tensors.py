"""The tensors of a GGUF file: what llama.cpp's converter makes of the parameters that a network declares.

Names: gguf-py tensor_mapping.py; what is split, joined or left out: convert_hf_to_gguf.py (since 2026 conversion/*.py). Towers of images go to a file of
their own (mmproj) and are not among them. Blocks of multi-token prediction are no part of a Network either; recent converters add them (--mtp).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import NamedTuple

from everybyte.basics.errors import Unsupported
from everybyte.catalog.releases import Release
from everybyte.layers.network import Network, declare
from everybyte.layers.recording.tape import Parameter
from everybyte.models.count import DECLARE, parts
from everybyte.rules.quantization.gguf.types import RELEASE, Chooser, Model, Quantization, is_quantised, matrix_bytes, quantization

_LEAVES = {
    "attn_q": "q_proj query SelfAttention.q attn.q_proj",
    "attn_k": "k_proj key SelfAttention.k",
    "attn_v": "v_proj value SelfAttention.v",
    "attn_qkv": "c_attn qkv_proj query_key_value Wqkv in_proj_qkv",
    "attn_output": "o_proj out_proj dense attention.output.dense attn.c_proj wo SelfAttention.o",
    "attn_q_a": "q_a_proj",
    "attn_q_b": "q_b_proj",
    "attn_kv_a_mqa": "kv_a_proj_with_mqa",
    "attn_kv_b": "kv_b_proj",
    "attn_gate": "in_proj_z",
    "cross_attn_q": "EncDecAttention.q",
    "cross_attn_k": "EncDecAttention.k",
    "cross_attn_v": "EncDecAttention.v",
    "cross_attn_o": "EncDecAttention.o",
    "attn_rel_b": "relative_attention_bias",
    "ffn_up": "up_proj fc1 c_fc fc_in dense_h_to_4h w3 intermediate.dense wi_1 wi gate_up_proj",
    "ffn_gate": "gate_proj w1 wi_0",
    "ffn_down": "down_proj fc2 mlp.c_proj fc_out dense_4h_to_h w2 output.dense DenseReluDense.wo",
    "ffn_gate_inp": "mlp.gate router mixer.gate router.layer router.proj",
    "ffn_gate_inp_shexp": "shared_expert_gate",
    "ffn_gate_up_exps": "experts.gate_up_proj",
    "ffn_up_exps": "experts.up_proj experts.mlp.v1",
    "ffn_gate_exps": "experts.mlp.w1",
    "ffn_down_exps": "experts.down_proj experts.mlp.w2",
    "ffn_up_shexp": "shared_expert.up_proj shared_experts.up_proj shared_experts.gate_up_proj",
    "ffn_gate_shexp": "shared_expert.gate_proj shared_experts.gate_proj",
    "ffn_down_shexp": "shared_expert.down_proj shared_experts.down_proj",
    "ssm_in": "mamba.in_proj mixer.in_proj",
    "ssm_x": "x_proj",
    "ssm_dt": "dt_proj",
    "ssm_out": "linear_attn.out_proj mamba.out_proj mixer.out_proj",
    "ssm_conv1d": "conv1d",
    "ssm_a": "A_log",
    "ssm_ba": "in_proj_ba",
    "ssm_alpha": "in_proj_a",
    "ssm_beta": "in_proj_b",
    "indexer.attn_k": "indexer.wk",
    "indexer.attn_q_b": "indexer.wq_b",
    "indexer.proj": "indexer.weights_proj",
    "attn_norm": "input_layernorm ln_1 self_attn_layer_norm attention_norm norm_1 layer.0.layer_norm",
    "ffn_norm": "post_attention_layernorm ln_2 final_layer_norm ffn_norm norm_2 pre_feedforward_layernorm pre_ff_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_q_a_norm": "q_a_layernorm",
    "attn_kv_a_norm": "kv_a_layernorm",
    "exp_probs_b": "e_score_correction_bias",
}
"""Name in the file -> ends of the paths that the reference classes have. The longest end that fits decides."""
_BY_END = {end: leaf for leaf, ends in _LEAVES.items() for end in ends.split()}

_ENDS = {
    "token_embd": r"(embed_tokens|wte|word_embeddings|tok_embeddings|embeddings|embed_in|shared)\.weight",
    "position_embd": r"(wpe|embed_positions|position_embeddings)\.weight",
    "token_types": r"token_type_embeddings\.weight",
}
_HEADS = ("lm_head", "output", "output_layer", "embed_out")
_SEPARATE_OUTPUT = ("falcon", "gpt_bigcode", "bloom")
"""Families whose files hold an output matrix though it equals the embedding: their checkpoints store both, or the converter writes it twice."""
_SPLIT_QKV = ("baichuan", "internlm2", "internlm")
"""Families whose joined matrix of queries, keys and values the converter takes apart."""
_LIKE_70B = ("llama", "mistral", "qwen2", "nemotron-nas")
_WITHOUT_HEAD = ("bert", "roberta", "nomic_bert")
"""Encoders: head, pooler and what belongs to them is left out."""


class GgufTensor(NamedTuple):
    """One tensor of a file; shape as PyTorch has it, the last axis is a row of the file."""

    name: str
    shape: tuple[int, ...]
    layer: int
    """-1 outside the blocks."""

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return prod(self.shape)


class Typed(NamedTuple):
    """A tensor with its format."""

    tensor: GgufTensor
    kind: str
    nbytes: int


class Converter(NamedTuple):
    """What made the unquantised file."""

    release: Release = RELEASE
    """Build of llama.cpp."""
    both_latents: bool = False
    """MLA's kv_b stands beside its two parts (conversions of ik_llama.cpp)."""


MAINLINE = Converter()


@lru_cache(maxsize=256)
def gguf_tensors(network: Network, converter: Converter = MAINLINE) -> tuple[GgufTensor, ...]:
    """All tensors of a network's file, layer by layer."""
    return tuple(_tensors(network, converter))


def _tensors(network: Network, converter: Converter) -> Iterator[GgufTensor]:
    towers = {tower.name for tower in network.towers} - {"encoder"}
    for part in parts(network):
        if part.tower in towers:
            continue
        found = [p for p in declare(part.layer, DECLARE, part.dims).parameters if not p.tied]
        if not part.path:
            yield from _outside(network, part.label, found, converter)
            continue
        numbered = re.search(r"\.(\d+)(-\d+)?$", part.label)
        first = int(numbered[1]) if numbered else 0
        for layer in range(first, min(first + part.copies, network.layers) if not part.tower else first + part.copies):
            yield from _block(network, found, layer, "enc." if part.tower == "encoder" else "", converter)


def _outside(network: Network, label: str, found: list[Parameter], converter: Converter) -> Iterator[GgufTensor]:
    """Embeddings, the last norm, the head."""
    encoder = network.family in _WITHOUT_HEAD
    if encoder and label in ("head", network.tail_label):
        return
    for parameter in found:
        shape, leaf = _shape(parameter), parameter.name.rpartition(".")[2]
        known = next((name for name, pattern in _ENDS.items() if re.search(f"(^|\\.){pattern}$", parameter.name)), None)
        if known is not None:
            yield GgufTensor(f"{known}.weight", shape, -1)
            if known == "token_embd" and network.tied and _writes_output(network.family, converter.release):
                yield GgufTensor("output.weight", shape, -1)
        elif label == "head" and parameter.name.split(".")[-2] in _HEADS:
            yield GgufTensor(f"output.{leaf}", shape, -1)
        else:
            yield GgufTensor(f"output_norm.{leaf}" if label == network.tail_label and len(shape) == 1 else parameter.name, shape, -1)


def _block(network: Network, found: list[Parameter], layer: int, side: str, converter: Converter) -> Iterator[GgufTensor]:
    prefix = f"{side}blk.{layer}."
    shapes: dict[str, tuple[int, ...]] = {}
    for parameter in found:
        leaf, suffix = _leaf(parameter.name)
        name = f"{leaf}.{suffix}" if suffix else leaf
        shapes[name if name not in shapes else parameter.name] = _shape(parameter)  # two norms may have one name here (Gemma has four)
    for name, shape in shapes.items():
        yield from (GgufTensor(prefix + made, size, layer) for made, size in _converted(network, name, shape, shapes, converter))


def _converted(
    network: Network, name: str, shape: tuple[int, ...], shapes: dict[str, tuple[int, ...]], converter: Converter
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What the converter makes of one tensor of a block."""
    leaf = name.partition(".")[0]
    if leaf == "ffn_gate_up_exps":
        yield from _experts(network, name, shape)
    elif name.startswith(("ffn_up_exps", "ffn_gate_exps", "ffn_down_exps")) and len(shape) == 2 and network.experts and "bias" not in name:
        rows = shape[0] // network.experts  # the rows of all experts under one another
        yield name, (network.experts, shape[1], rows) if leaf == "ffn_down_exps" else (network.experts, rows, shape[1])
    elif name == "attn_kv_b.weight":
        yield from _latents(name, shape, shapes, converter)
    elif name == "attn_qkv.weight" and network.family in _SPLIT_QKV:
        queries = shapes["attn_output.weight"][-1]
        keys = (shape[0] - queries) // 2
        yield from (("attn_q.weight", (queries, shape[1])), ("attn_k.weight", (keys, shape[1])), ("attn_v.weight", (keys, shape[1])))
    elif leaf == "linear_attn" and "in_proj_qkvz" in name:
        values = shapes["ssm_out.weight"][-1]
        yield from (("attn_qkv.weight", (shape[0] - values, shape[1])), ("attn_gate.weight", (values, shape[1])))
    else:
        yield name, tuple(size for size in shape if size != 1) if leaf in ("ssm_conv1d", "ffn_gate_inp_shexp") else shape


def _experts(network: Network, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Gate and up of all experts, which the reference classes join."""
    if network.family == "gemma4":
        yield name, shape
        return
    count, both, *rest = shape
    suffix = name.partition(".")[2]
    for part in ("gate", "up"):
        yield f"ffn_{part}_exps.{suffix}", (count, both // 2, *rest)


def _writes_output(family: str, release: Release) -> bool:
    """Whether files hold an output matrix beside the embedding that it equals."""
    return family in _SEPARATE_OUTPUT or (family == "mpt" and release.has("writes_mpt_output_twice"))


def _latents(name: str, shape: tuple[int, ...], shapes: dict[str, tuple[int, ...]], converter: Converter) -> Iterator[tuple[str, tuple[int, ...]]]:
    """MLA's kv_b whole, or by head: keys transposed (heads, r, d_n), values (heads, d_v, r)."""
    rows, rank = shape
    splits = converter.release.has("splits_latent_weights")
    if not splits or converter.both_latents:
        yield name, shape
    if splits or converter.both_latents:
        queries = shapes.get("attn_q_b.weight", shapes.get("attn_q.weight", (0,)))[0]
        values, rotary = shapes["attn_output.weight"][-1], shapes["attn_kv_a_mqa.weight"][0] - rank
        heads = (queries - rows + values) // rotary
        yield "attn_k_b.weight", (heads, rank, (rows - values) // heads)
        yield "attn_v_b.weight", (heads, values // heads, rank)


def _leaf(name: str) -> tuple[str, str]:
    """(name in the file, `weight`, `bias` or nothing) of a parameter's path in its block."""
    path, _, last = name.rpartition(".")
    if last.endswith("_bias") and last not in ("dt_bias", "e_score_correction_bias"):
        path, last = f"{path}.{last.removesuffix('_bias')}", "bias"
    elif last not in ("weight", "bias"):
        stacked = _matched(name)
        return (stacked, "weight") if stacked is not None and stacked.endswith("_exps") else (stacked or name, "")
    return _matched(path) or path, last


@lru_cache(maxsize=4096)
def _matched(path: str) -> str | None:
    parts_of = path.split(".")
    for begin in range(len(parts_of)):
        leaf = _BY_END.get(".".join(parts_of[begin:]))
        if leaf is not None:
            return leaf
    return None


def _shape(parameter: Parameter) -> tuple[int, ...]:
    return tuple(dim.size for dim in parameter.dims)


def model_of(network: Network, tensors: tuple[GgufTensor, ...]) -> Model:
    """What the rules of the types look at."""
    first = {name: next((t.shape[0] for t in tensors if t.name.endswith(f".{name}.weight")), 0) for name in ("attn_q", "attn_k")}
    values = sum(t.name.endswith(("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")) for t in tensors)
    gqa = first["attn_q"] // first["attn_k"] if first["attn_k"] else _fused_gqa(tensors)
    tied = not any(t.name == "output.weight" for t in tensors)
    is_70b = network.layers == 80 and gqa > 1 and network.family in _LIKE_70B
    return Model(network.family, network.layers, max(gqa, 1), network.experts, tied, is_70b, values)


def _fused_gqa(tensors: tuple[GgufTensor, ...]) -> int:
    """Query heads to key heads where one matrix holds both."""
    joined = next((t.shape[0] for t in tensors if t.name.endswith("attn_qkv.weight")), 0)
    queries = next((t.shape[-1] for t in tensors if t.name.endswith("attn_output.weight")), 0)
    return 2 * queries // (joined - queries) if joined > queries else 1


@lru_cache(maxsize=256)
def typed_tensors(network: Network, how: Quantization, converter: Converter = MAINLINE) -> tuple[Typed, ...]:
    """All tensors of a network's file with their formats."""
    tensors = gguf_tensors(network, converter)
    chooser = Chooser(how, model_of(network, tensors))
    return tuple(_typed(tensor, chooser) for tensor in tensors)


def _typed(tensor: GgufTensor, chooser: Chooser) -> Typed:
    *rows, cols = tensor.shape or (1,)
    kind = "f32"
    if is_quantised(tensor.name, len(tensor.shape), chooser.how.release):
        kind = chooser.type_of(tensor.name, tensor.layer, cols, stacked=len(tensor.shape) > 2)
    return Typed(tensor, kind, matrix_bytes(kind, prod(rows), cols))


def mean_bits(network: Network, word: str) -> Fraction:
    """Bits a number of the matrices of a file that quantize makes of a network; for engines that keep the file's blocks as they are. Raises BadInput for a
    name that is no quantisation, Unsupported for a mixture of its maker's own."""
    if word == "mixed" or (word.endswith("_xl") and word != "q3_k_xl"):
        raise Unsupported("serve.weights", f"{word!r} is another mixture for every model; state the mean as serve.weights: {{format: {word}, bits: ...}}")
    matrices = [t for t in typed_tensors(network, quantization(word)) if len(t.tensor.shape) > 1]
    return Fraction(8 * sum(t.nbytes for t in matrices), sum(t.tensor.elements for t in matrices)).limit_denominator(1000)
