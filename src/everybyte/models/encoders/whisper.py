"""Whisper: an encoder of 30 seconds of sound, and a text decoder that reads it by cross-attention (modeling_whisper.py)."""

from __future__ import annotations

from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.blocks.transformer import FinalNorm
from everybyte.layers.blocks.whisper import SoundStem, WhisperBlock
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Embedding, Network, Run, Tower
from everybyte.layers.recording.size import SEQUENCES, Dim
from everybyte.models.config import Config

NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
BIASES = (True, False, True, True)


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, vocab = c.integer("d_model"), c.integer("vocab_size", default=51865)
    positions, bins = c.integer("max_source_positions", default=1500), c.integer("num_mel_bins", default=80)
    dropout = c.number("dropout")
    prefix = "model." if c.architecture == "WhisperForConditionalGeneration" else ""
    stem = SoundStem(bins, hidden, positions, f"{prefix}encoder", dropout)
    norm = Norm("layer")
    tower = Tower(
        "encoder",
        positions,
        (Run(f"{prefix}encoder.layers", 0, c.integer("encoder_layers"), _block(c, "encoder")),),
        hidden,
        stem,
        FinalNorm(norm, f"{prefix}encoder.layer_norm"),
        (SEQUENCES, Dim("mel", bins * 2 * positions)),
    )
    targets = c.integer("max_target_positions", default=448)
    head = Head(hidden, vocab, tied=True, leaf="proj_out", upcast=False) if prefix else None
    return Network(
        c.name,
        c.model_type,
        hidden,
        vocab,
        (Run(f"{prefix}decoder.layers", 0, c.integer("decoder_layers"), _block(c, "decoder")),),
        Embedding(vocab, hidden, f"{prefix}decoder.embed_tokens", targets, f"{prefix}decoder.embed_positions", dropout=dropout),
        FinalNorm(norm, f"{prefix}decoder.layer_norm"),
        head,
        tied=head is not None,
        towers=(tower,),
        dtype=c.dtype(),
        max_positions=targets,
        memory_tokens=positions,
    )


def _block(c: Config, side: str) -> WhisperBlock:
    hidden = c.integer("d_model")
    heads = c.integer(f"{side}_attention_heads")
    c.divides(f"{side}_attention_heads", heads, hidden)
    decoder = side == "decoder"
    rate = c.number("attention_dropout")
    attention = MultiHead(hidden, heads, hidden // heads, NAMES, BIASES, cached=decoder, ordered=True, wide=False, dropout=rate)
    cross = MultiHead(hidden, heads, hidden // heads, NAMES, BIASES, hidden, cached=True, ordered=True, wide=False, dropout=rate)
    ffn = c.integer(f"{side}_ffn_dim")
    return WhisperBlock(
        attention,
        cross if decoder else None,
        ffn,
        c.activation("gelu", "activation_function"),
        c.number("dropout"),
        c.number("activation_dropout"),
        clamps=not decoder,
    )
