"""Small configurations of every family with experts, latent attention, state spaces or linear attention, for the oracle tests."""

from __future__ import annotations

from typing import Any

import torch
import transformers

torch.set_num_threads(1)  # tensors are small, and threads wait for one another longer than they work

Fields = dict[str, Any]

SIZES: Fields = {"vocab_size": 512, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
HEADS: Fields = {**SIZES, "head_dim": 16}
SSM: Fields = {"mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 20, "mamba_chunk_size": 16}
LATENT: Fields = {
    **SIZES,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "moe_intermediate_size": 40,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}
INDEX: Fields = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
DELTA: Fields = {
    **HEADS,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
ROUTED: Fields = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
SHARED: Fields = {**ROUTED, "shared_expert_intermediate_size": 32}
NEMOTRON: Fields = {
    **HEADS,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 20,
    "chunk_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 56,
}
ZAMBA2: Fields = {
    **SIZES,
    "num_key_value_heads": 4,
    "n_mamba_heads": 8,
    "mamba_ngroups": 2,
    "mamba_d_state": 20,
    "chunk_size": 16,
    "adapter_rank": 6,
}
V4: Fields = {
    "vocab_size": 512,
    "hidden_size": 48,
    "moe_intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "q_lora_rank": 20,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "o_groups": 2,
    "o_lora_rank": 12,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 4,
    "sliding_window": 32,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 3,
    "partial_rotary_factor": 0.25,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
}
M3: Fields = {
    **HEADS,
    "dense_intermediate_size": 88,
    "shared_intermediate_size": 72,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rotary_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_block_size": 8,
    "index_topk_blocks": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
STEP: Fields = {
    **HEADS,
    "moe_intermediate_size": 40,
    "share_expert_dim": 56,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 64,
    "pad_token_id": 0,
}
MIMO: Fields = {**HEADS, "head_dim": 24, "v_head_dim": 16, "moe_intermediate_size": 40, "n_routed_experts": 8, "num_experts_per_tok": 2}
KIMI: Fields = {
    **SIZES,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 40,
    "kv_lora_rank": 20,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "qk_nope_head_dim": 12,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "linear_head_dim": 8,
    "linear_num_heads": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


WITHOUT_ATTENTION = {"MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM"}
"""Transformers refuses an `attn_implementation` for these."""


def every(**kinds: str) -> Any:
    """Fields that name the same kind for each of L layers."""
    return lambda layers: {key: [kind] * layers for key, kind in kinds.items()}


def zamba_layers(kind: str) -> Any:
    """A layer with a shared block, then L - 1 layers of a kind."""
    return lambda layers: {"num_hidden_layers": layers, "layers_block_type": ["hybrid", *[kind] * (layers - 1)]}


CASES: dict[str, tuple[str, Fields, Any]] = {
    "mixtral": ("MixtralForCausalLM", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}, None),
    "qwen2-moe": ("Qwen2MoeForCausalLM", {**SIZES, **SHARED}, None),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {**HEADS, **ROUTED, "norm_topk_prob": True}, None),
    "olmoe": ("OlmoeForCausalLM", {**SIZES, "num_experts": 4, "num_experts_per_tok": 2}, None),
    "dbrx": (
        "DbrxForCausalLM",
        {
            "vocab_size": 512,
            "d_model": 64,
            "n_heads": 4,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 4, "moe_top_k": 2},
        },
        None,
    ),
    "glm4-moe": (
        "Glm4MoeForCausalLM",
        {
            **HEADS,
            "moe_intermediate_size": 40,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 0,
            "use_qk_norm": True,
            "attention_bias": True,
        },
        None,
    ),
    "gpt-oss": ("GptOssForCausalLM", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}, every(layer_types="full_attention")),
    "minimax-m2": ("MiniMaxM2ForCausalLM", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}, None),
    "mimo-v2": ("MiMoV2FlashForCausalLM", MIMO, every(mlp_layer_types="sparse", layer_types="sliding_attention")),
    "mimo-v2-full": ("MiMoV2FlashForCausalLM", MIMO, every(mlp_layer_types="dense", layer_types="full_attention")),
    "ernie-moe": ("Ernie4_5_MoeForCausalLM", {**SIZES, "moe_intermediate_size": 40, "moe_k": 2, "moe_num_experts": 4, "moe_layer_start_index": 0}, None),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", {**HEADS, "moe_topk": 2, "num_experts": 4}, None),
    "llama4-rope": (
        "Llama4ForCausalLM",
        {**HEADS, "intermediate_size_mlp": 88, "num_local_experts": 4, "interleave_moe_layer_step": 1, "attention_chunk_size": 64},
        lambda layers: {"no_rope_layers": [1] * layers},
    ),
    "llama4-nope": (
        "Llama4ForCausalLM",
        {**HEADS, "intermediate_size_mlp": 88, "num_local_experts": 4, "interleave_moe_layer_step": 1, "attention_chunk_size": 64},
        lambda layers: {"no_rope_layers": [0] * layers},
    ),
    "deepseek-v2": ("DeepseekV2ForCausalLM", {**LATENT, "topk_method": "group_limited_greedy", "first_k_dense_replace": 0}, None),
    "deepseek-v3": ("DeepseekV3ForCausalLM", {**LATENT, "first_k_dense_replace": 0}, None),
    "deepseek-v3-dense": ("DeepseekV3ForCausalLM", LATENT, lambda layers: {"first_k_dense_replace": layers}),
    "deepseek-v3-no-q-latent": ("DeepseekV3ForCausalLM", {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 0}, None),
    "deepseek-v3-wide-values": ("DeepseekV3ForCausalLM", {**LATENT, "v_head_dim": 20, "first_k_dense_replace": 0}, None),
    "deepseek-v3.2": ("DeepseekV32ForCausalLM", {**LATENT, **INDEX, "v_head_dim": 20, "first_k_dense_replace": 0}, None),
    "glm-5": ("GlmMoeDsaForCausalLM", {**LATENT, **INDEX, "first_k_dense_replace": 0}, None),
    "glm-4.7-flash": ("Glm4MoeLiteForCausalLM", LATENT, every(mlp_layer_types="sparse")),
    "minimax-m3": ("MiniMaxM3VLForCausalLM", M3, every(layer_types="minimax_m3_sparse", mlp_layer_types="sparse")),
    "minimax-m3-dense": ("MiniMaxM3VLForCausalLM", M3, every(layer_types="full_attention", mlp_layer_types="dense")),
    "step-3.7": ("Step3p7ForCausalLM", STEP, every(layer_types="full_attention", mlp_layer_types="sparse")),
    "step-3.7-sliding": ("Step3p7ForCausalLM", STEP, every(layer_types="sliding_attention", mlp_layer_types="dense")),
    "deepseek-v4-sliding": ("DeepseekV4ForCausalLM", V4, every(layer_types="sliding_attention", mlp_layer_types="moe")),
    "deepseek-v4-hashed": ("DeepseekV4ForCausalLM", V4, every(layer_types="sliding_attention", mlp_layer_types="hash_moe")),
    "deepseek-v4-heavy": ("DeepseekV4ForCausalLM", V4, every(layer_types="heavily_compressed_attention", mlp_layer_types="moe")),
    "deepseek-v4-sparse": ("DeepseekV4ForCausalLM", V4, every(layer_types="compressed_sparse_attention", mlp_layer_types="moe")),
    "mamba": (
        "MambaForCausalLM",
        {"vocab_size": 512, "hidden_size": 48, "state_size": 20, "time_step_rank": 8, "residual_in_fp32": False},
        None,
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {
            "vocab_size": 512,
            "hidden_size": 48,
            "state_size": 20,
            "expand": 2,
            "head_dim": 12,
            "num_heads": 8,
            "n_groups": 2,
            "chunk_size": 16,
            "residual_in_fp32": False,
        },
        None,
    ),
    "falcon-mamba": (
        "FalconMambaForCausalLM",
        {"vocab_size": 512, "hidden_size": 48, "state_size": 20, "time_step_rank": 8, "residual_in_fp32": False},
        None,
    ),
    "jamba": (
        "JambaForCausalLM",
        {
            **SIZES,
            "mamba_d_state": 20,
            "mamba_dt_rank": 8,
            "num_experts": 4,
            "attn_layer_period": 99,
            "attn_layer_offset": 98,
            "expert_layer_period": 1,
            "expert_layer_offset": 0,
        },
        None,
    ),
    "lfm2-conv": ("Lfm2ForCausalLM", SIZES, lambda layers: {"layer_types": ["full_attention", *["conv"] * (layers - 1)]}),
    "lfm2-attention": ("Lfm2ForCausalLM", SIZES, every(layer_types="full_attention")),
    "bamba": ("BambaForCausalLM", {**SIZES, **SSM}, None),
    "falcon-h1": ("FalconH1ForCausalLM", {**SIZES, **SSM, "mamba_d_ssm": 96}, None),
    "falcon-h1-norm": ("FalconH1ForCausalLM", {**SIZES, **SSM, "mamba_d_ssm": 96, "mamba_rms_norm": True}, None),
    "granite-hybrid": (
        "GraniteMoeHybridForCausalLM",
        {**SIZES, **SSM, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 72},
        every(layer_types="linear_attention"),
    ),
    "granite-hybrid-dense": (
        "GraniteMoeHybridForCausalLM",
        {**SIZES, **SSM, "num_local_experts": 0, "shared_intermediate_size": 72},
        every(layer_types="full_attention"),
    ),
    "zamba2": ("Zamba2ForCausalLM", ZAMBA2, zamba_layers("hybrid")),
    "zamba2-adapters": (
        "Zamba2ForCausalLM",
        {**ZAMBA2, "use_shared_attention_adapter": True, "use_mem_rope": True},
        zamba_layers("hybrid"),
    ),
    "zamba2-mamba": ("Zamba2ForCausalLM", ZAMBA2, zamba_layers("mamba")),
    "nemotron-h-mamba": ("NemotronHForCausalLM", NEMOTRON, every(layers_block_type="mamba")),
    "nemotron-h-attention": ("NemotronHForCausalLM", NEMOTRON, every(layers_block_type="attention")),
    "nemotron-h-mlp": ("NemotronHForCausalLM", NEMOTRON, every(layers_block_type="mlp")),
    "nemotron-h-moe": ("NemotronHForCausalLM", {**NEMOTRON, "moe_latent_size": 24}, every(layers_block_type="moe")),
    "qwen3-next-linear": ("Qwen3NextForCausalLM", {**DELTA, **SHARED}, every(layer_types="linear_attention")),
    "qwen3-next-full": ("Qwen3NextForCausalLM", {**DELTA, **SHARED}, every(layer_types="full_attention")),
    "qwen3.5": ("Qwen3_5ForCausalLM", DELTA, every(layer_types="linear_attention")),
    "qwen3.5-moe": ("Qwen3_5MoeForCausalLM", {**DELTA, **SHARED}, every(layer_types="linear_attention")),
    "kimi-linear": ("KimiLinearForCausalLM", KIMI, every(layer_types="linear_attention", mlp_layer_types="dense")),
    "kimi-linear-full": ("KimiLinearForCausalLM", KIMI, every(layer_types="full_attention", mlp_layer_types="sparse")),
}
"""Name -> (architecture, fields, fields that depend on the number of layers)."""


