"""Which framework or engine a job means that names none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.basics.origin import inferred
from everybyte.catalog.gpus import find_gpu
from everybyte.estimator import accounted
from everybyte.job import Job
from everybyte.layers.network import Network
from everybyte.plan.start.kinds import generates_text, is_image
from everybyte.plan.start.taken import get, states, with_settings

MEGATRON_KEYS = ("train.mesh.tp", "train.mesh.pp", "train.mesh.ep", "train.mesh.etp", "train.mesh.sp", "train.pipeline")
MEGATRON_SHARDINGS = ("distributed-optimizer", "megatron-fsdp")
LLAMACPP_KEYS = ("serve.gpu_layers", "serve.ubatch", "serve.parallel_slots", "serve.swa_full", "serve.unified_kv", "serve.tensor_split")
GGUF_WORDS = ("q2_", "q3_", "q4_", "q5_", "q6_", "q8_", "iq", "tq")
"""How formats begin that llama.cpp alone loads."""


def frameworks(raw: Mapping[str, Any], network: Network) -> Iterator[tuple[str, str]]:
    """(framework, origin), the likeliest first."""
    axis = next((key for key in MEGATRON_KEYS if states(raw, key)), None)
    if axis is not None:
        yield "megatron", inferred(f"{axis} is an axis of Megatron")
    if get(raw, "train.sharding") in MEGATRON_SHARDINGS:
        yield "megatron", inferred(f"train.sharding {get(raw, 'train.sharding')} is Megatron's")
    if is_image(network):
        yield "pytorch", inferred("diffusers' training scripts are plain PyTorch loops")
    if generates_text(network):
        yield "trl", inferred("language models are fine-tuned with TRL's trainer, unless the job says another")
    yield "transformers", inferred("models of transformers are trained with its Trainer, unless the job says another")
    yield "pytorch", inferred("a plain PyTorch loop, unless the job says another")


def engines(raw: Mapping[str, Any], network: Network) -> Iterator[tuple[str, str]]:
    """(engine, origin), the likeliest first."""
    word, model = str(get(raw, "serve.weights.format") or "").casefold(), raw.get("model")
    own = next((key for key in LLAMACPP_KEYS if states(raw, key)), None)
    if own is not None:
        yield "llama.cpp", inferred(f"{own} is a setting of llama.cpp")
    if word.startswith(GGUF_WORDS) or (isinstance(model, str) and model.casefold().endswith(".gguf")):
        yield "llama.cpp", inferred(f"{word or 'a .gguf file'} is a format of llama.cpp")
    if get(raw, "hardware.gpus") == 0:
        yield "llama.cpp", inferred("no GPU: llama.cpp runs on the CPU")
    if word in ("exl2", "exl3"):
        yield "exllama", inferred(f"{word} is a format of ExLlama")
    if _is_apple(get(raw, "hardware.gpu")):
        yield "mlx", inferred("MLX is the engine of Apple's GPUs")
    if not generates_text(network):
        yield "transformers", inferred("models that are no language models run with their own library")
    yield "vllm", inferred("vLLM, unless the job says another")
    yield "transformers", inferred("transformers' generate(), unless the job says another")


def _is_apple(gpu: object) -> bool:
    try:
        return isinstance(gpu, str) and find_gpu(gpu).vendor.casefold() == "apple"
    except BadInput:
        return False


def first_answered(job: Job, key: str, candidates: Iterator[tuple[str, str]], filled: Callable[[Job], Job]) -> tuple[Job, str]:
    """The job with the first candidate that answers it once it is `filled` in, and the origin. Raises the refusal of the likeliest where none does."""
    likeliest: BadInput | None = None
    for word, origin in candidates:
        named = with_settings(job, {key: word})
        try:
            accounted(filled(named))
        except BadInput as refused:
            likeliest = likeliest or refused
            if not refused.path.startswith(("train.", "serve.", "model")):
                raise
            continue
        return named, origin
    assert likeliest is not None
    raise likeliest
