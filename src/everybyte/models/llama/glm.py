"""GLM-4 (Glm, Glm4) and ChatGLM: Llama with a joined gate and up, biases on q, k and v, rotary positions on half of each head."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Rotary
from everybyte.layers.blocks.transformer import Block, FinalNorm
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, rotary_dim, tied

CHAT = Places("transformer.embedding.word_embeddings", "transformer.encoder.layers", "transformer.encoder.final_layernorm", "transformer.output_layer")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    if c.architecture.startswith("ChatGLM"):
        return _chatglm(c)
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    head_dim = c.integer("head_dim", default=128)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=c.flag("attention_bias", default=True)),
        rotary=Rotary(dim=rotary_dim(c, head_dim, default=0.5), tables="layer"),
        dropout=c.number("attention_dropout"),
    )
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation(), fused_gate="gate_up_proj")
    post = ("post_self_attn_layernorm", "post_mlp_layernorm") if c.architecture == "Glm4ForCausalLM" else ("", "")
    return decoder(c, Block(attention, mlp, post=post), tied=tied(c, default=False))


def _chatglm(c: Config) -> Network:
    """ChatGLM2 and 3, and GLM-4 in its first form (modeling_chatglm.py of THUDM/chatglm3-6b)."""
    hidden, vocab = c.integer("hidden_size"), c.integer("padded_vocab_size", "vocab_size")
    heads, head_dim = c.integer("num_attention_heads"), c.integer("kv_channels", default=128)
    kv_heads = c.integer("multi_query_group_num", default=1) if c.flag("multi_query_attention", default=False) else heads
    bias = c.flag("add_bias_linear", default=False)
    norm = Norm("rms", "wide") if c.flag("rmsnorm", default=True) else Norm("layer")
    dropout = c.number("hidden_dropout")
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(
            qkv_bias=bias or c.flag("add_qkv_bias", default=False), out_bias=bias, fused="query_key_value", split=True, names=("", "", "", "dense")
        ),
        rotary=Rotary(dim=head_dim // 2),
        dropout=c.number("attention_dropout"),
    )
    mlp = GatedMLP(hidden, c.integer("ffn_hidden_size"), bias=bias, fused_gate="dense_h_to_4h", names=("", "", "dense_4h_to_h"))
    block = Block(attention, mlp, norm, mixer_name="self_attention", dropout=dropout)
    tail = FinalNorm(norm, CHAT.norm if c.flag("post_layer_norm", default=True) else "")
    c = c.with_defaults({"vocab_size": vocab})
    return decoder(c, block, tied=tied(c, default=False), tail=tail, places=CHAT, stem=Embedding(vocab, hidden, CHAT.embed))
