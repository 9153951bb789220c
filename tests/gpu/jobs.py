"""The jobs that `measure.py` runs: each is a job of the contract, from which the code that runs it is built, so that the two cannot drift.

Sizes fit a card of 24 GB. `needs` names packages without which a job is left out.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Fields = dict[str, Any]
STEPS, RUNS = 3, 2
"""How often a training job is run, and inference."""
MARK_BYTES = 509
"""A mark in whatever records the memory, where a run begins and where it ends: a prime, so that no tensor of the jobs is as large, and one block."""
JOB, TRACED_ON = "EVERYBYTE_MEASURED_JOB", "EVERYBYTE_MEASURED_ON"
"""Variables of the environment that name the job, and the device, of the program that is traced."""


@dataclass(frozen=True)
class Measured:
    """A job and what it takes to run it."""

    name: str
    job: Fields
    needs: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """Kind of run: the first word of the name."""
        return "own-" + self.name.split("-")[0]


LLAMA: Fields = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
LLAMA_1B: Fields = {
    **LLAMA,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
QWEN: Fields = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 12,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
}
GEMMA: Fields = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262144,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256,
    "attention_dropout": 0.0,
}
MIXTRAL: Fields = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 768,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
    "attention_dropout": 0.0,
    "output_router_logits": False,
}
GPT2: Fields = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 1024,
    "n_layer": 12,
    "n_head": 16,
    "n_positions": 1024,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "tie_word_embeddings": True,
}
NEOX: Fields = {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "vocab_size": 50304,
    "max_position_embeddings": 2048,
    "hidden_act": "gelu",
    "rotary_pct": 0.25,
    "use_parallel_residual": True,
    "tie_word_embeddings": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
BERT: Fields = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "tie_word_embeddings": True,
}
VIT: Fields = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "qkv_bias": True,
    "id2label": {str(i): str(i) for i in range(1000)},
}
RESNET_50: Fields = {
    "family": "cnn",
    "image": 224,
    "classes": 1000,
    "stages": [
        {"block": "plain", "channels": 64, "kernel": 7, "stride": 2, "pool": 2},
        {"block": "bottleneck", "channels": 256, "blocks": 3},
        {"block": "bottleneck", "channels": 512, "blocks": 4, "stride": 2},
        {"block": "bottleneck", "channels": 1024, "blocks": 6, "stride": 2},
        {"block": "bottleneck", "channels": 2048, "blocks": 3, "stride": 2},
    ],
}

LORA: Fields = {"kind": "lora", "rank": 16, "alpha": 32, "targets": "all-linear", "dtype": "fp32"}
REENTRANT, PLAIN_RECOMPUTE = {"policy": "full", "reentrant": True}, {"policy": "full", "reentrant": False}


def train(name: str, model: Fields, micro_batch: int, seq_len: int, *needs: str, **settings: Any) -> Measured:
    """A plain training loop. Every setting that matters is stated."""
    section: Fields = {
        "framework": "pytorch",
        "micro_batch": micro_batch,
        "seq_len": seq_len,
        "precision": "bf16-mixed",
        "attention": "sdpa",
        "recompute": "none",
        "optimizer": {"name": "adamw", "impl": "foreach"},
    }
    kind = "shape" if "family" in model else "config"
    return Measured(name, {"everybyte": 1, "name": name, "model": {kind: model}, "train": {**section, **settings}}, needs)


def serve(name: str, config: Fields, sequences: int, context: int, *needs: str, **settings: Any) -> Measured:
    """Inference in bf16 with `generate`, or one forward pass where `extra.use_cache` is given."""
    section: Fields = {"engine": "transformers", "weights": "bf16", "sequences": sequences, "context": context, "attention": "sdpa"}
    return Measured(name, {"everybyte": 1, "name": name, "model": {"config": config}, "serve": {**section, **settings}}, needs)


def adamw(impl: str, **more: Any) -> Fields:
    """AdamW in one of its implementations."""
    return {"name": "adamw", "impl": impl, **more}


JOBS: tuple[Measured, ...] = (
    train("full-bf16", LLAMA, 4, 1024, precision="bf16"),
    train("full-amp", LLAMA, 4, 1024),
    train("full-fp32", LLAMA, 4, 512, precision="fp32"),
    train("full-amp-eager", LLAMA, 2, 1024, attention="eager"),
    train("full-bf16-eager", LLAMA, 2, 1024, attention="eager", precision="bf16"),
    train("full-one-sequence", LLAMA, 1, 4096),
    train("full-1b-bf16", LLAMA_1B, 1, 1024, precision="bf16", recompute=PLAIN_RECOMPUTE),
    train("recompute-amp", LLAMA, 8, 1024, recompute=PLAIN_RECOMPUTE),
    train("recompute-reentrant", LLAMA, 8, 1024, recompute=REENTRANT),
    train("recompute-long", LLAMA, 1, 12288, recompute=PLAIN_RECOMPUTE, precision="bf16"),
    train("recompute-eager", LLAMA, 2, 2048, recompute=PLAIN_RECOMPUTE, attention="eager"),
    train("optimizer-fused", LLAMA, 2, 512, optimizer=adamw("fused")),
    train("optimizer-loop", LLAMA, 2, 512, optimizer=adamw("for-loop")),
    train("optimizer-sgd", LLAMA, 2, 512, optimizer={"name": "sgd", "impl": "foreach"}),
    train("optimizer-momentum", LLAMA, 2, 512, optimizer={"name": "sgd-momentum", "impl": "foreach"}),
    train("optimizer-adafactor", LLAMA, 2, 512, optimizer={"name": "adafactor", "impl": "foreach"}),
    train("optimizer-8bit", LLAMA, 2, 512, "bitsandbytes", optimizer={"name": "adamw-8bit"}),
    train("optimizer-torchao-8bit", LLAMA, 2, 512, "torchao", precision="bf16", optimizer={"name": "adamw-torchao-8bit"}),
    train("step-accumulated", LLAMA, 2, 1024, grad_accum=2),
    train("step-zeroed", LLAMA, 2, 1024, zero_grad_set_to_none=False),
    train("lora-bf16", LLAMA, 4, 1024, precision="bf16", adapter=LORA),
    train("lora-amp", LLAMA, 4, 1024, adapter=LORA),
    train("lora-attention-only", LLAMA, 4, 1024, precision="bf16", adapter={**LORA, "targets": ["q_proj", "v_proj"]}),
    train("lora-reentrant", LLAMA, 8, 1024, precision="bf16", adapter=LORA, recompute=REENTRANT),
    train("lora-1b-recompute", LLAMA_1B, 2, 1024, precision="bf16", adapter=LORA, recompute=PLAIN_RECOMPUTE),
    train("lora-nf4", LLAMA_1B, 2, 512, "bitsandbytes", precision="bf16", adapter=LORA, quantization={"format": "nf4", "double": True, "kbit_prep": False}),
    train("frozen-but-head", LLAMA, 4, 1024, freeze=["embed_tokens", "layers"]),
    train("frozen-attention", LLAMA, 4, 1024, precision="bf16", freeze=["self_attn", "embed_tokens"]),
    train("vocabulary-qwen", QWEN, 2, 1024),
    train("vocabulary-qwen-bf16", QWEN, 4, 1024, precision="bf16", recompute=PLAIN_RECOMPUTE),
    train("vocabulary-fused-linear", QWEN, 4, 1024, "liger_kernel", precision="bf16", loss="fused-linear", kernels=["liger"]),
    train("family-gemma-3", GEMMA, 1, 1024, precision="bf16"),
    train("family-gemma-3-eager", GEMMA, 1, 1024, precision="bf16", attention="eager", recompute=PLAIN_RECOMPUTE),
    train("family-gpt-2", GPT2, 4, 1024),
    train("family-gpt-2-eager", GPT2, 4, 512, attention="eager", precision="bf16"),
    train("family-neox", NEOX, 4, 1024, precision="bf16"),
    train("family-bert", BERT, 16, 512),
    train("family-vit", VIT, 64, 197),
    train("cnn-fp32", RESNET_50, 64, 224 * 224, precision="fp32", optimizer={"name": "sgd-momentum", "impl": "foreach"}),
    train("cnn-amp", RESNET_50, 64, 224 * 224, optimizer={"name": "sgd-momentum", "impl": "foreach"}),
    train("moe-bf16", MIXTRAL, 4, 1024, precision="bf16"),
    train("moe-recompute", MIXTRAL, 4, 1024, precision="bf16", recompute=PLAIN_RECOMPUTE),
    serve("generate-long", LLAMA_1B, 4, 8192, extra={"new_tokens": 8}),
    serve("generate-many", LLAMA, 32, 1024, extra={"new_tokens": 8}),
    serve("generate-windows", GEMMA, 4, 4096, extra={"new_tokens": 8}),
    serve("prefill-sdpa", LLAMA_1B, 1, 4096, extra={"use_cache": False}),
    serve("prefill-eager", LLAMA_1B, 1, 4096, attention="eager", extra={"use_cache": False}),
    serve("prefill-cached", LLAMA, 2, 4096, extra={"use_cache": True}),
    serve("prefill-fp32", LLAMA, 1, 4096, weights="fp32", extra={"use_cache": False}),
)

TINY: Fields = {
    "hidden_size": 96,
    "intermediate_size": 208,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "sliding_window": 16,
    "sliding_window_pattern": 2,
    "num_local_experts": 4,
    "n_embd": 96,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 128,
    "image_size": 32,
    "patch_size": 8,
    "query_pre_attn_scalar": 24,
    "id2label": {str(i): str(i) for i in range(10)},
}
"""Sizes of the small twins; a field that a config does not have, or has as null, is left as it is."""
TINY_TOKENS, TINY_ROWS, TINY_SIDE = 24, 2, 64


def tiny(measured: Measured) -> Measured:
    """The same job with sizes that a CPU runs in moments."""
    job = copy.deepcopy(measured.job)
    if "train" in job:
        job["train"].update(micro_batch=min(job["train"]["micro_batch"], TINY_ROWS), seq_len=_shrink(job["model"]))
        if "adapter" in job["train"]:
            job["train"]["adapter"]["rank"] = 4
    else:
        job["serve"].update(sequences=min(job["serve"]["sequences"], TINY_ROWS), context=_shrink(job["model"]))
        if "new_tokens" in job["serve"]["extra"]:
            job["serve"]["extra"]["new_tokens"] = 2
    return Measured(measured.name, job, measured.needs)


def _shrink(model: Fields) -> int:
    """Makes a model small; returns the tokens of a sequence."""
    if "shape" in model:
        model["shape"].update(image=TINY_SIDE, classes=10)
        for stage in model["shape"]["stages"]:
            stage["channels"] //= 8
        return TINY_SIDE**2
    config = model["config"]
    config.update({key: value for key, value in TINY.items() if config.get(key) is not None})
    return int((config["image_size"] // config["patch_size"]) ** 2 + 1) if "image_size" in config else TINY_TOKENS
