"""Accounts for a pipeline of diffusers on one GPU (diffusers 0.42)."""

from __future__ import annotations

import re

from msgspec.structs import replace

from everybyte.basics.dtypes import DTYPES, FP16, FP32
from everybyte.basics.errors import Unsupported
from everybyte.basics.origin import default_of, inferred
from everybyte.catalog.releases import Release, newest, release_in, releases
from everybyte.engines.diffusers.extra import ServeKeys
from everybyte.engines.diffusers.parts import Form, autoencoder, decoding, form_of, text_encoders
from everybyte.engines.diffusers.pipeline import Part, Pipeline
from everybyte.job import Job, Serve
from everybyte.job.extra import section
from everybyte.layers.diffusion.video_vae import GROUP
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels, Packed, Setup
from everybyte.layers.recording.size import Batch, elements
from everybyte.ledger.build import Line, plain
from everybyte.models.count import tensors
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.packed import packed_tensors
from everybyte.rules.serving.weights import packing

NAME = "diffusers"
PLAIN = ("bf16", "fp16", "fp32")
SHRUNK = 8
"""Pixels of an image to one of its latent, along a side."""
FPX_OUT, FPX_IN = 256, 64
FRAMES = 4
"""Frames of a video to one of its latent."""
INT8, FP8 = Packed("int8", skip=()), Packed("fp8", skip=(), group_size=0)
TORCHAO: dict[str, Packed | None] = {
    "none": None,
    "bf16": None,
    "fp16": None,
    **dict.fromkeys(("int8wo", "int8dq", "autoquant"), INT8),
    **dict.fromkeys(("fp8wo", "fp8dq", "fp8dqrow"), FP8),
    "int4wo": Packed("mlx", skip=(), bits=4, group_size=128),
    # 4-bit numbers in bytes, 16-bit scales and zeros of 32 each (int8_dynamic_activation_int4_weight)
    "int4dq": Packed("mlx", skip=(), bits=8, group_size=32),
    **{f"fp{bits}": Packed("mean", skip=(), bits=bits) for bits in (3, 4, 5, 6)},
}
"""What torchao (0.5) makes of a linear layer's weight, by diffusers-torchao's words; `fp6_e3m2` is `fp6`."""


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one call of a pipeline."""
    assert job.serve is not None
    serve, choices = job.serve, ResolvedSettings()
    keys = section(serve.extra, ServeKeys, "serve.extra")
    _refuse(serve)
    name, form = form_of(network, keys)
    choices.note("serve.extra.pipeline", name, inferred("the model's class") if keys.pipeline is None else "the user")
    images = choices.pick("serve.sequences", serve.sequences or keys.batch_size, 1, default_of(NAME))
    height, width = keys.height or form.height, keys.width or form.width
    frames = keys.num_frames or form.num_frames
    choices.assume(_said(name, images, height, width, frames if form.num_frames > 1 else 0))
    kind = network.dtype if network.dtype.bits == 16 else DTYPES["bf16"]
    if serve.weights is not None and serve.weights.format in PLAIN:
        kind = DTYPES[serve.weights.format]
    packed = _packed(serve, keys)
    setup = Setup(weights=kind, grad=False, trainable=(), kernels=Kernels(loss="logits"))
    parts = _parts(network, keys, form, setup, packed, (images, height, width, frames), choices, release_of(serve.version))
    bill = Pipeline(tuple(parts), *_beside(parts, images, height, width, frames, form), keys.offload, device.compute_capability)
    weights = sum(line.bytes for part in parts for line in part.weights())
    loaded = bill.totals()["load"]
    host = tuple(line for part in parts for line in part.weights()) if keys.offload != "none" else ()
    return Account((Rank(bill, host=host),), choices, figures={"weights": weights, "static.allocated": loaded})


def release_of(text: str | None) -> Release:
    """The release that a job states; a build of main of some month (`main 2024-09`) is counted as the last release before."""
    month = re.search(r"\bmain (\d{4}-\d{2})", text or "")
    if month is None:
        return release_in(text, NAME)
    dated = [release for known in releases(NAME).known if (release := Release(NAME, known.number)).value("published") <= month[1]]
    return dated[-1] if dated else newest(NAME)


def _said(name: str, images: int, height: int, width: int, frames: int) -> str:
    what = f"{frames} frames of " if frames else ""
    return f"{name} makes {images} at once, {what}{height} x {width}; another size: extra.height, extra.width, extra.num_frames, extra.batch_size"


def _refuse(serve: Serve) -> None:
    mesh = serve.mesh
    if mesh is not None and any((v or 1) > 1 for v in (mesh.tp, mesh.pp, mesh.ep, mesh.dp, mesh.cp)):
        raise Unsupported("serve.mesh", "a pipeline over several GPUs is not supported yet; supported: one GPU")


def _packed(serve: Serve, keys: ServeKeys) -> Packed | None:
    """How linear layers are quantised. Raises Unsupported for a word of torchao that is not known."""
    if keys.torchao is not None:
        word = keys.torchao.casefold().partition("_")[0]
        if word not in TORCHAO:
            raise Unsupported("serve.extra.torchao", f"{keys.torchao!r} is not supported yet; supported: {', '.join(TORCHAO)}")
        return TORCHAO[word]
    if serve.weights is None or serve.weights.format is None or serve.weights.format in PLAIN:
        return None
    return replace(packing(serve.weights), skip=())


def _fitted(packed: Packed | None, network: Network) -> Packed | None:
    """A format with what it leaves alone: torchao's small floats take matrices of a multiple of 256 outputs and of 64 inputs (quantization/quant_api.py
    fpx_weight_only)."""
    if packed is None or packed.format != "mean":
        return packed
    matrices = [p for p in tensors(network, Setup(grad=False, trainable=())) if p.name.endswith(".weight") and len(p.dims) == 2]
    misfits = {p.name.removesuffix(".weight") for p in matrices if p.dims[0].size % FPX_OUT or p.dims[1].size % FPX_IN}
    fitting = {p.name.removesuffix(".weight") for p in matrices if not (p.dims[0].size % FPX_OUT or p.dims[1].size % FPX_IN)}
    return replace(packed, skip=tuple(sorted(misfits - fitting)))


def _parts(
    network: Network,
    keys: ServeKeys,
    form: Form,
    setup: Setup,
    packed: Packed | None,
    size: tuple[int, int, int, int],
    choices: ResolvedSettings,
    release: Release,
) -> list[Part]:
    """The models of the pipeline, with what they are given."""
    images, height, width, frames = size
    quantized = keys.quantized if keys.quantized is not None else (form.quantized if keys.torchao is not None else ("transformer",))
    guides = keys.guidance if keys.guidance is not None else form.guides
    prompt = keys.max_sequence_length or form.prompt_tokens
    latent = (height // SHRUNK) * (width // SHRUNK)
    latent_frames = (frames - 1) // FRAMES + 1 if form.num_frames > 1 else 1
    found = []
    for name, encoder in text_encoders(keys, form):
        of = replace(setup, packed=_fitted(packed, encoder) if "text_encoder" in quantized else None, single=True)
        tokens = min(prompt, encoder.max_positions or prompt)
        found.append(Part(name, "prefill", encoder, encoder, of, Batch(1, tokens, tokens)))
    batch = images * (2 if guides else 1)
    tokens = latent_frames * latent // form.patch**2
    of = replace(setup, packed=_fitted(packed, network) if "transformer" in quantized else None, single=batch == 1)
    more = _joined(network, of) if keys.fuse_qkv else ()
    found.append(Part("transformer" if form.patch > 1 else "unet", "forward", network, network, of, Batch(batch, tokens, tokens, prompt), more))
    vae = autoencoder(keys, form)
    wide = form.upcasts and setup.weights == FP16
    if wide:
        choices.assume("the autoencoder runs in fp32, as its force_upcast asks for")
    if keys.compile_vae:
        choices.assume("a compiled autoencoder is counted as it runs uncompiled; measured ones took 2 GiB more or less at 16 images")
    at_once = 1 if keys.vae_slicing else images
    of = replace(setup, weights=FP32 if wide else setup.weights, single=at_once == 1)
    group = latent * min(latent_frames, GROUP) if form.num_frames > 1 else latent
    sets = "new" if latent_frames <= GROUP + latent_frames % GROUP else "old and new"
    decodes = decoding(vae, "kept by modules" if release.has("modules_keep_frames") and sets != "new" else sets)
    found.append(Part("vae", "decode", vae, decodes, of, Batch(at_once, group, group)))
    return found


PROJECTIONS = ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj")


def _joined(network: Network, setup: Setup) -> tuple[Line, ...]:
    """`fuse_qkv_projections`: joined weights are made beside those of the single projections, which stay (models/attention_processor.py)."""
    total = 0
    for p in tensors(network, setup):
        if p.name.rsplit(".", 2)[-2:][0] in PROJECTIONS and p.name.endswith(".weight"):
            rows, cols = (d.size for d in p.dims)
            total += sum(packed_tensors(setup.packed, rows, cols)) if p.packed and setup.packed else p.dtype.nbytes(elements(p.dims)[0])
    return (Line("weights/joined projections", "parameter", total, plain("sum of to_q, to_k, to_v", P=total), "diffusers fuse_qkv_projections", "formula"),)


def _beside(parts: list[Part], images: int, height: int, width: int, frames: int, form: Form) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """(latents and prompt states, frames that are decoded before the last group)."""
    denoiser = next(part for part in parts if part.phase == "forward")
    kind = denoiser.setup.weights
    deep = denoiser.network.stem_dims[-1].size if denoiser.network.stem_dims else denoiser.network.runs[0].dims[-1].size
    latents = kind.nbytes(images * denoiser.batch.s * deep)
    wide = max((part.network.hidden for part in parts if part.phase == "prefill"), default=0)
    prompt = kind.nbytes(denoiser.batch.b * denoiser.batch.m * wide)
    lines = (
        Line("input/latents", "input", latents, plain("k·b·s·C", k=int(kind.bits) // 8, b=images, s=denoiser.batch.s, C=deep), form.source),
        Line("input/prompt states", "input", prompt, plain("k·b·m·h", k=int(kind.bits) // 8, b=denoiser.batch.b, m=denoiser.batch.m, h=wide), form.source),
    )
    before = max(frames - GROUP * FRAMES, 0) if form.num_frames > 1 else 0
    size = parts[-1].setup.weights.nbytes(images * before * height * width * 3)
    formula = plain("k·3·b·f·H·W", k=int(parts[-1].setup.weights.bits) // 8, b=images, f=before, H=height, W=width)
    return lines, (Line("activation/decoded frames", "activation", size, formula, "diffusers autoencoder_kl_cogvideox.py _decode"),) if before else ()
