"""MiniMax-M2 and the text part of M3 (modeling_minimax_m2.py, modeling_minimax_m3_vl.py): sigmoid routing with a correction of the choice;
M3 adds sparse attention over blocks of keys, clamped gates and a shared expert."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, QkNorm, Rotary
from everybyte.layers.attention.indexer import BlockIndexer
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.norm import Norm
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate, JoinedMLP
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, expert_counts, layer_count, tied
from everybyte.models.patterns import flags, kinds

CORRECTION = "e_score_correction_bias"


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    if c.architecture == "MiniMaxM2ForCausalLM":
        return _second(c)
    return language_model(c.part("text_config"))


def _second(c: Config) -> Network:
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    experts, top_k = expert_counts(c)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        rotary=Rotary(dim=c.integer("rotary_dim", default=head_dim)),
        qk_norm=QkNorm(over="all"),
        dropout=c.number("attention_dropout"),
    )
    routed = Experts(hidden, c.integer("intermediate_size"), experts, top_k, Gate(c.activation()), names=("w1", "w3", "w2"))
    moe = MoE(hidden, Router(experts, top_k, score="sigmoid", correction=f"..{CORRECTION}"), routed)
    return decoder(c, Block(attention, moe), tied=tied(c, default=False), experts=(experts, top_k))


def language_model(c: Config, places: Places = Places()) -> Network:  # noqa: B008 - a constant
    """The decoder of M3, under the names that it has alone or inside the vision-language model."""
    hidden, layers = c.integer("hidden_size"), layer_count(c)
    heads, kv_heads, head_dim = c.heads(hidden)
    experts, top_k = expert_counts(c)
    gate, norm = Gate(clamp="oai"), Norm(style="gemma")
    dense = JoinedMLP(hidden, c.integer("dense_intermediate_size"), gate)
    shared = JoinedMLP(hidden, c.integer("shared_intermediate_size", "intermediate_size"), gate)
    router = Router(experts, top_k, score="sigmoid", correction=CORRECTION)
    routed = Experts(hidden, c.integer("intermediate_size"), experts, top_k, gate)
    moe = MoE(hidden, router, routed, shared, shared_first=True, scaled=True)
    sparse = c.part("sparse_attention_config")  # the fields of the checkpoint; the file that transformers writes has its own, side by side with the others
    indexer = BlockIndexer(
        sparse.integer("sparse_num_index_heads", "index_n_heads", default=4),
        sparse.integer("sparse_index_dim", "index_head_dim", default=128),
        sparse.integer("sparse_topk_blocks", "index_topk_blocks", default=16),
        sparse.integer("sparse_block_size", "index_block_size", default=128),
    )

    def block(routes: bool, chooses: bool) -> Block:
        attention = Attention(
            hidden,
            heads,
            kv_heads,
            head_dim,
            rotary=Rotary(dim=c.integer("rotary_dim", default=head_dim)),
            qk_norm=QkNorm(over="head", style="gemma"),
            indexer=indexer if chooses else None,
            dropout=c.number("attention_dropout"),
        )
        return Block(attention, moe if routes else dense, norm)

    routes = _chosen(c, layers, "mlp_layer_types", "sparse") or flags(c, "moe_layer_freq", layers) or (True,) * layers
    chooses = _chosen(c, layers, "layer_types", "minimax_m3_sparse") or flags(sparse, "sparse_attention_freq", layers) or (False,) * layers
    blocks = [block(*kind) for kind in zip(routes, chooses, strict=True)]
    return decoder(c, layers=blocks, tied=tied(c, default=False), norm=norm, places=places, experts=(experts, top_k))


def _chosen(c: Config, layers: int, key: str, kind: str) -> tuple[bool, ...]:
    """Which layers are of that kind; nothing where the file has no such list."""
    if not c.has(key):
        return ()
    return tuple(name == kind for name in kinds(c, key, layers, (kind, "dense", "full_attention"), ()))
