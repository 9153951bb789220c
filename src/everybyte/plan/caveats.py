"""What a reader must know beside the verdict: parts that are not counted, layers that run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.engines.registry import server_of
from everybyte.job import Job
from everybyte.job.pattern import model_of
from everybyte.layers.network import Network
from everybyte.ledger.answer import Answer
from everybyte.models.source import network_of
from everybyte.plan.start.kinds import is_image
from everybyte.plan.start.taken import get

PARTS_OF_PIPELINE = {"AutoencoderKL": "the denoiser and the text encoders"}
"""Family of a pipeline's part -> its other parts, where they are not text encoders and VAE."""


def caveats(job: Job, answer: Answer) -> tuple[str, ...]:
    """One sentence each, with the way out."""
    network = network_of(model_of(job), "model")
    return (*_missing_parts(job, network), *_on_the_cpu(answer))


def _missing_parts(job: Job, network: Network) -> Iterator[str]:
    if not is_image(network) or (job.serve is not None and server_of(job.serve) == "diffusers"):
        return
    others = PARTS_OF_PIPELINE.get(network.family, "text encoders and VAE")
    way_out = "encode prompts and images beforehand, or add their weights" if job.train is not None else "move them off the GPU, or add their weights"
    yield f"one part of the pipeline alone: {others} are not counted; {way_out}"


def _on_the_cpu(answer: Answer) -> Iterator[str]:
    on_gpu, layers = get(answer.job, "serve.gpu_layers"), answer.model.layers
    if isinstance(on_gpu, int) and 0 <= on_gpu < layers:
        yield f"partial offload: {on_gpu} of {layers} layers are on the GPU, the others run on the CPU, which is much slower"
