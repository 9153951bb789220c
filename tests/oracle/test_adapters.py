"""Adapters against peft on the CPU: trained parameters of every kind, and bytes kept for backward by an adapted layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
import transformers
from saved_bytes import layer_bytes

from everybyte.basics.dtypes import BF16
from everybyte.layers.network import Network, hidden_dims, write
from everybyte.layers.recording.setup import Adapter, Kernels, Setup
from everybyte.layers.recording.size import Batch, Point
from everybyte.models.count import declared
from everybyte.models.registry import build
from everybyte.rules.step.adapted_network import adapted as with_shared

B, S, H = 2, 32, 96
QV = ("q_proj", "v_proj")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FEED = ("gate_proj", "up_proj", "down_proj")


def config(layers: int) -> transformers.LlamaConfig:
    """A small Llama with grouped heads whose width is not the hidden size."""
    return transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=H,
        intermediate_size=176,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        attn_implementation="sdpa",
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )


def network(layers: int) -> Network:
    """Our network of the same configuration."""
    return build({**config(layers).to_dict(), "architectures": ["LlamaForCausalLM"]})


def adapted(settings: Any) -> Callable[[int], torch.nn.Module]:
    """Makes the model with peft's adapter, in bf16 with adapters in fp32 as peft casts them."""

    def make(layers: int) -> torch.nn.Module:
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config(layers)).to(torch.bfloat16)
        model.config.use_cache = False
        return peft.get_peft_model(model, settings())

    return make


def setup(adapter: Adapter, **kernels: Any) -> Setup:
    """A frozen bf16 base with an adapter."""
    return Setup(weights=BF16, trainable=(), adapter=adapter, kernels=Kernels(device="cpu", **kernels))


def trained_numbers(adapter: Adapter, layers: int = 2) -> int:
    """Trained parameters by our account."""
    return sum(d.copies * d.parameter.numel for d in declared(network(layers), setup(adapter)) if d.parameter.trainable)


def kept(adapter: Adapter) -> int:
    """Bytes that one layer keeps by our account."""
    layer = network(1).runs[0].layer
    return write(layer, setup(adapter), hidden_dims(H), BF16).tally.kept_size.at(Point(Batch(B, S, S)))


def lora(**more: Any) -> Callable[[], Any]:
    """Settings of peft's LoRA."""
    return lambda: peft.LoraConfig(r=4, task_type="CAUSAL_LM", **more)


def on_qv(cls: Any, **more: Any) -> Callable[[], Any]:
    """Settings of a peft adapter on queries and values."""
    return lambda: cls(target_modules=list(QV), task_type="CAUSAL_LM", **more)


EXACT: list[tuple[str, Callable[[], Any], Adapter]] = [
    ("lora", lora(target_modules=list(QV)), Adapter("lora", 4, QV)),
    ("lora-all", lora(target_modules=list(ALL)), Adapter("lora", 4, ALL)),
    ("lora-dropout", lora(target_modules=list(QV), lora_dropout=0.1), Adapter("lora", 4, QV, dropout=0.1)),
    ("dora", lora(target_modules=list(QV), use_dora=True), Adapter("dora", 4, QV)),
    ("dora-all", lora(target_modules=list(ALL), use_dora=True), Adapter("dora", 4, ALL)),
    ("dora-dropout", lora(target_modules=list(QV), use_dora=True, lora_dropout=0.1), Adapter("dora", 4, QV, dropout=0.1)),
    ("adalora", on_qv(peft.AdaLoraConfig, init_r=4, target_r=2, total_step=100), Adapter("adalora", 4, QV)),
    (
        "ia3",
        lambda: peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"),
        Adapter("ia3", 0, ("k_proj", "v_proj", "down_proj"), feedforward=("down_proj",)),
    ),
    (
        "ia3-all",
        lambda: peft.IA3Config(target_modules=list(ALL), feedforward_modules=list(FEED), task_type="CAUSAL_LM"),
        Adapter("ia3", 0, ALL, feedforward=FEED),
    ),
    ("loha", on_qv(peft.LoHaConfig, r=4), Adapter("loha", 4, QV)),
    ("lokr", on_qv(peft.LoKrConfig, r=4, decompose_factor=4), Adapter("lokr", 4, QV, options=(("decompose_factor", 4),))),
    ("miss", on_qv(peft.MissConfig, r=4), Adapter("miss", 4, QV)),
    ("vera", on_qv(peft.VeraConfig, r=16), Adapter("vera", 16, QV)),
    ("fourierft", on_qv(peft.FourierFTConfig, n_frequency=100), Adapter("fourierft", 0, QV, options=(("n_frequency", 100),))),
    ("tinylora", on_qv(peft.TinyLoraConfig, r=2, u=8), Adapter("tinylora", 2, QV, options=(("u", 8),))),
    ("randlora", on_qv(peft.RandLoraConfig, r=4), Adapter("randlora", 4, QV)),
    ("osf", on_qv(peft.OSFConfig), Adapter("osf", 0, QV)),
]
NAMES = [name for name, _, _ in EXACT]


