"""GGUF metadata -> the fields of config.json, so that the families of `everybyte.models` read both alike.

Keys: llama.cpp gguf-py/gguf/constants.py; their meaning: convert_hf_to_gguf.py, which writes them from config.json. What metadata leave out (ties, biases,
widths of experts) is read off the tensor table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everybyte.basics.errors import BadInput, Unsupported, did_you_mean
from everybyte.checkpoint.gguf_file import SkippedArray
from everybyte.checkpoint.stored import StoredTensor, shown

Config = dict[str, Any]
_MOST_LAYERS = 10_000


def config_from_gguf(metadata: Mapping[str, Any], tensors: Sequence[StoredTensor], place: str = "gguf") -> Config:
    """The HF-like config of a GGUF model. `metadata` and `tensors` as `read_gguf` gives them; `place` names the file in messages.

    Raises Unsupported for an architecture that has no rule here, BadInput for metadata that are missing or make no sense.
    """
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise BadInput(f"{place}, general.architecture", "is missing: not a model, or damaged")
    build = _ARCHITECTURES.get(arch)
    if build is None:
        known = ", ".join(_ARCHITECTURES)
        raise Unsupported(f"{place}, general.architecture", f"{shown(arch)} is not supported{did_you_mean(arch[:40], _ARCHITECTURES)}; supported: {known}")
    return build(_Gguf(arch, metadata, {tensor.name: tensor for tensor in tensors}, place))


class _Gguf:
    """Typed access to the settings of one architecture."""

    def __init__(self, arch: str, metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor], place: str) -> None:
        self.arch = arch
        self._metadata = metadata
        self.tensors = tensors
        self._place = place

    def find(self, key: str) -> int | None:
        """The whole number ARCH.KEY; of a list with one value a layer, the value they share."""
        value = self._metadata.get(f"{self.arch}.{key}")
        if value is None:
            return None
        values = value if isinstance(value, list) else [value]
        if not values:
            raise BadInput(self.where(key), "is an empty list")
        if len(set(values)) > 1:
            raise Unsupported(self.where(key), f"differs from layer to layer, which is not supported for {self.arch}")
        number = values[0]
        if type(number) is not int or not 0 <= number < 2**31:
            raise BadInput(self.where(key), f"{shown(str(number))} is not a whole number below 2^31")
        return number

    def get(self, key: str) -> int:
        """As `find`, but it must be there and above 0."""
        number = self.find(key)
        if not number:
            raise BadInput(self.where(key), "is missing or 0")
        return number

    def layers(self) -> int:
        """Number of layers; bounded, since lists are made of it and no network is nearly so deep."""
        layers = self.get("block_count")
        if layers > _MOST_LAYERS:
            raise BadInput(self.where("block_count"), f"{layers:,} layers are more than any network has")
        return layers

    def real(self, key: str) -> float | None:
        """The number ARCH.KEY."""
        value = self._metadata.get(f"{self.arch}.{key}")
        if value is not None and type(value) not in {int, float}:
            raise BadInput(self.where(key), f"{shown(str(value))} is not a number")
        return value

    def has(self, tensor: str) -> bool:
        """Whether the file stores `tensor`."""
        return tensor in self.tensors

    def axis(self, tensor: str, axis: int) -> int | None:
        """Length of one axis of a tensor, in PyTorch's order; None if it is not stored with that axis."""
        stored = self.tensors.get(tensor)
        return stored.shape[axis] if stored is not None and -len(stored.shape) <= axis < len(stored.shape) else None

    def vocab_size(self) -> int:
        """Rows of the embedding; the token list, where a file has metadata alone."""
        rows = self.axis("token_embd.weight", 0)
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        size = rows or (tokens.length if isinstance(tokens, SkippedArray) else None) or self.find("vocab_size")
        if not size:
            raise BadInput(self.where("vocab_size"), "the vocabulary size is neither in the metadata nor in the tensors")
        return size

    def head_dim(self) -> int:
        """Length of a head: stated, or hidden size by heads."""
        stated = self.find("attention.key_length")
        hidden, heads = self.get("embedding_length"), self.get("attention.head_count")
        if not stated and hidden % heads:
            raise BadInput(self.where("attention.head_count"), f"{heads} heads do not divide the {hidden} of embedding_length")
        return stated or hidden // heads

    def expert_width(self) -> int:
        """Width of one expert: stated, or the last axis of ffn_down_exps of a layer that has it."""
        stated = self.find("expert_feed_forward_length")
        stored = next((t.shape[-1] for name, t in self.tensors.items() if name.endswith("ffn_down_exps.weight") and t.shape), None)
        return stated or stored or self.get("feed_forward_length")

    def where(self, key: str) -> str:
        """What messages call a key."""
        return f"{self._place}, {self.arch}.{key}"


