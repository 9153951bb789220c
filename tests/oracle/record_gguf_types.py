"""Records which types llama.cpp's own quantize gives to the tensors of a model: `python tests/oracle/record_gguf_types.py LIBRARY BUILD`.

LIBRARY is a libllama.so (its ggml libraries beside it). Files are heads alone, sparse on disk; quantize runs dry and reads no weights.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from everybyte.catalog import model_config
from everybyte.models.source import network_of
from everybyte.rules.quantization.gguf.tensors import GgufTensor, gguf_tensors
from everybyte.rules.quantization.gguf.types import is_quantised

DATA = Path(__file__).parent / "data" / "gguf_types.json"
MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama",
    "meta-llama/Meta-Llama-3.1-70B": "llama",
    "meta-llama/Llama-3.2-1B": "llama",
    "Qwen/Qwen2.5-0.5B": "qwen2",
    "mistralai/Mixtral-8x7B-v0.1": "llama",
    "Qwen/Qwen3-30B-A3B": "qwen3moe",
    "google/gemma-2-9b": "gemma2",
    "google/gemma-3-12b-it": "gemma3",
    "microsoft/Phi-3-mini-4k-instruct": "phi3",
    "tiiuae/falcon-7b": "falcon",
    "deepseek-ai/DeepSeek-V2-Lite": "deepseek2",
    "deepseek-ai/DeepSeek-R1": "deepseek2",
    "openai/gpt-oss-20b": "gpt-oss",
    "state-spaces/mamba-1.4b-hf": "mamba",
    "Qwen/Qwen3.5-27B": "qwen35",
}
FTYPES = {
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k_s": 11,
    "q3_k_m": 12,
    "q3_k_l": 13,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k_s": 16,
    "q5_k_m": 17,
    "q6_k": 18,
    "iq2_xxs": 19,
    "iq2_xs": 20,
    "q2_k_s": 21,
    "iq3_xs": 22,
    "iq3_xxs": 23,
    "iq1_s": 24,
    "iq4_nl": 25,
    "iq3_s": 26,
    "iq3_m": 27,
    "iq2_s": 28,
    "iq2_m": 29,
    "iq4_xs": 30,
    "iq1_m": 31,
    "bf16": 32,
    "tq1_0": 36,
    "tq2_0": 37,
    "mxfp4_moe": 38,
}
"""enum llama_ftype."""
_LINE = re.compile(r"\[ *\d+/ *\d+\] +(\S+) .*?, type = +(\w+), *size = .*?(?:-> +[\d.]+ MiB \((\w+)\))?\s*$")


class Parameters(ctypes.Structure):
    """struct llama_model_quantize_params."""

    _fields_ = [
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int32),
        ("output", ctypes.c_int32),
        ("embedding", ctypes.c_int32),
        *((name, ctypes.c_bool) for name in ("requantize", "quantize_output", "only_copy", "pure", "keep_split", "dry_run")),
        ("imatrix", ctypes.c_void_p),
        ("kv", ctypes.c_void_p),
        ("tt", ctypes.c_void_p),
        ("prune", ctypes.c_void_p),
        ("max_buffer", ctypes.c_size_t),
    ]


class Imatrix(ctypes.Structure):
    """struct llama_model_imatrix_data."""

    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]


def head_only(path: Path, arch: str, config: dict[str, Any], tensors: tuple[GgufTensor, ...]) -> None:
    """A file with true names and shapes and no weights: what quantize may touch in F16, the rest in F32."""
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads") or 0
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {
        "block_count": text.get("num_hidden_layers"),
        "context_length": text.get("max_position_embeddings") or 2048,
        "embedding_length": text.get("hidden_size"),
        "feed_forward_length": text.get("intermediate_size") or 4 * text["hidden_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": 1 if arch in ("deepseek2", "falcon") else text.get("num_key_value_heads") or heads,
        "vocab_size": text["vocab_size"],
        "expert_count": text.get("num_local_experts") or text.get("num_experts") or text.get("n_routed_experts"),
        "expert_used_count": text.get("num_experts_per_tok"),
        "expert_feed_forward_length": text.get("moe_intermediate_size") or text.get("intermediate_size"),
        "expert_shared_count": text.get("n_shared_experts"),
        "leading_dense_block_count": text.get("first_k_dense_replace"),
        "attention.q_lora_rank": text.get("q_lora_rank"),
        "attention.kv_lora_rank": text.get("kv_lora_rank"),
        "attention.sliding_window": text.get("sliding_window"),
        "ssm.conv_kernel": text.get("conv_kernel") or text.get("linear_conv_kernel_dim"),
        "ssm.inner_size": _inner(text),
        "ssm.state_size": _state(text),
        "ssm.time_step_rank": text.get("linear_num_value_heads") or (text.get("time_step_rank") if arch == "mamba" else None),
        "ssm.group_count": text.get("linear_num_key_heads"),
        "full_attention_interval": text.get("full_attention_interval"),
        "rope.dimension_count": text.get("qk_rope_head_dim") or text.get("head_dim"),
        "attention.key_length": text.get("head_dim"),
        "attention.value_length": text.get("head_dim"),
        "expert_gating_func": 2 if arch == "deepseek2" else None,
    }.items():
        if value is not None:
            writer.add_uint32(f"{arch}.{key}", int(value))
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{arch}.attention.layer_norm_epsilon", 1e-6)
    if arch == "qwen35":
        writer.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    writer.add_string("tokenizer.ggml.model", "none")
    for tensor in tensors:
        kind = np.dtype(np.float16 if is_quantised(tensor.name, len(tensor.shape)) else np.float32)
        writer.add_tensor_info(tensor.name, tensor.shape, kind, tensor.elements * kind.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    end = sum((4 * t.elements + 31) // 32 * 32 for t in tensors)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 64 + end)


def _inner(text: dict[str, Any]) -> int | None:
    if "linear_num_value_heads" in text:
        return int(text["linear_num_value_heads"] * text["linear_value_head_dim"])
    return text.get("intermediate_size") or 2 * text["hidden_size"] if "state_size" in text else None


def _state(text: dict[str, Any]) -> int | None:
    return text.get("linear_key_head_dim") or text.get("state_size")


class Quantizer:
    """The library's quantize, run dry."""

    def __init__(self, library: str) -> None:
        folder = Path(library).parent
        for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so"):
            if (folder / name).exists():
                ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(library)
        self._lines: list[str] = []
        self._part = ""
        self._log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(self._keep)
        self._library.llama_log_set(self._log, None)
        self._library.llama_backend_init()
        self._library.llama_model_quantize_default_params.restype = Parameters
        self._library.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Parameters)]

    def _keep(self, _level: int, text: bytes, _user: object) -> None:
        *whole, self._part = (self._part + text.decode()).split("\n")
        self._lines += whole

    def types(self, path: Path, ftype: int, *, imatrix: bool) -> dict[str, str]:
        """Name -> type of every tensor."""
        self._lines.clear()
        parameters = self._library.llama_model_quantize_default_params()
        parameters.ftype, parameters.dry_run, parameters.nthread = ftype, True, 1
        numbers = (ctypes.c_float * 1)(1.0)
        entries = (Imatrix * 2)(Imatrix(b"none", numbers, 1), Imatrix(None, None, 0))
        parameters.imatrix = ctypes.cast(entries, ctypes.c_void_p).value if imatrix else None
        if self._library.llama_model_quantize(str(path).encode(), b"/dev/null", ctypes.byref(parameters)):
            raise RuntimeError("\n".join(self._lines[-20:]))
        found = {}
        for line in self._lines:
            match = _LINE.search(line)
            if match:
                found[match[1]] = (match[3] or match[2]).casefold()
        return found


