"""Which number format llama.cpp's quantize tool gives to which tensor of a model.

A name such as Q4_K_M is a mixture: a base type, and more or fewer bits for the tensors that suffer most or least. Source: llama.cpp
src/llama-quant.cpp (llama_tensor_get_type_impl, tensor_type_fallback; before 2024-11 in src/llama.cpp), read at b1560, b2350, b3290, b4000,
b5300, b6200 and in August 2026.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from everybyte.basics.dtypes import DTYPES
from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.basics.record import Record
from everybyte.catalog.releases import Release, newest

Role = Literal["token_embd", "q", "k", "v", "qkv", "kv_b", "output", "up", "gate", "down", "head", "other"]
"""What the rules tell tensors apart by (tensor_get_category)."""

_ROLES: tuple[tuple[str, Role], ...] = (
    ("attn_qkv.weight", "qkv"),
    ("attn_kv_b.weight", "kv_b"),
    ("attn_v.weight", "v"),
    ("attn_k.weight", "k"),
    ("attn_q.weight", "q"),
    ("attn_output.weight", "output"),
    ("ffn_up", "up"),
    ("ffn_gate", "gate"),
    ("ffn_down", "down"),
)

RELEASE = Release("llama.cpp", (newest("llama.cpp").whole("assumed_for_files"),))
"""The build whose rules are taken where none is named."""

MIXTURES: dict[str, str] = {
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "q4_0": "q4_0",
    "q4_1": "q4_1",
    "q5_0": "q5_0",
    "q5_1": "q5_1",
    "q8_0": "q8_0",
    "q1_0": "q1_0",
    "q2_0": "q2_0",
    "q2_k": "q2_k",
    "q2_k_s": "q2_k",
    "q3_k_s": "q3_k",
    "q3_k_m": "q3_k",
    "q3_k_l": "q3_k",
    "q4_k_s": "q4_k",
    "q4_k_m": "q4_k",
    "q5_k_s": "q5_k",
    "q5_k_m": "q5_k",
    "q6_k": "q6_k",
    "iq1_s": "iq1_s",
    "iq1_m": "iq1_m",
    "iq2_xxs": "iq2_xxs",
    "iq2_xs": "iq2_xs",
    "iq2_s": "iq2_xs",
    "iq2_m": "iq2_s",
    "iq3_xxs": "iq3_xxs",
    "iq3_xs": "iq3_s",
    "iq3_s": "iq3_s",
    "iq3_m": "iq3_s",
    "iq4_nl": "iq4_nl",
    "iq4_xs": "iq4_xs",
    "tq1_0": "tq1_0",
    "tq2_0": "tq2_0",
    "mxfp4_moe": "mxfp4",
    "nvfp4": "nvfp4",
}
"""Name of a mixture -> its base type (llama_ftype_get_default_type)."""

ALIASES = {
    "fp32": "f32",
    "fp16": "f16",
    "q3_k": "q3_k_m",
    "q4_k": "q4_k_m",
    "q5_k": "q5_k_m",
    "mxfp4": "mxfp4_moe",
    "q4": "q4_0",
    "q8": "q8_0",
}
"""Other spellings (tools/quantize/quantize.cpp)."""

FORK_TYPES: dict[str, tuple[int, int, int]] = {
    "q6_0": (32, 26, 0),
    "iq1_bn": (64, 13, 2),
    "iq2_bn": (64, 16, 4),
    "iq2_k": (256, 76, 0),
    "iq3_k": (256, 110, 0),
    "iq4_k": (256, 144, 0),
    "iq5_k": (256, 176, 0),
    "iq6_k": (256, 212, 0),
    "iq2_ks": (256, 70, 2),
    "iq3_ks": (256, 102, 2),
    "iq4_ks": (256, 136, 4),
    "iq5_ks": (256, 168, 4),
    "iq4_kss": (256, 128, 4),
    "iq2_kl": (256, 86, 2),
    "iq1_kt": (256, 56, 4),
    "iq2_kt": (256, 68, 4),
    "iq3_kt": (256, 100, 4),
    "iq4_kt": (256, 128, 4),
    "iq1_s_r4": (32, 6, 2),
    "iq1_m_r4": (32, 7, 2),
}
"""Types that only ik_llama.cpp has: (elements of a block, its bytes, bytes in front of each row; ggml/src/ggml-common.h, iqk/iqk_quantize.cpp).
Its types for run-time repacking (`_r4`, `_r8`, `_r16`) hold the same bytes in another order."""

_TYPES = frozenset(MIXTURES.values())
_LOW = ("iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq1_s", "iq1_m")
NEEDS_IMATRIX = (*_LOW, "iq3_xxs", "q2_k_s")
"""Mixtures that quantize refuses to make without an importance matrix (tensor_requires_imatrix)."""
_MADE_WITH_IMATRIX = (*NEEDS_IMATRIX, "iq3_xs", "iq3_s", "iq3_m", "iq4_nl", "iq4_xs")


class Quantization(Record, frozen=True):
    """How a file was quantised."""

    mixture: str
    """A key of MIXTURES."""
    imatrix: bool = False
    """Made with an importance matrix."""
    release: Release = RELEASE
    """Build of llama.cpp whose quantize made the file."""
    wide_ends: bool = False
    """Embedding and output matrix in Q8_0 (the files called Q4_K_L, Q6_K_L ... are made by quantize --token-embedding-type --output-tensor-type)."""


def quantization(word: str, imatrix: bool | None = None, release: Release = RELEASE, path: str = "serve.weights.format") -> Quantization:
    """The mixture called `word`. Raises BadInput with the nearest names."""
    name = word.casefold()
    plain = name.removesuffix("_l") + "_m" if name in ("q4_k_l", "q5_k_l") else {"q6_k_l": "q6_k", "q2_k_l": "q2_k", "q3_k_xl": "q3_k_l"}.get(name, name)
    mixture = ALIASES.get(plain, plain)
    base = packed_type(mixture)
    if mixture not in MIXTURES and base is None:
        raise BadInput(path, f"{word!r} is no quantisation of llama.cpp{did_you_mean(name, [*MIXTURES, *FORK_TYPES])}; it has {', '.join(MIXTURES)}")
    return Quantization(mixture, mixture in _MADE_WITH_IMATRIX if imatrix is None else imatrix, release, wide_ends=plain != name)


def is_gguf(word: str) -> bool:
    """Whether a format of weights is one that only GGUF files have."""
    name = word.casefold()
    if name in ("fp32", "fp16", "bf16", "f32", "f16", "mxfp4", "nvfp4", "fp8", "int8"):
        return False
    return name in MIXTURES or name.endswith(("_xl", "_k_l")) or packed_type(name) in FORK_TYPES or ("_" in name and packed_type(name) is not None)


def packed_type(name: str) -> str | None:
    """The type called `name` without the mark of a repacked order (`iq4_ks_r4` -> `iq4_ks`), None for a word that is no type."""
    for plain in (name, name.rpartition("_r")[0] if name.rpartition("_r")[2].isdigit() else name):
        if plain in FORK_TYPES or plain in _TYPES:
            return plain
    return None


def block_of(kind: str) -> tuple[int, int, int]:
    """(elements of a block, its bytes, bytes in front of each row) of a type."""
    if kind in FORK_TYPES:
        return FORK_TYPES[kind]
    found = DTYPES[{"f32": "fp32", "f16": "fp16"}.get(kind, kind)]
    if kind == "nvfp4":
        return 64, 36, 0  # ggml packs four blocks of 16 into one, ggml-common.h QK_NVFP4
    return found.block_elements, found.block_bytes, 0


def matrix_bytes(kind: str, rows: int, cols: int) -> int:
    """Bytes of a matrix of rows × cols, cols a multiple of the type's block."""
    elements, size, head = block_of(kind)
    return rows * (cols // elements * size + head)


class Model(NamedTuple):
    """What of a model the rules look at."""

    arch: str
    """`falcon` has rules of its own."""
    layers: int
    gqa: int
    """Query heads that share a key head."""
    experts: int
    tied: bool
    """The embedding is the output matrix as well."""
    is_70b: bool
    """Counts as a model of 70B parameters: 80 layers with shared key heads (src/llama-model.cpp, LLM_TYPE_70B)."""
    attention: int
    """Layers that have a matrix of values."""


def role_of(name: str) -> Role:
    """The category of a tensor by its GGUF name."""
    if name == "output.weight":
        return "head"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "token_embd"
    return next((role for mark, role in _ROLES if mark in name), "other")


_PLAIN = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "attn_rel_b.weight",
)
_POSITIONS = ("position_embd.weight", "token_types.weight")