def _decoder(gguf: _Gguf, model_type: str, architecture: str, activation: str = "silu") -> Config:
    """What every decoder with rotary positions and RMSNorm states."""
    heads = gguf.get("attention.head_count")
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": gguf.get("embedding_length"),
        "num_hidden_layers": gguf.layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.find("attention.head_count_kv") or heads,
        "head_dim": gguf.head_dim(),
        "intermediate_size": gguf.find("feed_forward_length") or gguf.expert_width(),
        "vocab_size": gguf.vocab_size(),
        "max_position_embeddings": gguf.get("context_length"),
        "hidden_act": activation,
        "rms_norm_eps": gguf.real("attention.layer_norm_rms_epsilon") or 1e-6,
        "rope_theta": gguf.real("rope.freq_base") or 10000.0,
        "attention_bias": gguf.has("blk.0.attn_q.bias"),
        "tie_word_embeddings": not gguf.has("output.weight"),
    }


def _llama(gguf: _Gguf) -> Config:
    """Llama and Mistral; with experts Mixtral."""
    if not gguf.find("expert_count"):
        return {**_decoder(gguf, "llama", "LlamaForCausalLM"), "mlp_bias": gguf.has("blk.0.ffn_up.bias")}
    experts = {"num_local_experts": gguf.get("expert_count"), "num_experts_per_tok": gguf.get("expert_used_count"), "sliding_window": None}
    return {**_decoder(gguf, "mixtral", "MixtralForCausalLM"), "intermediate_size": gguf.expert_width(), **experts}


def _qwen2(gguf: _Gguf) -> Config:
    return {**_decoder(gguf, "qwen2", "Qwen2ForCausalLM"), "use_sliding_window": False, "sliding_window": None}


def _qwen3(gguf: _Gguf) -> Config:
    return {**_decoder(gguf, "qwen3", "Qwen3ForCausalLM"), "use_sliding_window": False, "sliding_window": None}


def _qwen_experts(gguf: _Gguf) -> Config:
    """What the mixtures of Qwen share: every layer is one."""
    return {
        "num_experts": gguf.get("expert_count"),
        "num_experts_per_tok": gguf.get("expert_used_count"),
        "moe_intermediate_size": gguf.expert_width(),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
        "sliding_window": None,
    }


def _qwen2_moe(gguf: _Gguf) -> Config:
    shared = gguf.find("expert_shared_feed_forward_length") or gguf.axis("blk.0.ffn_down_shexp.weight", -1) or gguf.get("feed_forward_length")
    return {**_decoder(gguf, "qwen2_moe", "Qwen2MoeForCausalLM"), **_qwen_experts(gguf), "shared_expert_intermediate_size": shared}


def _qwen3_moe(gguf: _Gguf) -> Config:
    return {**_decoder(gguf, "qwen3_moe", "Qwen3MoeForCausalLM"), **_qwen_experts(gguf), "norm_topk_prob": True}


def _gemma_decoder(gguf: _Gguf, model_type: str, architecture: str) -> Config:
    # Gemma multiplies by the embedding at the end: its files never store an output matrix.
    return {**_decoder(gguf, model_type, architecture, "gelu_pytorch_tanh"), "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}


def _gemma(gguf: _Gguf) -> Config:
    return _gemma_decoder(gguf, "gemma", "GemmaForCausalLM")


def _gemma2(gguf: _Gguf) -> Config:
    # llama.cpp src/models/gemma2.cpp: every second layer slides, 4096 if the file does not say
    return {**_gemma_decoder(gguf, "gemma2", "Gemma2ForCausalLM"), "sliding_window": gguf.find("attention.sliding_window") or 4096}


def _gemma3(gguf: _Gguf) -> Config:
    # llama.cpp src/models/gemma3.cpp: five sliding layers, then a full one; the text model alone, projectors are files of their own
    config = _gemma_decoder(gguf, "gemma3_text", "Gemma3ForCausalLM")
    return {**config, "sliding_window": gguf.get("attention.sliding_window"), "sliding_window_pattern": 6}


def _phi3(gguf: _Gguf) -> Config:
    return {**_decoder(gguf, "phi3", "Phi3ForCausalLM"), "sliding_window": gguf.find("attention.sliding_window") or None}


def _gpt2(gguf: _Gguf) -> Config:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": gguf.get("embedding_length"),
        "n_layer": gguf.layers(),
        "n_head": gguf.get("attention.head_count"),
        "n_inner": gguf.get("feed_forward_length"),
        "n_positions": gguf.get("context_length"),
        "vocab_size": gguf.vocab_size(),
        "activation_function": "gelu_new",
        "layer_norm_epsilon": gguf.real("attention.layer_norm_epsilon") or 1e-5,
        "tie_word_embeddings": not gguf.has("output.weight"),
    }


