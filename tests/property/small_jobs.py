"""Small models of all kinds, and jobs over them, for hypothesis to draw from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_LLAMA = {
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "head_dim": 24,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_MOE = {"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 56}
_WINDOWS = {"sliding_window": 24, "layer_types": None}

CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {**_LLAMA, "model_type": "llama"},
    "MistralForCausalLM": {**_LLAMA, "model_type": "mistral", "sliding_window": None},
    "Qwen2ForCausalLM": {**_LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
    "Qwen3ForCausalLM": {**_LLAMA, "model_type": "qwen3"},
    "Gemma2ForCausalLM": {
        **_LLAMA,
        "model_type": "gemma2",
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 24,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "query_pre_attn_scalar": 24,
    },
    "Gemma3ForCausalLM": {
        **_LLAMA,
        "model_type": "gemma3_text",
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 24,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 24,
    },
    "Phi3ForCausalLM": {**_LLAMA, "model_type": "phi3", "head_dim": 16, "sliding_window": None},
    "MixtralForCausalLM": {**_LLAMA, **_MOE, "model_type": "mixtral", "sliding_window": None},
    "Qwen3MoeForCausalLM": {**_LLAMA, **_MOE, "model_type": "qwen3_moe", "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    "DeepseekV3ForCausalLM": {
        **_LLAMA,
        **_MOE,
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "q_lora_rank": 40,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 24,
        "n_group": 1,
        "topk_group": 1,
        "num_key_value_heads": 6,
    },
    "GptOssForCausalLM": {**_LLAMA, **_MOE, "model_type": "gpt_oss", "sliding_window": 24},
    "GPT2LMHeadModel": {
        "model_type": "gpt2",
        "n_embd": 96,
        "n_head": 6,
        "n_positions": 512,
        "vocab_size": 320,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "tie_word_embeddings": True,
    },
    "GPTNeoXForCausalLM": {
        "model_type": "gpt_neox",
        "hidden_size": 96,
        "num_attention_heads": 6,
        "intermediate_size": 200,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "hidden_act": "gelu",
        "rotary_pct": 0.25,
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
    },
    "OPTForCausalLM": {
        "model_type": "opt",
        "hidden_size": 96,
        "num_attention_heads": 6,
        "ffn_dim": 200,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "word_embed_proj_dim": 96,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "dropout": 0.1,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
    },
    "BertForMaskedLM": {
        "model_type": "bert",
        "hidden_size": 96,
        "num_attention_heads": 6,
        "intermediate_size": 200,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
}
LAYERS = {"GPT2LMHeadModel": "n_layer"}
OTHER_NAMES = ("GPT2LMHeadModel", "GPTNeoXForCausalLM", "BertForMaskedLM", "Phi3ForCausalLM", "DeepseekV3ForCausalLM")
"""Architectures without linear layers called q_proj and v_proj: an adapter on these would cover nothing."""


def model(architecture: str, layers: int) -> dict[str, Any]:
    """A small model of an architecture, as a job names it."""
    config = {**CONFIGS[architecture], "architectures": [architecture], LAYERS.get(architecture, "num_hidden_layers"): layers}
    if config["model_type"] in ("gemma2", "gpt_oss"):
        config["layer_types"] = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
    return {"config": config}


PRECISIONS = ("fp32", "bf16", "bf16-mixed", "bf16-master")
FRAMEWORKS = ("pytorch", "transformers", "trl", "axolotl", "litgpt", "torchtune", "nanogpt")
TARGETS = st.sampled_from(["all-linear", ["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"]])
OPTIMIZERS = ("adamw", "sgd", "sgd-momentum", "adafactor", "lion", "adamw-8bit", "rmsprop", "muon")


@st.composite
def adapters(draw: st.DrawFn) -> dict[str, Any]:
    """Full training, LoRA, or LoRA over packed weights."""
    kind = draw(st.sampled_from(["full", "full", "lora", "qlora"]))
    if kind == "full":
        return {}
    lora = {"kind": "lora", "rank": draw(st.sampled_from([4, 8])), "targets": draw(TARGETS)}
    if kind == "lora":
        return {"adapter": lora}
    return {"adapter": lora, "quantization": {"format": "nf4", "double": draw(st.booleans())}}


@st.composite
def trainings(draw: st.DrawFn, frameworks: tuple[str, ...] = FRAMEWORKS) -> dict[str, Any]:
    """A job that trains a small model on one GPU."""
    train: dict[str, Any] = {
        "framework": draw(st.sampled_from(frameworks)),
        "precision": draw(st.sampled_from(PRECISIONS)),
        "micro_batch": draw(st.integers(1, 4)),
        "seq_len": draw(st.integers(2, 96)),
        "attention": draw(st.sampled_from(["eager", "sdpa", "flash2"])),
        "recompute": draw(st.sampled_from(["none", "full", {"policy": "full", "reentrant": True}, {"policy": "full", "reentrant": False, "every": 2}])),
        "optimizer": {"name": draw(st.sampled_from(OPTIMIZERS)), "impl": draw(st.sampled_from(["foreach", "fused", "for-loop"]))},
        **draw(adapters()),
    }
    if draw(st.booleans()):
        train["grad_accum"] = 2
    if draw(st.booleans()):
        train["zero_grad_set_to_none"] = False
    architecture = draw(st.sampled_from(sorted(CONFIGS)))
    if architecture in OTHER_NAMES and "adapter" in train:
        train["adapter"]["targets"] = "all-linear"
    return {"model": model(architecture, draw(st.integers(1, 5))), "hardware": {"gpu": "a100-80gb", "gpus": 1}, "train": train}


@st.composite
def servings(draw: st.DrawFn) -> dict[str, Any]:
    """A job that runs inference on one GPU."""
    context = draw(st.integers(3, 200))
    extra: dict[str, Any] = draw(st.sampled_from([{}, {"use_cache": False}, {"use_cache": True}]))
    if not extra:
        extra = {"new_tokens": draw(st.integers(1, context - 1))}
    serve = {
        "engine": "transformers",
        "context": context,
        "sequences": draw(st.integers(1, 3)),
        "attention": draw(st.sampled_from(["eager", "sdpa"])),
        "weights": draw(st.sampled_from(["bf16", "fp32", "nf4", "int8"])),
        "kv_dtype": draw(st.sampled_from(["auto", "bf16", "int8"])),
        "extra": extra,
    }
    decoders = sorted(set(CONFIGS) - {"BertForMaskedLM"})
    return {"model": model(draw(st.sampled_from(decoders)), draw(st.integers(1, 5))), "hardware": {"gpu": "rtx-4090", "gpus": 1}, "serve": serve}