@pytest.mark.parametrize(("name", "settings", "ours"), EXACT, ids=NAMES)
def test_kept_bytes_of_an_adapted_layer(name: str, settings: Callable[[], Any], ours: Adapter) -> None:
    """What one more adapted layer keeps for backward is equal to the byte."""
    real, shapes = layer_bytes(adapted(settings), B, S)
    assert kept(ours) == real, shapes


BANK = (("num_vectors", 32), ("vector_length", 16), ("topk", 2))
COUNTED: list[tuple[str, Callable[[], Any], Adapter]] = [
    *EXACT,
    ("shira", on_qv(peft.ShiraConfig, r=4), Adapter("shira", 4, QV)),
    ("oft", on_qv(peft.OFTConfig, oft_block_size=8, r=0), Adapter("oft", 0, QV, options=(("oft_block_size", 8),))),
    (
        "boft",
        on_qv(peft.BOFTConfig, boft_block_size=8, boft_n_butterfly_factor=1),
        Adapter("boft", 0, QV, options=(("boft_block_size", 8), ("boft_n_butterfly_factor", 1))),
    ),
    ("hra", on_qv(peft.HRAConfig, r=4), Adapter("hra", 4, QV)),
    (
        "c3a",
        lambda: peft.C3AConfig(block_size=16, target_modules=["q_proj"], task_type="CAUSAL_LM"),
        Adapter("c3a", 0, ("q_proj",), options=(("block_size", 16),)),
    ),
    ("road", on_qv(peft.RoadConfig, group_size=16), Adapter("road", 0, QV)),
    ("delora", on_qv(peft.DeloraConfig, r=4), Adapter("delora", 4, QV)),
    ("gralora", on_qv(peft.GraloraConfig, r=4, gralora_k=2), Adapter("gralora", 4, QV, options=(("gralora_k", 2),))),
    ("waveft", on_qv(peft.WaveFTConfig, n_frequency=100), Adapter("waveft", 0, QV, options=(("n_frequency", 100),))),
]


@pytest.mark.parametrize(("name", "settings", "ours"), COUNTED, ids=[name for name, _, _ in COUNTED])
def test_trained_parameters_of_an_adapter(name: str, settings: Callable[[], Any], ours: Adapter) -> None:
    """The number of trained parameters is peft's."""
    real = sum(p.numel() for p in adapted(settings)(2).parameters() if p.requires_grad)
    assert trained_numbers(ours) == real


PROMPTED: list[tuple[str, Callable[[], Any], Adapter]] = [
    ("prompt", lambda: peft.PromptTuningConfig(num_virtual_tokens=8, task_type="CAUSAL_LM"), Adapter("prompt", 0, (), options=(("num_virtual_tokens", 8),))),
    (
        "p-tuning",
        lambda: peft.PromptEncoderConfig(num_virtual_tokens=8, encoder_hidden_size=64, task_type="CAUSAL_LM"),
        Adapter("p-tuning", 0, (), options=(("num_virtual_tokens", 8), ("encoder_hidden_size", 64))),
    ),
    (
        "multitask-prompt",
        lambda: peft.MultitaskPromptTuningConfig(num_virtual_tokens=8, num_tasks=3, task_type="CAUSAL_LM"),
        Adapter("multitask-prompt", 0, (), options=(("num_virtual_tokens", 8), ("num_tasks", 3))),
    ),
    (
        "cpt",
        lambda: peft.CPTConfig(cpt_token_ids=list(range(8)), cpt_mask=[1] * 8, cpt_tokens_type_mask=[1] * 8, task_type="CAUSAL_LM"),
        Adapter("cpt", 0, (), options=(("num_virtual_tokens", 8),)),
    ),
    ("prefix", lambda: peft.PrefixTuningConfig(num_virtual_tokens=8, task_type="CAUSAL_LM"), Adapter("prefix", 0, (), options=(("num_virtual_tokens", 8),))),
    ("vblora", on_qv(peft.VBLoRAConfig, r=4, num_vectors=32, vector_length=16, topk=2), Adapter("vblora", 4, QV, options=BANK)),
]