def grouped(types: dict[str, str]) -> dict[str, str]:
    """`blk.*.ffn_down.weight` -> its types layer by layer, equal neighbours counted: `q6_k*4 q4_k*2 ...`. What stays in F32 is left out."""
    by_leaf: dict[str, list[str]] = {}
    for name, kind in sorted(types.items(), key=lambda item: int((re.findall(r"\.(\d+)\.", item[0]) or ["-1"])[0])):
        if kind != "f32":
            by_leaf.setdefault(re.sub(r"\.\d+\.", ".*.", name), []).append(kind)
    return {leaf: runs(kinds) for leaf, kinds in sorted(by_leaf.items())}


def runs(kinds: list[str]) -> str:
    """Equal neighbours counted."""
    found: list[tuple[str, int]] = []
    for kind in kinds:
        found[-1:] = [(kind, found[-1][1] + 1)] if found and found[-1][0] == kind else [*found[-1:], (kind, 1)]
    return " ".join(f"{kind}*{count}" for kind, count in found)


def main(library: str, build: str) -> None:
    """Writes the data."""
    quantizer = Quantizer(library)
    recorded: dict[str, Any] = {"build": int(build), "models": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, arch in MODELS.items():
            tensors = gguf_tensors(network_of(name))
            path = Path(folder) / "model.gguf"
            head_only(path, arch, model_config(name, "model"), tensors)
            kinds = recorded["models"][name] = {}
            for word, ftype in FTYPES.items():
                kinds[word] = grouped(quantizer.types(path, ftype, imatrix=False))
                informed = grouped(quantizer.types(path, ftype, imatrix=True))
                if informed != kinds[word]:
                    kinds[f"{word} imatrix"] = informed
            path.unlink()
    DATA.write_text(json.dumps(recorded, indent=0, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
