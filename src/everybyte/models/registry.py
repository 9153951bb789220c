"""Which file builds which architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from everybyte.basics.errors import Unsupported, did_you_mean
from everybyte.layers.heads.logprobs import ScoreHead
from everybyte.layers.network import Network
from everybyte.models.config import Config, shorten
from everybyte.models.stored import packed_of

FAMILIES: dict[str, tuple[str, ...]] = {
    "llama.llama": (
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MinistralForCausalLM",
        "Ministral3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "MiMoForCausalLM",
        "SmolLM3ForCausalLM",
        "GraniteForCausalLM",
        "SeedOssForCausalLM",
        "ArceeForCausalLM",
        "HeliumForCausalLM",
        "CwmForCausalLM",
        "Ernie4_5ForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "InternLMForCausalLM",
        "InternLM3ForCausalLM",
        "AquilaForCausalLM",
        "YiForCausalLM",
    ),
    "gpt.gpt2": ("GPT2LMHeadModel", "GPTBigCodeForCausalLM"),
    "gpt.gptj": ("GPTJForCausalLM",),
    "gpt.gpt_neo": ("GPTNeoForCausalLM",),
    "gpt.gpt_neox": ("GPTNeoXForCausalLM",),
    "gpt.opt": ("OPTForCausalLM",),
    "gpt.bloom": ("BloomForCausalLM",),
    "gpt.falcon": ("FalconForCausalLM",),
    "gpt.mpt": ("MptForCausalLM", "MPTForCausalLM"),
    "gpt.starcoder2": ("Starcoder2ForCausalLM",),
    "gpt.phi": ("PhiForCausalLM",),
    "llama.phi3": ("Phi3ForCausalLM",),
    "llama.gemma": ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"),
    "llama.glm": ("GlmForCausalLM", "Glm4ForCausalLM", "ChatGLMModel", "ChatGLMForConditionalGeneration"),
    "llama.olmo": ("OlmoForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM"),
    "llama.cohere": ("CohereForCausalLM", "Cohere2ForCausalLM"),
    "llama.stablelm": ("StableLmForCausalLM",),
    "llama.minicpm": ("MiniCPMForCausalLM",),
    "llama.internlm2": ("InternLM2ForCausalLM",),
    "llama.baichuan": ("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    "llama.orion": ("OrionForCausalLM",),
    "llama.qwen": ("QWenLMHeadModel",),
    "llama.decilm": ("DeciLMForCausalLM",),
    "multimodal.gemma4": ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration"),
    "encoders.bert": ("BertModel", "BertForMaskedLM", "RobertaModel", "RobertaForMaskedLM", "DistilBertModel", "DistilBertForMaskedLM"),
    "encoders.nomic_bert": ("NomicBertModel",),
    "encoders.t5": ("T5ForConditionalGeneration", "T5Model", "T5EncoderModel", "MT5ForConditionalGeneration", "MT5Model", "MT5EncoderModel"),
    "encoders.whisper": ("WhisperForConditionalGeneration", "WhisperModel"),
    "encoders.vit": ("ViTModel", "ViTForImageClassification"),
    "diffusion.unet": ("UNet2DConditionModel", "AutoencoderKL"),
    "diffusion.video_vae": ("AutoencoderKLCogVideoX",),
    "diffusion.mmdit": ("FluxTransformer2DModel", "SD3Transformer2DModel", "CogVideoXTransformer3DModel"),
    "encoders.clip": ("CLIPModel", "CLIPTextModel", "CLIPTextModelWithProjection"),
    "multimodal.llava": ("LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration", "Gemma3ForConditionalGeneration"),
    "multimodal.mllama": ("MllamaForConditionalGeneration",),
    "multimodal.llama4_vision": ("Llama4ForConditionalGeneration",),
    "multimodal.kimi_vl": (
        "KimiK25ForConditionalGeneration",
        "Kimi_K25ForConditionalGeneration",
        "KimiVLForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
    ),
    "multimodal.qwen_vl": (
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    "hybrid.bamba": ("BambaForCausalLM",),
    "hybrid.falcon_h1": ("FalconH1ForCausalLM",),
    "hybrid.granite_hybrid": ("GraniteMoeHybridForCausalLM",),
    "hybrid.jamba": ("JambaForCausalLM",),
    "hybrid.lfm2": ("Lfm2ForCausalLM",),
    "hybrid.mamba": ("MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM"),
    "hybrid.nemotron_h": ("NemotronHForCausalLM",),
    "hybrid.qwen3_next": ("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    "hybrid.zamba2": ("Zamba2ForCausalLM",),
    "moe.mixtral": ("MixtralForCausalLM",),
    "moe.grok": ("Grok1ForCausalLM",),
    "moe.qwen_moe": ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"),
    "moe.olmoe": ("OlmoeForCausalLM",),
    "moe.dbrx": ("DbrxForCausalLM",),
    "moe.deepseek": (
        "DeepseekForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "GlmMoeDsaForCausalLM",
        "Glm4MoeLiteForCausalLM",
    ),
    "moe.deepseek_v4": ("DeepseekV4ForCausalLM",),
    "moe.ernie_moe": ("Ernie4_5_MoeForCausalLM",),
    "moe.hunyuan_moe": ("HunYuanMoEV1ForCausalLM",),
    "hybrid.kimi": ("KimiLinearForCausalLM", "KimiK3ForCausalLM"),
    "moe.glm4_moe": ("Glm4MoeForCausalLM",),
    "moe.gpt_oss": ("GptOssForCausalLM",),
    "moe.llama4": ("Llama4ForCausalLM",),
    "moe.minimax": ("MiniMaxM2ForCausalLM", "MiniMaxM3ForCausalLM", "MiniMaxM3VLForCausalLM"),
    "moe.mimo_v2": ("MiMoV2FlashForCausalLM",),
    "moe.step3": ("Step3p7FlashForCausalLM", "Step3p7ForCausalLM", "Step3p5ForCausalLM"),
}
"""File in this folder -> architectures (the class names of `architectures` in config.json) that it builds."""

MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mimo": "MiMoForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "arcee": "ArceeForCausalLM",
    "helium": "HeliumForCausalLM",
    "cwm": "CwmForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "internlm": "InternLMForCausalLM",
    "internlm3": "InternLM3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
    "gptj": "GPTJForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "opt": "OPTForCausalLM",
    "bloom": "BloomForCausalLM",
    "falcon": "FalconForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "chatglm": "ChatGLMModel",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "baichuan": "BaichuanForCausalLM",
    "orion": "OrionForCausalLM",
    "qwen": "QWenLMHeadModel",
    "nemotron-nas": "DeciLMForCausalLM",
    "deci": "DeciLMForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "minimax_m3": "MiniMaxM3ForCausalLM",
    "minimax_m3_vl_text": "MiniMaxM3VLForCausalLM",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "step3p7": "Step3p7FlashForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "jamba": "JambaForCausalLM",
    "mamba": "MambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "bamba": "BambaForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "mpt": "MptForCausalLM",
    "zamba2": "Zamba2ForCausalLM",
    "mllama": "MllamaForConditionalGeneration",
    "nomic_bert": "NomicBertModel",
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "distilbert": "DistilBertModel",
    "vit": "ViTModel",
    "clip": "CLIPModel",
    "clip_text_model": "CLIPTextModel",
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "mistral3": "Mistral3ForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified": "Gemma4UnifiedForConditionalGeneration",
    "gemma4_unified_text": "Gemma4UnifiedForCausalLM",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "llama4": "Llama4ForConditionalGeneration",
    "kimi_vl": "KimiVLForConditionalGeneration",
    "kimi_k25": "KimiK25ForConditionalGeneration",
    "kimi_k3": "KimiK3ForConditionalGeneration",
}
"""model_type -> architecture, for configurations without `architectures`."""

CLASSIFIES = "ForSequenceClassification"
"""How architectures end that score whole sequences."""
_FILE_OF = {architecture: file for file, names in FAMILIES.items() for architecture in names}


def supported() -> list[str]:
    """All architectures, sorted."""
    return sorted(_FILE_OF)


def build(fields: Mapping[str, Any], name: str = "", path: str = "model.config") -> Network:
    """The network that a config.json describes. Raises Unsupported for an architecture that no file builds, BadInput for a damaged config."""
    config = Config(fields, path, name)
    architecture = config.architecture or MODEL_TYPES.get(config.model_type, "")
    if (decoder := _decoder_of(architecture)) is not None:
        labels = config.integer("num_labels", default=len(fields.get("id2label") or ()) or 2)
        return classifier(build({**fields, "architectures": [decoder]}, name, path), labels)
    file = _FILE_OF.get(architecture)
    if file is None:
        asked = architecture or config.model_type
        if not asked:
            raise Unsupported(f"{path}.architectures", "is missing, and so is model_type: the file does not say what the model is")
        if not asked.isprintable() or len(asked) > 100:
            asked = shorten(asked)
        raise Unsupported(f"{path}.architectures", f"{asked} is not supported{did_you_mean(asked, _FILE_OF)}; `everybyte models --architectures` lists all")
    if not config.architecture:
        config = Config({**fields, "architectures": [architecture]}, path, name)
    builder: Callable[[Config], Network] = import_module(f"everybyte.models.{file}").build
    return replace(builder(config), stored=packed_of(fields))


def _decoder_of(architecture: str) -> str | None:
    """`LlamaForSequenceClassification` -> `LlamaForCausalLM`, where that is built here."""
    decoder = f"{architecture.removesuffix(CLASSIFIES)}ForCausalLM"
    return decoder if architecture.endswith(CLASSIFIES) and decoder in _FILE_OF and architecture not in _FILE_OF else None


def classifier(decoder: Network, labels: int) -> Network:
    """A decoder with a score for each label in the place of its head (transformers modeling_layers.py GenericForSequenceClassification)."""
    return replace(decoder, head=ScoreHead(decoder.hidden, labels=labels), tied=False)