def is_quantised(name: str, axes: int, release: Release = RELEASE) -> bool:
    """Whether quantize touches a tensor (tensor_allows_quantization): matrices called weight, but no norms, routers, positions, convolutions."""
    if axes < 2 or not name.endswith("weight") or (name in _POSITIONS and release.has("keeps_position_tables")):
        return False
    return not any(part in name for part in _PLAIN)


class Chooser:
    """Chooses the types of one file's tensors, in the order in which they lie in it: some rules count."""

    def __init__(self, how: Quantization, model: Model) -> None:
        self.how, self.model = how, model
        self._values = self._downs = 0

    def type_of(self, name: str, layer: int, cols: int, stacked: bool = False) -> str:
        """The type of a matrix that `is_quantised`; `stacked`: three-dimensional (experts)."""
        how = self.how
        base = MIXTURES.get(how.mixture) or packed_type(how.mixture) or how.mixture
        if base in ("f32", "f16", "bf16"):
            return base
        role = role_of(name)
        if how.wide_ends and role in ("head", "token_embd"):
            chosen = "q8_0"
        elif how.mixture == "mxfp4_moe":
            chosen = "mxfp4" if stacked else "q8_0"
        elif role == "head" or (name == "token_embd.weight" and self.model.tied and how.release.has("types_shared_embedding")):
            chosen = self._output(base, cols)
        elif role == "token_embd":
            chosen = self._embedding(base)
        elif how.mixture in _LOW:
            chosen = self._low(base, role)
        else:
            chosen = self._by_role(role, base, layer)
        return fallback(chosen, cols, how.release)

    def _by_role(self, role: Role, base: str, layer: int) -> str:
        """Mixtures of 3 bits and more."""
        match role:
            case "v":
                return self._value(base)
            case "qkv" | "kv_b":
                return self._fused(base, role)
            case "q" | "k":
                return self._query(base, role)
            case "down":
                return self._down(base, layer)
            case "output":
                return self._attention_output(base)
            case "up" | "gate":
                return self._up(base, layer)
            case _:
                return base

    def _more(self, layer: int, layers: int) -> bool:
        """use_more_bits: the first and last eighth of the layers and every third between."""
        return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2

    def _output(self, base: str, cols: int) -> str:
        if self.model.arch == "falcon" or cols % block_of(base)[0]:
            return "q8_0"
        if self.how.mixture in _LOW or self.how.mixture == "iq3_xxs":
            return "q5_k"
        return base if base == "q8_0" else "q6_k"

    def _embedding(self, base: str) -> str:
        mixture = self.how.mixture
        if mixture in ("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"):
            return "q2_k"
        if mixture in ("iq2_s", "iq2_m", "iq3_xxs"):
            return "iq3_s"
        return "q4_k" if mixture in ("tq1_0", "tq2_0", "q2_0") else base

    def _is_value(self, role: Role) -> bool:
        """Fused matrices count as values since 2026 (category_is_attn_v)."""
        return role == "v" or (role in ("qkv", "kv_b") and self.how.release.has("fused_are_values"))

    def _low(self, base: str, role: Role) -> str:
        """Mixtures of less than 3 bits."""
        mixture, model = self.how.mixture, self.model
        better = "iq3_s" if mixture in ("iq2_s", "iq2_m") else "q2_k"
        if self._is_value(role):
            self._values += 1
            return "q4_k" if model.gqa >= 4 or model.experts >= 4 else better
        if role == "k" and model.experts == 8:
            return "q4_k"
        if role == "down":
            self._downs += 1
            return better if self._downs - 1 < model.layers // 8 else base
        if role == "output":
            if model.experts == 8:
                return "q5_k"
            return {"iq1_s": "iq2_xxs", "iq1_m": "iq2_xxs", "iq2_s": "iq3_s", "iq2_m": "iq3_s"}.get(mixture, base)
        return base

    def _value(self, base: str) -> str:
        mixture, model, first = self.how.mixture, self.model, self._values
        self._values += 1
        shared = model.gqa >= 4
        chosen = base
        if mixture == "q2_k":
            chosen = "q4_k" if shared and self.how.release.has("mixes_by_eighths") else "q3_k"
        elif mixture == "iq3_xxs":
            chosen = "q4_k" if shared else base if self.how.imatrix else "iq3_s"
        elif mixture == "iq3_m" or (mixture in ("iq3_xs", "iq3_s", "q2_k_s") and shared):
            chosen = "q4_k"
        elif mixture == "q3_k_m":
            chosen = "q5_k" if first < 2 else "q4_k"
        elif mixture == "q3_k_l" or (mixture in ("iq4_nl", "iq4_xs") and shared):
            chosen = "q5_k"
        elif mixture in ("q4_k_m", "q5_k_m") and self._more(first, model.attention):
            chosen = "q6_k"
        elif mixture == "q4_k_s" and first < 4:
            chosen = "q5_k"
        if model.is_70b and chosen in ("q3_k", "q4_k"):
            chosen = "q5_k"
        return "q8_0" if model.experts == 8 else chosen

    def _query(self, base: str, role: Role) -> str:
        if role == "k" and self.model.experts == 8:
            return "q8_0"
        return {"iq3_xs": "iq3_xxs", "iq3_xxs": "iq2_s"}.get(self.how.mixture, base)

    def _down(self, base: str, layer: int) -> str:
        mixture, model = self.how.mixture, self.model
        falcon, layers = model.arch == "falcon", model.layers
        early = layer < (layers // 8 if self.how.release.has("mixes_by_eighths") else 4)
        earliest = layer < (layers // 16 if self.how.release.has("mixes_by_eighths") else 2)
        more = self._more(layer, layers)
        if mixture == "q2_k":
            return "q3_k"
        if mixture == "q2_k_s":
            return "q4_k" if early else base
        if mixture == "iq3_xxs" and not self.how.imatrix:
            return "q4_k" if early else "q3_k"
        if mixture == "q3_k_m":
            return "q5_k" if earliest else "q4_k" if not falcon or more else "q3_k"
        if mixture == "q3_k_l":
            return "q4_k" if falcon else "q5_k"
        if mixture == "iq3_m":
            return "q4_k" if early or (model.experts == 8 and more) else base
        if mixture == "q4_k_m" and falcon:
            return "q6_k" if earliest else "q5_k" if more else "q4_k"
        if mixture in ("q4_k_m", "q5_k_m"):
            return "q6_k" if more else base
        if mixture in ("iq4_nl", "iq4_xs") and not self.how.imatrix:
            return "q5_k" if early else base
        if mixture == "q4_k_s" and not falcon:
            return "q5_k" if early else base
        if mixture in ("q4_0", "q5_0") and self.how.imatrix and self.how.release.has("mixes_by_eighths"):
            return f"{base[:-1]}1" if early else base
        return base

    def _attention_output(self, base: str) -> str:
        mixture, model = self.how.mixture, self.model
        if model.arch == "falcon":
            return "q4_k" if mixture == "q3_k_l" else base
        if model.experts == 8:
            raised = ("q2_k", "iq3_xs", "iq3_xxs", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq3_s", "iq3_m", "iq4_xs")
            return "q5_k" if mixture in raised else base
        return {"q2_k": "q3_k", "iq3_xxs": "iq3_s", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_m": "q4_k"}.get(mixture, base)

    def _fused(self, base: str, role: Role) -> str:
        if self.how.release.has("fused_are_values"):
            return self._value(base)
        if role == "kv_b":
            return base
        return {"q3_k_m": "q4_k", "q3_k_l": "q4_k", "iq3_m": "q4_k", "q4_k_m": "q5_k", "q5_k_m": "q6_k"}.get(self.how.mixture, base)

    def _up(self, base: str, layer: int) -> str:
        layers = self.model.layers
        if self.how.mixture == "iq3_xs" and layers // 8 <= layer < 7 * layers // 8:
            return "iq3_xxs"
        return "q3_k" if self.how.mixture == "q2_k" and not self.how.release.has("mixes_by_eighths") else base


_FALLBACKS = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_0", "q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0"),
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}


def fallback(kind: str, cols: int, release: Release = RELEASE) -> str:
    """The type that is used where the columns are no multiple of the block (tensor_type_fallback)."""
    if cols % block_of(kind)[0] == 0:
        return kind
    chosen = "q4_1" if kind == "q3_k" and not release.has("mixes_by_eighths") else _FALLBACKS.get(kind, "q8_0" if kind in FORK_TYPES else "f16")
    return chosen if cols % block_of(chosen)[0] == 0 else "f16"