def config_of(name: str, layers: int, **more: Any) -> Any:
    """The transformers configuration of a case."""
    architecture, fields, by_layer = CASES[name]
    kind = architecture.removesuffix("ForCausalLM")
    cls = getattr(transformers, f"{kind}TextConfig", None) or getattr(transformers, f"{kind}Config")
    per_layer = by_layer(layers) if by_layer else {}
    depth = {} if "layers_block_type" in per_layer else {"num_hidden_layers": layers}
    if architecture in WITHOUT_ATTENTION:
        more.pop("attn_implementation", None)
    config = cls(**{**fields, **per_layer, **depth, **more})
    config.architectures = [architecture]
    return config


HEADLESS = {"Step3p7ForCausalLM": "Step3p7TextModel"}
"""Architectures of which transformers has the decoder alone."""


def class_of(config: Any) -> Any:
    """The class of a configuration."""
    return getattr(transformers, HEADLESS.get(config.architectures[0], config.architectures[0]))


def model_of(config: Any, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    """The model of a configuration in `dtype`; weights that `from_pretrained` keeps in fp32 are in fp32."""
    model: torch.nn.Module = class_of(config)(config).to(dtype)
    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, parameter in model.named_parameters():
        if any(part in name for part in strict):
            parameter.data = parameter.data.float()
    return model
