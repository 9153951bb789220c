"""Keys of `extra` that the account of Megatron-LM reads: its arguments, under the names of the command line, and environment variables."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from everybyte.job.extra import Section
from everybyte.rules.parallel.schedules import ScheduleKeys
from everybyte.rules.parallel.stages import SplitKeys


class Keys(Section, frozen=True, kw_only=True):
    """What is read of a run's arguments. Switches are off unless they are given."""

    transformer_impl: str | None = None
    attention_backend: str = "te"
    deterministic_mode: bool = False
    qk_layernorm: bool = False
    rotary_percent: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1
    apply_rope_fusion: bool | None = None
    no_rope_fusion: bool = False
    no_bias_swiglu_fusion: bool = False
    use_fused_weighted_squared_relu: bool = False
    no_gradient_accumulation_fusion: bool = False
    no_create_attention_mask_in_dataloader: bool = False
    bert_no_binary_head: bool = False
    mtp_use_repeated_layer: bool = False
    cross_entropy_loss_fusion: bool = False
    cross_entropy_fusion_impl: str = "native"
    # mixtures of experts
    moe_grouped_gemm: bool = False
    moe_permute_fusion: bool = False
    moe_token_dispatcher_type: str | None = None
    moe_expert_capacity_factor: Annotated[float, msgspec.Meta(le=1024)] | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_router_force_load_balancing: bool = False
    overlap_moe_expert_parallel_comm: bool = False
    # optimizer, gradients and their types
    use_distributed_optimizer: bool = False
    use_precision_aware_optimizer: bool = False
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = 1
    main_params_dtype: str = "fp32"
    grad_reduce_in_bf16: bool = False
    overlap_grad_reduce: bool = False
    no_use_layer_wise_param_layout: bool = False
    fp8_param_gather: bool = False
    fp8_recipe: str | msgspec.UnsetType | None = msgspec.UNSET
    """null: none, whatever the framework does by default."""
    disable_parameter_transpose_cache: bool = False
    # Megatron-FSDP
    use_megatron_fsdp: bool = False
    data_parallel_sharding_strategy: str = "optim_grads_params"
    outer_dp_sharding_strategy: str = "no_shard"
    fsdp_double_buffer: bool = False
    nccl_ub: bool = False
    megatron_fsdp_main_grads_dtype: str | None = None
    megatron_fsdp_main_params_dtype: str = "fp32"
    # communication, graphs and offload
    tp_comm_overlap: bool = False
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: Annotated[int, msgspec.Meta(ge=0)] = 0
    cuda_graph_impl: str | None = None
    cuda_graph_modules: tuple[str, ...] | str | None = None
    cuda_graph_scope: tuple[str, ...] | str | None = None
    cuda_graph_warmup_steps: Annotated[int, msgspec.Meta(ge=0)] = 3
    fine_grained_activation_offloading: bool = False
    offload_modules: tuple[str, ...] | str | None = None
    CUBLAS_WORKSPACE_CONFIG: str | None = None
    NVTE_ALLOW_NONDETERMINISTIC_ALGO: Literal[0, 1, "0", "1"] = "1"


SECTIONS = (Keys, ScheduleKeys, SplitKeys)
