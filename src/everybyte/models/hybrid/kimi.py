"""Kimi Linear and the text part of Kimi K3: delta attention with latent attention in every fourth layer, DeepSeek-V3's routing
(modeling_kimi_linear.py of transformers; of moonshotai/Kimi-K3 as SGLang's srt/models/kimi_k3.py restates it)."""

from __future__ import annotations

from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.mla import MLA
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.residual import ResidualBlock, ResidualTail
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate, GatedProduct
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.layers.recurrent.kda import KimiDeltaAttention
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, expert_counts, layer_count, tied
from everybyte.models.patterns import kinds

CORRECTION = "e_score_correction_bias"


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    return language_model(c.part("text_config"))


def language_model(c: Config, places: Places = Places()) -> Network:  # noqa: B008 - a constant
    """The decoder, under the names that it has alone or inside a vision-language model."""
    layers = layer_count(c)
    latent, delta = _latent_attention(c), _delta_attention(c)
    dense, moe = _dense(c, c.integer("intermediate_size")), _experts(c)
    size = c.integer("attn_res_block_size", default=0, least=0)
    blocks: list[Any] = []
    for index, (full, routed) in enumerate(zip(_full(c, layers), _routed(c, layers), strict=True)):
        mixer, mlp = latent if full else delta, moe if routed else dense
        block = ResidualBlock(mixer, mlp, blocks=-(-index // size), opens=index % size == 0) if size else Block(mixer, mlp)
        blocks.append(block)
    tail = ResidualTail(-(-layers // size), places.norm) if size else None
    return decoder(c, layers=blocks, tied=tied(c, default=False), places=places, tail=tail, experts=expert_counts(c))


def _full(c: Config, layers: int) -> list[bool]:
    """Which layers have latent attention: 1-based in `linear_attn_config`, or as `layer_types` says; by default every fourth but the first."""
    listed = c.part("linear_attn_config").integers("full_attn_layers")
    if listed and not c.has("layer_types"):
        return [index + 1 in listed for index in range(layers)]
    default = ["full_attention" if index and index % 4 == 0 else "linear_attention" for index in range(layers)]
    return [kind == "full_attention" for kind in kinds(c, "layer_types", layers, ("full_attention", "linear_attention"), default)]


def _routed(c: Config, layers: int) -> list[bool]:
    first = c.integer("first_k_dense_replace", default=1, least=0)
    default = ["dense" if index < first else "sparse" for index in range(layers)]
    return [kind == "sparse" for kind in kinds(c, "mlp_layer_types", layers, ("dense", "sparse"), default)]


def _latent_attention(c: Config) -> MLA:
    return MLA(
        c.integer("hidden_size"),
        c.integer("num_attention_heads"),
        c.integer("q_lora_rank", default=0, least=0),
        c.integer("kv_lora_rank"),
        c.integer("qk_nope_head_dim"),
        c.integer("qk_rope_head_dim"),
        c.integer("v_head_dim"),
        bias=c.flag("attention_bias", default=False),
        dropout=c.number("attention_dropout"),
        turned=False,
        gate="g_proj" if c.flag("mla_use_output_gate", default=False) else "",
    )


def _delta_attention(c: Config) -> KimiDeltaAttention:
    inner = c.part("linear_attn_config")
    return KimiDeltaAttention(
        c.integer("hidden_size"),
        inner.integer("num_heads", "linear_num_heads", default=32),
        inner.integer("head_dim", "linear_head_dim", default=128) if inner is not c else c.integer("linear_head_dim", default=128),
        inner.integer("short_conv_kernel_size", "linear_conv_kernel_dim", default=4),
        full_gate=inner.flag("use_full_rank_gate", default=False),
    )


def _gate(c: Config) -> Gate:
    name = c.text("hidden_act", default="silu")
    if name not in {"silu", "situ"}:
        raise BadInput(f"{c.path}.hidden_act", f"must be silu or situ, not {name!r}")
    return Gate(clamp="situ") if name == "situ" else Gate()


def _dense(c: Config, ffn: int) -> GatedProduct:
    return GatedProduct(c.integer("hidden_size"), ffn, _gate(c))


def _experts(c: Config) -> MoE:
    hidden, ffn = c.integer("hidden_size"), c.integer("moe_intermediate_size")
    count, top_k = expert_counts(c)
    latent = c.integer("routed_expert_hidden_size", default=0, least=0)
    normalize = c.flag("moe_renormalize", c.flag("norm_topk_prob", default=True))
    router = Router(count, top_k, score="sigmoid", wide=True, normalize="epsilon" if normalize else "", scaled=True, correction=CORRECTION)
    shared = c.integer("n_shared_experts", "num_shared_experts", default=0, least=0)
    return MoE(
        hidden,
        router,
        Experts(latent or hidden, ffn, count, top_k, _gate(c)),
        _dense(c, ffn * shared) if shared else None,
        latent=("routed_expert_down_proj", "routed_expert_up_proj") if latent else ("", ""),
        latent_norm="routed_expert_norm" if latent and c.flag("latent_moe_use_norm", default=False) else "",
    )
