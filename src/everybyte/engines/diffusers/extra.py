"""Keys of `extra` that the account of diffusers reads."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from everybyte.job.extra import Section
from everybyte.job.form import Count

Side = Annotated[int, msgspec.Meta(ge=16, le=65536)]
"""Pixels."""
Part = Literal["transformer", "text_encoder"]


class ServeKeys(Section, frozen=True, kw_only=True):
    """Settings of a pipeline's call, by the names of its arguments and methods."""

    library: str = "diffusers"
    pipeline: str | None = None
    batch_size: Count | None = None
    """Images or videos at once."""
    height: Side | None = None
    width: Side | None = None
    num_frames: Count | None = None
    """Frames of a video."""
    max_sequence_length: Count | None = None
    """Tokens of the prompt as the denoiser gets them."""
    guidance: bool | None = None
    """Classifier-free guidance: the denoiser works on a second batch without the prompt."""
    text_encoders: tuple[str, ...] | None = None
    vae: str | None = None
    torchao: str | None = None
    """Quantisation by torchao: `int8wo`, `fp8dq`, `int4wo`, ..."""
    quantized: tuple[Part, ...] | None = None
    """What of the pipeline is quantised; the transformer where it is not given, and the text encoder too where `torchao` says how a video pipeline is."""
    fuse_qkv: bool = False
    """`fuse_qkv_projections()`: joined projections beside the single ones."""
    compile_vae: bool = False
    offload: Literal["none", "model", "sequential"] = "none"
    """`enable_model_cpu_offload()`: one model at a time is on the device; `enable_sequential_cpu_offload()`: one layer."""
    vae_slicing: bool = False
    """`enable_vae_slicing()`: one image is decoded at a time."""


SECTIONS = (ServeKeys,)