@pytest.mark.parametrize(("name", "settings", "ours"), PROMPTED, ids=[name for name, _, _ in PROMPTED])
def test_trained_parameters_outside_the_blocks(name: str, settings: Callable[[], Any], ours: Adapter) -> None:
    """Virtual tokens, their encoders and shared banks are counted once."""
    real = sum(p.numel() for p in adapted(settings)(2).parameters() if p.requires_grad)
    whole = with_shared(network(2), setup(ours))
    assert sum(d.copies * d.parameter.numel for d in declared(whole, setup(ours)) if d.parameter.trainable) == real


def layer_with(adapter: Adapter, tokens: int, keys: int, **kernels: Any) -> int:
    """Bytes that one layer keeps for sequences of `tokens` that see `keys`."""
    layer = network(1).runs[0].layer
    return write(layer, setup(adapter, **kernels), hidden_dims(H), BF16).tally.kept_size.at(Point(Batch(B, tokens, keys)))


def test_virtual_tokens_are_tokens_of_every_layer() -> None:
    """Prompt tuning: a layer keeps for s + v tokens what a frozen layer keeps for so many."""
    _, settings, ours = PROMPTED[0]
    real, shapes = layer_bytes(adapted(settings), B, S)
    assert layer_with(ours, S + 8, S + 8) == real, shapes


def test_a_prefix_makes_keys_longer_and_needs_a_mask() -> None:
    """Prefix tuning: keys and values of s + v tokens for every head, and a mask s·(s + v) in every layer."""
    settings, ours = PROMPTED[4][1:]
    real, shapes = layer_bytes(adapted(settings), B, S, period=2)
    assert 2 * layer_with(ours, S, S + 8, masked=True) == real, shapes


def test_a_bank_is_read_by_every_layer() -> None:
    """VB-LoRA keeps places, weights and vectors of the best of the bank, and the matrices put together."""
    settings, ours = PROMPTED[5][1:]
    real, shapes = layer_bytes(adapted(settings), B, S)
    assert kept(ours) == real, shapes


def test_shared_bases_are_buffers_of_the_network() -> None:
    """VeRA's and RandLoRA's frozen matrices exist once, as large as the largest adapted layer asks."""
    for name in ("vera", "randlora"):
        settings, ours = next((s, a) for n, s, a in EXACT if n == name)
        model = adapted(settings)(2)
        real = {b.untyped_storage().data_ptr(): b.numel() for key, b in model.named_buffers() if name in key}
        whole = with_shared(network(2), setup(ours))
        buffers = sum(d.parameter.numel for d in declared(whole, setup(ours)) if d.parameter.buffer and d.part == "embed")
        assert buffers == sum(real.values())


def trained_base(*names: str) -> Setup:
    """A frozen bf16 base of which whole modules are trained as copies."""
    patterns = tuple(pattern for name in names for pattern in (f"{name}.*", f"*.{name}.*"))
    return Setup(weights=BF16, trainable=patterns, keeps_originals=True, kernels=Kernels(device="cpu"))


def test_tuned_norms_are_plain_norms_again() -> None:
    """LN tuning: copies of the norms are trained, so that a layer keeps their normalised inputs; the originals stay."""
    names = ("input_layernorm", "post_attention_layernorm", "norm")
    make = adapted(lambda: peft.LNTuningConfig(target_modules=list(names), task_type="CAUSAL_LM"))
    ours = trained_base(*names)
    real, shapes = layer_bytes(make, B, S)
    layer = network(1).runs[0].layer
    assert write(layer, ours, hidden_dims(H), BF16).tally.kept_size.at(Point(Batch(B, S, S))) == real, shapes
    assert numbers(make(2)) == counted(ours)


def test_modules_that_are_saved_whole_exist_twice() -> None:
    """modules_to_save: a trained copy beside the frozen original, in the type of the base."""
    make = adapted(lora(target_modules=list(QV), modules_to_save=["embed_tokens", "lm_head"]))
    base = trained_base("embed_tokens", "lm_head")
    ours = Setup(weights=BF16, trainable=base.trainable, keeps_originals=True, adapter=Adapter("lora", 4, QV), kernels=base.kernels)
    assert numbers(make(2)) == counted(ours)


def numbers(model: torch.nn.Module) -> tuple[int, int]:
    """(trained, all) parameters of a model."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad), sum(p.numel() for p in model.parameters())


def counted(ours: Setup) -> tuple[int, int]:
    """The same by our account."""
    rows = [(d.copies * d.parameter.numel, d.parameter.trainable) for d in declared(network(2), ours) if not d.parameter.buffer]
    return sum(n for n, trained in rows if trained), sum(n for n, _ in rows)