def _deepseek2(gguf: _Gguf) -> Config:
    """DeepSeek V2, V3 and the models built like them (Kimi-K2). V3 chooses experts by sigmoid with a correction bias, V2 by softmax."""
    heads, rope = gguf.get("attention.head_count"), gguf.get("rope.dimension_count")
    # since llama.cpp b5000 key_length counts the cached latent, and key_length_mla the head; before, key_length was the head
    key, value = (gguf.find(f"attention.{part}_length_mla") or gguf.get(f"attention.{part}_length") for part in ("key", "value"))
    if key <= rope:
        raise BadInput(gguf.where("attention.key_length"), f"a key of {key} is not longer than its rotary part of {rope}")
    v3 = any(name.endswith("exp_probs_b.bias") for name in gguf.tensors) or gguf.find("expert_gating_func") == 2
    config = _decoder(gguf, *(("deepseek_v3", "DeepseekV3ForCausalLM") if v3 else ("deepseek_v2", "DeepseekV2ForCausalLM")))
    return {
        **config,
        "num_key_value_heads": heads,
        "head_dim": rope,  # as the configs of transformers have it
        "q_lora_rank": gguf.find("attention.q_lora_rank") or None,
        "kv_lora_rank": gguf.get("attention.kv_lora_rank"),
        "qk_nope_head_dim": key - rope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "n_routed_experts": gguf.get("expert_count"),
        "n_shared_experts": gguf.find("expert_shared_count") or None,
        "num_experts_per_tok": gguf.get("expert_used_count"),
        "moe_intermediate_size": gguf.expert_width(),
        "first_k_dense_replace": gguf.find("leading_dense_block_count") or 0,
        "moe_layer_freq": 1,
        "n_group": gguf.find("expert_group_count") or 1,
        "topk_group": gguf.find("expert_group_used_count") or 1,
        "routed_scaling_factor": gguf.real("expert_weights_scale") or 1.0,
        "scoring_func": "sigmoid" if v3 else "softmax",
        "attention_bias": False,
    }


def _gpt_oss(gguf: _Gguf) -> Config:
    # llama.cpp src/models/openai-moe-iswa.cpp: sliding and full layers take turns, beginning with a sliding one
    config = _decoder(gguf, "gpt_oss", "GptOssForCausalLM")
    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(gguf.layers())]
    return {
        **config,
        "intermediate_size": gguf.expert_width(),
        "num_local_experts": gguf.get("expert_count"),
        "num_experts_per_tok": gguf.get("expert_used_count"),
        "sliding_window": gguf.get("attention.sliding_window"),
        "layer_types": kinds,
        "attention_bias": True,
    }


def _falcon(gguf: _Gguf) -> Config:
    heads = gguf.get("attention.head_count")
    kv_heads = gguf.find("attention.head_count_kv") or heads
    new = gguf.has("blk.0.attn_norm_2.weight")  # the 40B and 180B models have a norm for each of the two parallel branches
    return {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "hidden_size": gguf.get("embedding_length"),
        "num_hidden_layers": gguf.layers(),
        "num_attention_heads": heads,
        "num_kv_heads": kv_heads,
        "ffn_hidden_size": gguf.find("feed_forward_length") or 4 * gguf.get("embedding_length"),
        "vocab_size": gguf.vocab_size(),
        "max_position_embeddings": gguf.get("context_length"),
        "multi_query": new or kv_heads == 1,
        "new_decoder_architecture": new,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
        "layer_norm_epsilon": gguf.real("attention.layer_norm_epsilon") or 1e-5,
        "tie_word_embeddings": not gguf.has("output.weight"),
    }


def _starcoder2(gguf: _Gguf) -> Config:
    config = _decoder(gguf, "starcoder2", "Starcoder2ForCausalLM", "gelu_pytorch_tanh")
    return {**config, "use_bias": gguf.has("blk.0.attn_q.bias"), "sliding_window": gguf.find("attention.sliding_window") or None, "norm_type": "layer_norm"}


def _mamba(gguf: _Gguf) -> Config:
    hidden, inner = gguf.get("embedding_length"), gguf.get("ssm.inner_size")
    if inner % hidden:
        raise BadInput(gguf.where("ssm.inner_size"), f"{inner} is not a multiple of the {hidden} of embedding_length")
    return {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "hidden_size": hidden,
        "num_hidden_layers": gguf.layers(),
        "vocab_size": gguf.vocab_size(),
        "state_size": gguf.get("ssm.state_size"),
        "conv_kernel": gguf.get("ssm.conv_kernel"),
        "time_step_rank": gguf.get("ssm.time_step_rank"),
        "intermediate_size": inner,
        "expand": inner // hidden,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": gguf.real("attention.layer_norm_rms_epsilon") or 1e-5,
        "tie_word_embeddings": not gguf.has("output.weight"),
    }


_ARCHITECTURES: dict[str, Callable[[_Gguf], Config]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "deepseek2": _deepseek2,
    "gpt-oss": _gpt_oss,
    "falcon": _falcon,
    "starcoder2": _starcoder2,
    "mamba": _mamba,
}
