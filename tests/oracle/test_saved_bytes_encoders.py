"""Bytes kept for backward by the blocks of encoders and encoder-decoders, to the byte against transformers on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from module_bytes import difference, layer_keeps, module_keeps

from everybyte.layers.network import Network, declare, hidden_dims
from everybyte.layers.recording.size import Batch, Dims
from everybyte.models.count import DECLARE, parts
from everybyte.models.registry import build

B, S, H, M = 2, 24, 96, 40
BOTH = pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
KERNELS = pytest.mark.parametrize("attention", ["sdpa", "eager"])
LATER = ("*[!s].weight", "*bias")
"""Everything but the table of relative positions: a fused kernel on the CPU takes no bias that is trained."""


def states(amp: bool, length: int = S) -> torch.Tensor:
    """Hidden states that an earlier layer made."""
    return torch.randn(B, length, H, dtype=torch.float32 if amp else torch.bfloat16, requires_grad=True) * 1


def pair(config: Any, model: str, amp: bool) -> tuple[Any, Network]:
    """A small model of transformers in training mode, and our network of its config."""
    torch.manual_seed(0)
    module = getattr(transformers, model)(config)
    return module.to(torch.float32 if amp else torch.bfloat16).train(), build({**config.to_dict(), "architectures": [model]})


def agree(module: torch.nn.Module, call: Callable[[], Any], layer: Any, dims: Dims, batch: Batch, amp: bool, **options: Any) -> None:
    """Both keep the same number of storages of every size."""
    measured = module_keeps(module, call, amp, options.pop("outside", ()))
    ours = layer_keeps(layer, dims, batch, amp, **options)
    assert measured == ours, difference(measured, ours)


@BOTH
@KERNELS
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_bert_block(amp: bool, attention: str, dropout: float) -> None:
    """BERT: norms behind the branches; CPU dropout keeps masks in the type of the activation and sends SDPA to plain operations."""
    config = transformers.BertConfig(
        hidden_size=H,
        intermediate_size=200,
        num_attention_heads=6,
        num_hidden_layers=1,
        vocab_size=300,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )
    model, network = pair(config, "BertModel", amp)
    x = states(amp)
    agree(model, lambda: model.encoder.layer[0](x, None), network.runs[0].layer, hidden_dims(H), Batch(B, S, S), amp, attention=attention)


@BOTH
def test_bert_masked_head(amp: bool) -> None:
    """The transform before the vocabulary: dense, GELU, norm."""
    config = transformers.BertConfig(hidden_size=H, intermediate_size=200, num_attention_heads=6, num_hidden_layers=1, vocab_size=300)
    model, network = pair(config, "BertForMaskedLM", amp)
    x = states(amp)
    agree(model, lambda: model.cls.predictions.transform(x), network.tail, hidden_dims(H), Batch(B, S, S), amp)


@BOTH
@KERNELS
def test_distilbert_block(amp: bool, attention: str) -> None:
    """DistilBERT: as BERT, without dropout behind the attention."""
    config = transformers.DistilBertConfig(
        dim=H, hidden_dim=200, n_heads=6, n_layers=1, vocab_size=300, dropout=0.0, attention_dropout=0.0, attn_implementation=attention
    )
    model, network = pair(config, "DistilBertModel", amp)
    x = states(amp)
    agree(model, lambda: model.transformer.layer[0](x, None), network.runs[0].layer, hidden_dims(H), Batch(B, S, S), amp, attention=attention)


@BOTH
@KERNELS
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_nomic_bert(amp: bool, attention: str, dropout: float) -> None:
    """Nomic BERT: rotary positions without a mask, a gate, norms behind the sums; names and sizes of its parameters; no pooler."""
    config = transformers.NomicBertConfig(
        hidden_size=H,
        intermediate_size=200,
        num_attention_heads=6,
        num_hidden_layers=1,
        vocab_size=300,
        hidden_dropout_prob=dropout,
        attn_implementation=attention,
    )
    model, network = pair(config, "NomicBertModel", amp)
    x = states(amp)
    turns = model.rotary_emb(x, torch.arange(S)[None])
    call = lambda: model.layers[0](x, None, turns)  # noqa: E731 - one call, named for the line's sake
    agree(model, call, network.runs[0].layer, hidden_dims(H), Batch(B, S, S), amp, attention=attention, outside=turns)
    found = [(part.path, row) for part in parts(network) for row in declare(part.layer, DECLARE, part.dims).parameters]
    assert {f"{path}.0.{row.name}" if path else row.name: row.numel for path, row in found} == {n: p.numel() for n, p in model.named_parameters()}


@BOTH
@KERNELS
def test_vit(amp: bool, attention: str) -> None:
    """ViT: patch embedding with a class token and positions, a block, the pooler."""
    config = transformers.ViTConfig(
        hidden_size=H, intermediate_size=200, num_attention_heads=6, num_hidden_layers=1, attn_implementation=attention, image_size=32, patch_size=8
    )
    model, network = pair(config, "ViTModel", amp)
    x, pixels = states(amp), torch.randn(B, 3, 32, 32, dtype=torch.float32 if amp else torch.bfloat16)
    agree(model, lambda: model.embeddings(pixels), network.stem, network.stem_dims, Batch(B, 17, 17), amp)
    agree(model, lambda: model.layers[0](x), network.runs[0].layer, hidden_dims(H), Batch(B, S, S), amp, attention=attention)
    agree(model, lambda: model.pooler(model.layernorm(x)), network.tail, hidden_dims(H), Batch(B, S, S), amp)


@BOTH
@KERNELS
@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu"])
def test_t5(amp: bool, attention: str, feed_forward: str) -> None:
    """T5: relative positions made in the first block and copied in each for SDPA, the norm that multiplies its input, cross-attention."""
    config = transformers.T5Config(
        d_model=H,
        d_ff=200,
        d_kv=16,
        num_heads=4,
        num_layers=2,
        vocab_size=300,
        dropout_rate=0.0,
        feed_forward_proj=feed_forward,
        attn_implementation=attention,
    )
    model, network = pair(config, "T5ForConditionalGeneration", amp)
    fused = attention == "sdpa"
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (fused and "relative" in name))
    dtype = torch.float32 if amp else torch.bfloat16
    x, memory = states(amp), states(amp, M)
    table = torch.randn(S, S, 4, dtype=dtype).permute(2, 0, 1).unsqueeze(0)
    zeros = torch.zeros(1, 4, S, M, dtype=torch.bfloat16)
    options: dict[str, Any] = {"attention": attention, "outside": (table, zeros, memory)}
    encoder, decoder = network.towers[0].runs, network.runs
    dims, batch = hidden_dims(H), Batch(B, S, S, M)
    agree(model, lambda: model.encoder.block[1](x, None, table), encoder[1].layer, dims, batch, amp, **options)
    agree(model, lambda: model.decoder.block[1](x, None, table, memory, None, zeros), decoder[1].layer, dims, batch, amp, **options)
    options["trainable"] = LATER if fused else ("*",)
    agree(model, lambda: model.encoder.block[0](x, None, None), encoder[0].layer, dims, batch, amp, **options)


@BOTH
@KERNELS
def test_whisper(amp: bool, attention: str) -> None:
    """Whisper: two convolutions over the spectrogram, blocks whose q, k and v are copied into memory order, cross-attention."""
    config = transformers.WhisperConfig(
        d_model=H,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=200,
        decoder_ffn_dim=200,
        max_source_positions=M,
        vocab_size=300,
        attn_implementation=attention,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
    )
    model, network = pair(config, "WhisperForConditionalGeneration", amp)
    x, memory, tower = states(amp), states(amp, M), network.towers[0]
    sound = torch.randn(B, 80, 2 * M, dtype=torch.float32 if amp else torch.bfloat16)

    def stem() -> torch.Tensor:
        wide = torch.nn.functional.gelu(model.model.encoder.conv1(sound))
        narrow = torch.nn.functional.gelu(model.model.encoder.conv2(wide)).permute(0, 2, 1)
        return narrow + model.model.encoder.embed_positions(torch.arange(M))

    dims, batch = hidden_dims(H), Batch(B, S, S, M)
    agree(model, stem, tower.stem, tower.stem_dims, Batch(B, M, M), amp)
    agree(model, lambda: model.model.encoder.layers[0](x, None), tower.runs[0].layer, dims, batch, amp, attention=attention)
    decoder = model.model.decoder.layers[0]
    agree(model, lambda: decoder(x, None, memory), network.runs[0].layer, dims, batch, amp, attention=attention, outside=(memory,))
