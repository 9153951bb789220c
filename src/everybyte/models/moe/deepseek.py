"""DeepSeek-MoE, V2, V3, V3.2, Kimi K2, GLM-4.7 Flash and GLM-5: latent attention and many narrow experts behind dense first layers
(modeling_deepseek_v2.py, modeling_deepseek_v3.py, modeling_deepseek_v32.py, modeling_glm4_moe_lite.py, modeling_glm_moe_dsa.py)."""

from __future__ import annotations

from collections.abc import Sequence

from everybyte.layers.attention.grouped import Attention, Projections
from everybyte.layers.attention.indexer import Indexer
from everybyte.layers.attention.mla import MLA
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, expert_counts, tied
from everybyte.models.patterns import kinds

SPARSE = {"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"}
"""Architectures whose attention looks at chosen keys only."""
CORRECTION = "e_score_correction_bias"


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    return language_model(c)


def language_model(c: Config, places: Places = Places()) -> Network:  # noqa: B008 - a constant
    """The decoder, under the names that it has alone or inside a vision-language model."""
    layers = c.integer("num_hidden_layers")
    dense = GatedMLP(c.integer("hidden_size"), c.integer("intermediate_size"), c.activation())
    moe = experts_layer(c)
    mixers = [_attention(c, full) for full in _full_indexers(c, layers)]
    blocks = [Block(mixer, moe if routed else dense) for mixer, routed in zip(mixers, routed_layers(c), strict=True)]
    return decoder(c, layers=blocks, tied=tied(c, default=False), places=places, experts=expert_counts(c))


def routed_layers(c: Config) -> list[bool]:
    """Experts from layer `first_k_dense_replace` on, in every `moe_layer_freq`-th layer, or as `mlp_layer_types` says."""
    count = c.integer("num_hidden_layers")
    if c.has("mlp_layer_types"):
        return [kind == "sparse" for kind in kinds(c, "mlp_layer_types", count, ("dense", "sparse"), ())]
    first, step = c.integer("first_k_dense_replace", default=0, least=0), c.integer("moe_layer_freq", default=1)
    return [index >= first and index % step == 0 for index in range(count)]


def experts_layer(c: Config) -> MoE:
    """The router of each generation, routed experts, and `n_shared_experts` joined into one wider shared expert."""
    hidden, ffn = c.integer("hidden_size"), c.integer("moe_intermediate_size")
    experts, top_k = expert_counts(c)
    shared = c.integer("n_shared_experts", default=0, least=0)
    gate = Gate(c.activation())
    shared_mlp = GatedMLP(hidden, ffn * shared, gate.activation) if shared else None
    return MoE(hidden, router(c, experts, top_k), Experts(hidden, ffn, experts, top_k, gate), shared_mlp)


def router(c: Config, experts: int, top_k: int) -> Router:
    """V1: softmax in the type of the logits; V2: fp32 softmax within groups; V3 and later: sigmoid with a correction of the choice."""
    normalize = c.flag("norm_topk_prob", default=False)
    if c.architecture == "DeepseekForCausalLM":
        return Router(experts, top_k, score="softmax-own", normalize="quotient" if normalize else "")
    if c.architecture == "DeepseekV2ForCausalLM":
        return Router(experts, top_k, wide=True, normalize="", scaled=True, grouped=c.text("topk_method", default="greedy") != "greedy")
    normalize = c.flag("norm_topk_prob", default=True)
    return Router(experts, top_k, score="sigmoid", wide=True, normalize="epsilon" if normalize else "", scaled=True, correction=CORRECTION)


def _attention(c: Config, full: bool) -> Attention | MLA:
    hidden = c.integer("hidden_size")
    bias = c.flag("attention_bias", default=False)
    if c.architecture == "DeepseekForCausalLM":
        heads, kv_heads, head_dim = c.heads(hidden)
        return Attention(
            hidden,
            heads,
            kv_heads,
            head_dim,
            projections=Projections(qkv_bias=bias, out_bias=bias),
            dropout=c.number("attention_dropout"),
        )
    sparse = c.architecture in SPARSE
    indexer = None
    if sparse and full:
        indexer = Indexer(c.integer("index_n_heads"), c.integer("index_head_dim"), c.integer("index_topk"), c.integer("qk_rope_head_dim"))
    return MLA(
        hidden,
        c.integer("num_attention_heads"),
        c.integer("q_lora_rank", default=0, least=0),
        c.integer("kv_lora_rank"),
        c.integer("qk_nope_head_dim"),
        c.integer("qk_rope_head_dim"),
        c.integer("v_head_dim"),
        bias=bias,
        dropout=c.number("attention_dropout"),
        complex_rope=c.architecture == "DeepseekV2ForCausalLM",
        indexer=indexer,
        sparse=sparse,
    )


def _full_indexers(c: Config, layers: int) -> Sequence[bool]:
    """Which layers choose keys themselves; the others of a sparse model reuse an earlier layer's choice (GLM-5.2)."""
    if c.has("indexer_types"):
        return [kind == "full" for kind in kinds(c, "indexer_types", layers, ("full", "shared"), ())]
    pattern = c.fields.get("index_topk_pattern")
    if isinstance(pattern, str):
        return [letter == "F" for letter in pattern[:layers]]
    step, offset = c.integer("index_topk_freq", default=1), c.integer("index_skip_topk_offset", default=2, least=0)
    return [max(index - offset + 1, 0) % step == 0 for index in range(layers)]
