"""Networks that are no language models: convolutions, vision transformers, U-Nets, diffusion transformers, encoders with decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import product
from typing import Any

import diffusers
import pytest
import torch
import transformers
from peaks import CLOSE, Step, measured, traced, traced_with_highest, tracked_highest
from torch.utils.checkpoint import checkpoint

from everybyte.trace.module_step import step_of_module

transformers.logging.set_verbosity_error()

IMAGE = (4, 3, 64, 64)
Case = tuple[str, str, bool, str | None]


def resnet() -> tuple[Any, Any]:
    """A ResNet with bottlenecks, as ResNet-50 has them."""
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], layer_type="bottleneck")
    return transformers.ResNetForImageClassification(config), {"pixel_values": torch.randn(IMAGE), "labels": torch.zeros(4, dtype=torch.int64)}


def vit() -> tuple[Any, Any]:
    """A vision transformer."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64, "patch_size": 8}
    config = transformers.ViTConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(IMAGE), "labels": torch.zeros(4, dtype=torch.int64)}


def unet() -> tuple[Any, Any]:
    """A U-Net as diffusion models use it."""
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    model = diffusers.UNet2DModel(sample_size=32, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, **blocks)
    return model, {"sample": torch.randn(2, 3, 32, 32), "timestep": torch.zeros(2, dtype=torch.int64)}


def dit() -> tuple[Any, Any]:
    """A diffusion transformer."""
    model = diffusers.DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=2, sample_size=16)
    labels = {"timestep": torch.zeros(2, dtype=torch.int64), "class_labels": torch.zeros(2, dtype=torch.int64)}
    return model.eval(), {"hidden_states": torch.randn(2, 4, 16, 16), **labels}  # its training mode drops labels by chance


def whisper() -> tuple[Any, Any]:
    """Whisper: convolutions, an encoder and a decoder."""
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    config = transformers.WhisperConfig(
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        vocab_size=512,
        max_source_positions=100,
        num_mel_bins=16,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        **heads,
    )
    return transformers.WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 16, 200), "labels": torch.ones(2, 20, dtype=torch.int64)}


def t5() -> tuple[Any, Any]:
    """T5: an encoder and a decoder with relative positions."""
    config = transformers.T5Config(
        d_model=64,
        d_ff=128,
        d_kv=16,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        vocab_size=512,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
    )
    # on CPUs the fused kernel takes no mask, and the composition in its place asks what kind of tensor it has (attention.cpp), so the model's own is compared
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager")
    return model, {"input_ids": torch.ones(2, 32, dtype=torch.int64), "labels": torch.ones(2, 16, dtype=torch.int64)}


NETWORKS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "resnet": resnet,
    "vit": vit,
    "unet": unet,
    "dit": dit,
    "whisper": whisper,
    "t5": t5,
}


BLOCKS = frozenset(
    {
        "ResNetBottleNeckLayer",
        "ViTLayer",
        "ResnetBlock2D",
        "BasicTransformerBlock",
        "WhisperEncoderLayer",
        "WhisperDecoderLayer",
        "T5Block",
    }
)
"""Classes of the blocks that are run again in the backward pass."""


def build(name: str, precision: str, recompute: bool, optimizer: str | None) -> Step:
    """One step of training, as a user writes it."""
    model, inputs = NETWORKS[name]()
    if precision == "bf16":
        model.to(torch.bfloat16)
        inputs = {key: value.to(torch.bfloat16) if value.is_floating_point() else value for key, value in inputs.items()}
    for block in model.modules() if recompute else ():
        if type(block).__name__ in BLOCKS:  # the state of random numbers is kept on the CPU, where it counts as a GPU's memory here
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    if precision == "autocast":
        model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    return step_of_module(model, inputs, optimizer)


def named(name: str, precision: str, recompute: bool, optimizer: str | None) -> str:
    """How a case is called."""
    return "-".join((name, precision, "recomputed" if recompute else "kept", optimizer or "none"))


OPTIMIZERS = (None, "adamw", "sgd", "rmsprop")
ALL = [(name, *rest) for name in NETWORKS for rest in product(("fp32", "bf16", "autocast"), (False, True), OPTIMIZERS)]
SHORT = {
    *((name, "fp32", False, "adamw") for name in NETWORKS),
    *((name, "bf16", False, None) for name in ("vit", "dit", "t5")),
    *((name, "autocast", True, None) for name in ("vit", "whisper")),
    ("resnet", "fp32", True, "sgd"),
}
"""Cases of the usual run; all are in the long one."""
TRACKED = {*((name, "fp32", False, "adamw") for name in ("vit", "t5")), ("unet", "bf16", True, None), ("resnet", "fp32", True, "sgd")}
"""Cases whose highest instant is compared in the usual run; all but Whisper are in the long one."""


def some(cases: Sequence[Case], short: AbstractSet[Case]) -> list[Any]:
    """All cases as parameters, those that are not usual as long ones."""
    return [pytest.param(*case, id=named(*case), marks=[] if case in short else [pytest.mark.long]) for case in cases]


@pytest.mark.parametrize(("name", "precision", "recompute", "optimizer"), some(ALL, SHORT))
def test_fake_peaks_are_real_peaks(name: str, precision: str, recompute: bool, optimizer: str | None) -> None:
    """A training step of a network that is no language model peaks within 0.2 % of what torch measured on real tensors."""

    def make() -> Step:
        return build(name, precision, recompute, optimizer)

    assert traced(make) == pytest.approx(measured(make()), rel=CLOSE)


@pytest.mark.parametrize(("name", "precision", "recompute", "optimizer"), some([case for case in ALL if case[0] != "whisper"], TRACKED))
def test_the_highest_instant_is_that_of_torchs_own_tracker(name: str, precision: str, recompute: bool, optimizer: str | None) -> None:
    """To the byte. The tracker hangs a hook on every parameter, which Whisper's frozen positions refuse."""

    def make() -> Step:
        return build(name, precision, recompute, optimizer)

    assert traced_with_highest(make)[1] == tracked_highest(make)
