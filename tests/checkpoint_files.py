"""Builders of tiny valid checkpoint files, for tests that read them or break them."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}

_SAFETENSORS_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "I64": 64, "I32": 32, "U8": 8, "BOOL": 8, "F4": 4}

# name -> (id, elements of a block, bytes of a block)
_GGML = {"fp32": (0, 1, 4), "fp16": (1, 1, 2), "q4_0": (2, 32, 18), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "q6_k": (14, 256, 210), "mxfp4": (39, 32, 17)}


def safetensors_bytes(tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file of zeros: {name: (dtype as the format writes it, shape)}."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, (kind, shape) in tensors.items():
        size = math.prod(shape) * _SAFETENSORS_BITS[kind] // 8
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    return header_bytes(json.dumps(header)) + bytes(offset)


def header_bytes(header: str) -> bytes:
    """The length and text that begin a safetensors file."""
    raw = header.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(value: Any) -> bytes:
    """A metadata value with its type: int as uint32, float as float32, lists of one kind as arrays."""
    kind, raw = _typed(value)
    return struct.pack("<I", kind) + raw


def _typed(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, gguf_text(value)
    elements = [_typed(v) for v in value]
    kind = elements[0][0] if elements else 4
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(raw for _, raw in elements)


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, tuple[str, list[int]]], alignment: int = 32) -> bytes:
    """A GGUF file of zeros: {name: (ggml type, shape in PyTorch's order)}."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(gguf_text(key) + gguf_value(value) for key, value in metadata.items())
    offset = 0
    for name, (kind, shape) in tensors.items():
        number, block, block_bytes = _GGML[kind]
        head += gguf_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, offset)
        offset += -(-(math.prod(shape) // block * block_bytes) // alignment) * alignment
    return head + bytes(-len(head) % alignment) + bytes(offset)


def gguf_llama_metadata(arch: str = "llama") -> dict[str, Any]:
    """Metadata of a two-layer model with 4 heads on 2 key-value heads."""
    return {
        "general.architecture": arch,
        f"{arch}.block_count": 2,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": 64,
        f"{arch}.feed_forward_length": 128,
        f"{arch}.attention.head_count": 4,
        f"{arch}.attention.head_count_kv": 2,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(96)],
    }


GGUF_LLAMA_TENSORS: dict[str, tuple[str, list[int]]] = {
    "token_embd.weight": ("q8_0", [96, 64]),
    "output_norm.weight": ("fp32", [64]),
    "output.weight": ("q8_0", [96, 64]),
    "blk.0.attn_q.weight": ("q4_0", [64, 64]),
}


def write_sharded(folder: Path, shards: dict[str, dict[str, tuple[str, list[int]]]]) -> None:
    """config.json, safetensors files and their index."""
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    for file, tensors in shards.items():
        (folder / file).write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
