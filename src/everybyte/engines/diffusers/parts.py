"""The models of a pipeline: what diffusers loads beside the denoiser that the job names."""

from __future__ import annotations

from functools import cache
from os.path import dirname, join
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

import everybyte.catalog
from everybyte.basics.errors import Unsupported
from everybyte.basics.record import Record
from everybyte.engines.diffusers.extra import ServeKeys
from everybyte.layers.diffusion.unet import UNet
from everybyte.layers.diffusion.video_vae import VideoDecoder
from everybyte.layers.network import Network
from everybyte.models.source import network_of

FILE = join(dirname(everybyte.catalog.__file__), "data", "diffusers.json")


class Form(Record, frozen=True):
    """A pipeline of diffusers: its models and the defaults of its call."""

    denoiser: str
    text_encoders: tuple[str, ...]
    autoencoder: str
    patch: int
    """Side of the squares of the latent image that are one token of the denoiser."""
    prompt_tokens: int
    guides: bool
    """Classifier-free guidance is on."""
    height: int
    width: int
    source: str
    num_frames: int = 1
    quantized: tuple[Literal["transformer", "text_encoder"], ...] = ("transformer",)
    """What diffusers-torchao's scripts quantise (inference/benchmark_image.py, benchmark_video.py)."""
    upcasts: bool = False
    """The autoencoder of fp16 weights runs in fp32 (`force_upcast`)."""


class _File(msgspec.Struct, frozen=True):
    text_encoders: dict[str, dict[str, Any]]
    autoencoders: dict[str, dict[str, Any]]
    pipelines: dict[str, Form]


@cache
def known() -> _File:
    """Pipelines and models that are known."""
    with open(FILE, "rb") as file:
        return msgspec.json.decode(file.read(), type=_File)


def form_of(network: Network, keys: ServeKeys) -> tuple[str, Form]:
    """The pipeline of a job, by its name or by the denoiser. Raises Unsupported for one that is not known, or does not run this model."""
    pipelines = known().pipelines
    name = keys.pipeline or _usual(network)
    if name not in pipelines:
        raise Unsupported("serve.extra.pipeline", f"{name!r} is not supported yet; supported: {', '.join(pipelines)}")
    if pipelines[name].denoiser != network.family:
        raise Unsupported("serve.extra.pipeline", f"{name} runs a {pipelines[name].denoiser}, and the model is a {network.family}")
    return name, pipelines[name]


def _usual(network: Network) -> str:
    found = [name for name, form in known().pipelines.items() if form.denoiser == network.family]
    if not found:
        denoisers = ", ".join(sorted({form.denoiser for form in known().pipelines.values()}))
        raise Unsupported("model", f"diffusers' pipelines run a {denoisers}; this model is a {network.family}")
    unet = network.runs[0].layer
    plain = isinstance(unet, UNet) and not unet.added
    return found[-1] if plain else found[0]


def text_encoders(keys: ServeKeys, form: Form) -> list[tuple[str, Network]]:
    """The text encoders, in the order of the pipeline. Raises Unsupported for one that is not known."""
    models = known().text_encoders
    found = []
    for name in keys.text_encoders if keys.text_encoders is not None else form.text_encoders:
        short = name.rsplit("/", 1)[-1].casefold()
        if short not in models:
            raise Unsupported("serve.extra.text_encoders", f"{name!r} is not supported yet; supported: {', '.join(models)}")
        found.append((short, network_of({"config": models[short]})))
    return found


def autoencoder(keys: ServeKeys, form: Form) -> Network:
    """The autoencoder; a class that is named stands for the one of the pipeline."""
    models = known().autoencoders
    if keys.vae is not None and keys.vae not in (form.autoencoder, models[form.autoencoder]["architectures"][0]):
        raise Unsupported("serve.extra.vae", f"{keys.vae!r} is not the autoencoder of this pipeline, {models[form.autoencoder]['architectures'][0]}")
    return network_of({"config": models[form.autoencoder]})


def decoding(network: Network, sets: str) -> Network:
    """The part of an autoencoder that turns latents into pixels. `sets`: of a video, which remembered frames live (VideoDecoder)."""
    run = next(run for run in network.runs if run.prefix == "decoder")
    layer = replace(run.layer, sets=sets) if isinstance(run.layer, VideoDecoder) else run.layer
    return _alone(network, run.prefix, layer)


@cache
def _alone(network: Network, prefix: str, layer: Any) -> Network:
    run = next(run for run in network.runs if run.prefix == prefix)
    return replace(network, runs=(replace(run, layer=layer),))
