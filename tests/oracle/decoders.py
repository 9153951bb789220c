"""Small decoders of every dense family, as transformers builds them and as we do."""

from __future__ import annotations

import gc
import logging
import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
import transformers
from saved_bytes import kept_by

from everybyte.basics.dtypes import BF16, FP32
from everybyte.layers.network import Network, hidden_dims, write
from everybyte.layers.recording.replay import Recompute
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point
from everybyte.models.registry import build

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
logging.disable(logging.WARNING)
torch.set_num_threads(1)

VOCAB = 512


class Shape(NamedTuple):
    """b sequences of s tokens; hidden h, a heads, k key heads, head dimension d, feed-forward f."""

    b: int
    s: int
    h: int
    a: int
    k: int
    d: int
    f: int

    @property
    def square(self) -> Shape:
        """The same for a family in which a·d = h."""
        return self._replace(d=self.h // self.a)


class Family(NamedTuple):
    """Class names in transformers, and what its configuration says beside the shape."""

    model: str
    config: str
    names: str = "hf"
    """Which names its configuration has for the shape: `hf`, `gpt2`, `bloom`, `neo`, `mpt`."""
    square: bool = False
    """a·d = h."""
    grouped: bool = True
    fields: dict[str, Any] = {}  # noqa: RUF012 - a constant
    sdpa: bool = True


DRY = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

FAMILIES = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig"),
    "mistral": Family("MistralForCausalLM", "MistralConfig"),
    "ministral": Family("MinistralForCausalLM", "MinistralConfig"),
    "ministral3": Family("Ministral3ForCausalLM", "Ministral3Config"),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", square=True),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config"),
    "smollm3": Family("SmolLM3ForCausalLM", "SmolLM3Config", square=True),
    "granite": Family("GraniteForCausalLM", "GraniteConfig", square=True),
    "seed-oss": Family("SeedOssForCausalLM", "SeedOssConfig", fields={"attention_dropout": 0.0, "residual_dropout": 0.0}),
    "arcee": Family("ArceeForCausalLM", "ArceeConfig"),
    "helium": Family("HeliumForCausalLM", "HeliumConfig", square=True),
    "cwm": Family("CwmForCausalLM", "CwmConfig"),
    "ernie-4.5": Family("Ernie4_5ForCausalLM", "Ernie4_5Config"),
    "hunyuan": Family("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Config"),
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", "gpt2", square=True, grouped=False, fields=DRY),
    "gpt2 dropout": Family("GPT2LMHeadModel", "GPT2Config", "gpt2", square=True, grouped=False),
    "bigcode": Family("GPTBigCodeForCausalLM", "GPTBigCodeConfig", "gpt2", square=True, grouped=False, fields=DRY),
    "bigcode mha": Family("GPTBigCodeForCausalLM", "GPTBigCodeConfig", "gpt2", square=True, grouped=False, fields={**DRY, "multi_query": False}),
    "gpt-j": Family("GPTJForCausalLM", "GPTJConfig", "gpt2", square=True, grouped=False, fields={"rotary_dim": 8}),
    "gpt-neo": Family("GPTNeoForCausalLM", "GPTNeoConfig", "neo", square=True, grouped=False, fields={"max_position_embeddings": 256}, sdpa=False),
    "gpt-neox": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", square=True, grouped=False),
    "gpt-neox serial": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", square=True, grouped=False, fields={"use_parallel_residual": False}),
    "opt": Family("OPTForCausalLM", "OPTConfig", "opt", square=True, grouped=False, fields={"dropout": 0.0}),
    "opt post-norm": Family(
        "OPTForCausalLM",
        "OPTConfig",
        "opt",
        square=True,
        grouped=False,
        fields={"do_layer_norm_before": False, "word_embed_proj_dim": 40},
    ),
    "bloom": Family("BloomForCausalLM", "BloomConfig", "bloom", square=True, grouped=False, sdpa=False),
    "falcon mqa": Family("FalconForCausalLM", "FalconConfig", "falcon", square=True, grouped=False),
    "falcon grouped": Family("FalconForCausalLM", "FalconConfig", "falcon", square=True, fields={"new_decoder_architecture": True}),
    "falcon alibi": Family(
        "FalconForCausalLM",
        "FalconConfig",
        "falcon",
        square=True,
        grouped=False,
        fields={"multi_query": False, "alibi": True, "parallel_attn": False, "bias": True},
    ),
    "mpt": Family("MptForCausalLM", "MptConfig", "mpt", square=True, grouped=False, sdpa=False),
    "mpt clip": Family("MptForCausalLM", "MptConfig", "mpt", square=True, grouped=False, fields={"attn_config": {"clip_qkv": 8.0}}, sdpa=False),
    "starcoder2": Family("Starcoder2ForCausalLM", "Starcoder2Config", square=True),
    "phi": Family("PhiForCausalLM", "PhiConfig", square=True),
    "phi qk-norm": Family("PhiForCausalLM", "PhiConfig", square=True, fields={"qk_layernorm": True}),
    "phi3": Family("Phi3ForCausalLM", "Phi3Config", square=True),
    "phi3 dropout": Family("Phi3ForCausalLM", "Phi3Config", square=True, fields={"resid_pdrop": 0.1}),
    "gemma": Family("GemmaForCausalLM", "GemmaConfig"),
    "gemma2": Family("Gemma2ForCausalLM", "Gemma2Config", sdpa=False),
    "gemma3": Family("Gemma3ForCausalLM", "Gemma3TextConfig"),
    "glm": Family("GlmForCausalLM", "GlmConfig"),
    "glm4": Family("Glm4ForCausalLM", "Glm4Config"),
    "olmo": Family("OlmoForCausalLM", "OlmoConfig", square=True),
    "olmo clip": Family("OlmoForCausalLM", "OlmoConfig", square=True, fields={"clip_qkv": 8.0}),
    "olmo2": Family("Olmo2ForCausalLM", "Olmo2Config", square=True),
    "olmo3": Family("Olmo3ForCausalLM", "Olmo3Config", square=True),
    "cohere": Family("CohereForCausalLM", "CohereConfig", square=True),
    "cohere qk-norm": Family("CohereForCausalLM", "CohereConfig", square=True, fields={"use_qk_norm": True}),
    "cohere2": Family("Cohere2ForCausalLM", "Cohere2Config"),
    "stablelm": Family("StableLmForCausalLM", "StableLmConfig", square=True, fields={"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm qk-norm": Family(
        "StableLmForCausalLM",
        "StableLmConfig",
        square=True,
        fields={"qk_layernorm": True, "use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
    "mixtral": Family("MixtralForCausalLM", "MixtralConfig", fields={"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def shape_for(family: str, shape: Shape) -> Shape:
    """The shape as the family can have it."""
    kind = FAMILIES[family]
    shape = shape if kind.grouped else shape._replace(k=shape.a)
    return shape.square if kind.square else shape


def config_of(family: str, shape: Shape, layers: int, attention: str = "sdpa", **more: Any) -> Any:
    """The transformers configuration of a small model."""
    kind = FAMILIES[family]
    h, a, k, d, f = shape[2:]
    names = {
        "gpt2": {"n_embd": h, "n_head": a, "n_inner": f, "n_layer": layers, "n_positions": 256},
        "neo": {"hidden_size": h, "num_heads": a, "intermediate_size": f, "num_layers": layers, "attention_types": [[["global"], layers]]},
        "mpt": {"d_model": h, "n_heads": a, "n_layers": layers},
        "bloom": {"hidden_size": h, "n_head": a, "n_layer": layers},
        "falcon": {"hidden_size": h, "num_attention_heads": a, "num_kv_heads": k, "ffn_hidden_size": f, "num_hidden_layers": layers},
        "opt": {
            "hidden_size": h,
            "num_attention_heads": a,
            "ffn_dim": f,
            "num_hidden_layers": layers,
            "word_embed_proj_dim": h,
            "max_position_embeddings": 256,
        },
    }
    usual = {"hidden_size": h, "num_attention_heads": a, "intermediate_size": f, "num_hidden_layers": layers}
    usual |= {"num_key_value_heads": k} if kind.grouped else {}
    usual["head_dim"] = d
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    fields = {"vocab_size": VOCAB, **tokens, **names.get(kind.names, usual), **kind.fields, **more}
    config = getattr(transformers, kind.config)(**fields)
    config._attn_implementation = attention
    config.architectures = [kind.model]
    return config


def model_of(config: Any, dtype: torch.dtype) -> Any:
    """The model in training mode."""
    torch.manual_seed(0)
    return _class(config.architectures[0])(config).to(dtype).train()


@cache
def _class(name: str) -> Any:
    """A class of transformers. What its modules hold is set aside, so that looking for garbage takes no time."""
    found = getattr(transformers, name)
    gc.collect()
    gc.freeze()
    return found


def network_of(config: Any) -> Network:
    """Our network of the same configuration."""
    return build(config.to_dict())


def measured(family: str, shape: Shape, attention: str, amp: bool, *, recompute: bool = False, padded: bool = False, **more: Any) -> int:
    """Bytes that the second layer keeps for backward: those of two layers less those of one."""
    totals = []
    for layers in (1, 2):
        model = model_of(config_of(family, shape, layers, attention, **more), torch.float32 if amp else torch.bfloat16)
        if recompute:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        ids = torch.randint(3, VOCAB, shape[:2])
        inputs = {}
        if padded:
            inputs["attention_mask"] = torch.ones(shape[:2], dtype=torch.long)
            inputs["attention_mask"][0, : shape.s // 4] = 0
        totals.append(sum(size for size, _, _ in kept_by(model, ids, amp, **inputs).values()))
        del model
    return totals[1] - totals[0]


def predicted(
    family: str, shape: Shape, attention: str, amp: bool, *, recompute: Recompute = "none", masked: bool = False, past_window: bool = False, **more: Any
) -> int:
    """The same by our account."""
    network = network_of(config_of(family, shape, 2, attention, **more))
    stream = FP32 if amp else BF16
    kernels = Kernels(attention=attention, device="cpu", masked=masked)  # type: ignore[arg-type]
    setup = Setup(weights=stream, compute=BF16 if amp else None, kernels=kernels, single=shape.b == 1, past_window=past_window)
    tally = write(network.runs[-1].layer, setup, hidden_dims(network.hidden), stream, recompute).tally
    return tally.kept_size.at(Point(Batch(shape.b, shape.s, shape.s)))
