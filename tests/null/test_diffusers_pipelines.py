"""Pipelines of diffusers: text encoders, denoiser, autoencoder."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import Unsupported
from everybyte.basics.units import GiB
from everybyte.engines.diffusers.extra import ServeKeys
from everybyte.engines.diffusers.parts import autoencoder, known, text_encoders
from everybyte.models.count import parameter_count

FLUX = "black-forest-labs/FLUX.1-dev::transformer"


def job(model: str = FLUX, engine: str = "diffusers", weights: str = "bf16", **extra: Any) -> dict[str, Any]:
    """A pipeline on one H100."""
    return {"model": model, "hardware": {"gpu": "h100-80gb"}, "serve": {"engine": engine, "weights": weights, "extra": extra}}


@pytest.mark.parametrize(("images", "measured"), [(1, 33.851), (4, 39.490), (8, 47.509)])
def test_flux_with_everything_resident(images: int, measured: float) -> None:
    """diffusers-torchao's table for FLUX.1-dev in bf16 (1024 x 1024, H100): 31.438 GiB after loading, and the peak of the autoencoder for each batch."""
    figures = estimate(job(batch_size=images)).figures
    assert figures["static.allocated"] / GiB == pytest.approx(31.438, rel=0.001)
    assert figures["peak.allocated"] / GiB == pytest.approx(measured, rel=0.015)


def test_transformers_with_the_library_diffusers_is_diffusers() -> None:
    """`extra.library: diffusers` and `engine: diffusers` say the same."""
    ours, theirs = estimate(job()), estimate(job(engine="transformers", library="diffusers"))
    assert ours.figures == theirs.figures


def test_one_model_at_a_time() -> None:
    """With model offload the peak has the denoiser's weights alone, its latents and its working memory; layer by layer there is less still; both keep the
    weights in host memory."""
    whole, model, layer = (estimate(job(offload=word)) for word in ("none", "model", "sequential"))
    assert whole.figures["peak.allocated"] - model.figures["peak.allocated"] > 9 * GiB
    assert layer.figures["peak.allocated"] < 5 * GiB
    assert model.host["bytes"] == layer.host["bytes"] > 31 * GiB


def test_slicing_decodes_one_image_at_a_time() -> None:
    """The autoencoder's share of the peak no longer grows with the batch."""
    one, sliced = estimate(job(batch_size=1)).figures, estimate(job(batch_size=4, vae_slicing=True)).figures
    assert sliced["peak.allocated"] - one["peak.allocated"] < GiB


@pytest.mark.parametrize("name", known().pipelines)
def test_every_pipeline_has_its_models(name: str) -> None:
    """Text encoders and autoencoder of each pipeline are built from their configs."""
    form = known().pipelines[name]
    assert all(parameter_count(network) > 10**8 for _, network in text_encoders(ServeKeys(), form))
    assert parameter_count(autoencoder(ServeKeys(), form)) > 8 * 10**7


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ({"pipeline": "KandinskyPipeline"}, r"serve\.extra\.pipeline"),
        ({"pipeline": "CogVideoXPipeline"}, r"serve\.extra\.pipeline"),
        ({"text_encoders": ["bert"]}, r"serve\.extra\.text_encoders"),
        ({"vae": "AutoencoderDC"}, r"serve\.extra\.vae"),
        ({"torchao": "int2"}, r"serve\.extra\.torchao"),
    ],
)
def test_refusals_name_the_key(extra: dict[str, Any], path: str) -> None:
    """What is not known is refused by its key, with what is."""
    with pytest.raises(Unsupported, match=path):
        estimate(job(**extra))


def test_a_language_model_is_no_pipeline() -> None:
    """The model is named, and what pipelines run."""
    with pytest.raises(Unsupported, match="FluxTransformer2DModel"):
        estimate(job("meta-llama/Meta-Llama-3.1-8B"))
