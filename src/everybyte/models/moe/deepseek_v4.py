"""DeepSeek-V4: hyper-connected streams, compressed attention, hashed routing in the first layers (modeling_deepseek_v4.py)."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.compressed import CompressedAttention, CompressedIndexer, Compressor
from everybyte.layers.common.hyper import HyperBlock, HyperStem, HyperTail
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate, GatedProduct
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Embedding, Network, hidden_dims
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, expert_counts, layer_count, tied
from everybyte.models.patterns import kinds

PLACES = Places()
SPARSE, HEAVY, SLIDING = "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"
OF_RATIO = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""Kinds of attention by the entries of `compress_ratios` (configuration_deepseek_v4.py)."""
RATES = {SPARSE: 4, HEAVY: 128}


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, layers, streams = c.integer("hidden_size"), layer_count(c), c.integer("hc_mult", default=4)
    iterations = c.integer("hc_sinkhorn_iters", default=20)
    attention = {kind: _attention(c, kind) for kind in (SLIDING, SPARSE, HEAVY)}
    experts = {hashed: _experts(c, hashed) for hashed in (False, True)}
    blocks = [
        HyperBlock(attention[kind], experts[hashed], hidden, streams, iterations)
        for kind, hashed in zip(_attention_kinds(c, layers), _hashed(c, layers), strict=True)
    ]
    stem = HyperStem(Embedding(c.integer("vocab_size"), hidden, PLACES.embed), hidden, streams)
    tail = HyperTail(hidden, streams, "model.hc_head", PLACES.norm)
    return decoder(
        c, layers=blocks, tied=tied(c, default=False), stem=stem, tail=tail, experts=expert_counts(c), width=streams * hidden, head_dims=hidden_dims(hidden)
    )


def _attention_kinds(c: Config, layers: int) -> tuple[str, ...]:
    """`layer_types`, or `compress_ratios`; by default two heavily compressed layers, then both kinds in turn."""
    ratios = c.integers("compress_ratios")
    if ratios and not c.has("layer_types"):
        wrong = next((ratio for ratio in ratios if ratio not in OF_RATIO), None)
        if wrong is not None or len(ratios) < layers:
            raise BadInput(f"{c.path}.compress_ratios", f"must hold 0, 4 or 128 for each of the {layers} layers")
        return tuple(OF_RATIO[ratio] for ratio in ratios[:layers])
    default = [HEAVY] * min(layers, 2) + [SPARSE if index % 2 else HEAVY for index in range(layers - 2)]
    return kinds(c, "layer_types", layers, (SPARSE, HEAVY, SLIDING), default)


def _hashed(c: Config, layers: int) -> list[bool]:
    """The first layers route by token id."""
    first = c.integer("num_hash_layers", default=3, least=0)
    default = ["hash_moe" if index < first else "moe" for index in range(layers)]
    return [kind == "hash_moe" for kind in kinds(c, "mlp_layer_types", layers, ("hash_moe", "moe"), default)]


def _attention(c: Config, kind: str) -> CompressedAttention:
    head_dim = c.integer("head_dim", default=512)
    rope = c.integer("qk_rope_head_dim", default=int(head_dim * c.number("partial_rotary_factor", default=0.125)))
    compressor = indexer = None
    if kind != SLIDING:
        rate = c.part("compress_rates").integer(kind, default=RATES[kind])
        compressor = Compressor(head_dim, rate, rope, overlap=kind == SPARSE)
        if kind == SPARSE:
            width = c.integer("index_head_dim", default=128)
            inner = Compressor(width, rate, rope, overlap=True)
            indexer = CompressedIndexer(c.integer("index_n_heads", default=64), width, c.integer("index_topk", default=512), inner)
    return CompressedAttention(
        c.integer("hidden_size"),
        c.integer("num_attention_heads"),
        head_dim,
        c.integer("q_lora_rank"),
        rope,
        c.integer("sliding_window", default=128),
        c.integer("o_groups", default=8),
        c.integer("o_lora_rank", default=1024),
        compressor,
        indexer,
    )


def _experts(c: Config, hashed: bool) -> MoE:
    hidden, ffn = c.integer("hidden_size"), c.integer("moe_intermediate_size")
    count, top_k = expert_counts(c)
    gate = Gate(c.activation(), clamp="before")
    score = c.text("scoring_func", default="sqrtsoftplus")
    if score not in {"sqrtsoftplus", "sigmoid"}:
        raise BadInput(f"{c.path}.scoring_func", f"must be sqrtsoftplus or sigmoid, not {score!r}")
    router = Router(
        count,
        top_k,
        score="sigmoid" if score == "sigmoid" else "sqrtsoftplus",
        wide_scores=False,
        normalize="quotient",
        scaled=True,
        correction="" if hashed else "e_score_correction_bias",
        hashed_vocab=c.integer("vocab_size") if hashed else 0,
    )
    return MoE(hidden, router, Experts(hidden, ffn, count, top_k, gate), GatedProduct(hidden, ffn, gate, bias=c.flag("mlp_bias", default=False)))
