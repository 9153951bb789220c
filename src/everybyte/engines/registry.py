"""Which folder answers which framework or serving engine."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from everybyte.basics.errors import Unsupported
from everybyte.catalog.ranges import Kind
from everybyte.job import Job, Serve
from everybyte.job.extra import Section
from everybyte.job.framework import SEVERAL, TrainerKeys, trainer_of, with_own_framework
from everybyte.layers.network import Network
from everybyte.rules.accounting.account import Account, Device

if TYPE_CHECKING:
    from everybyte.rules.accounting.known_keys import Unread

TRAIN: dict[str, str] = {
    "pytorch": "pytorch",
    "accelerate": "pytorch",
    "nemo-automodel": "pytorch",
    "transformers": "transformers",
    "trl": "transformers",
    "axolotl": "transformers",
    "llama-factory": "transformers",
    "unsloth": "transformers",
    "litgpt": "litgpt",
    "torchtune": "torchtune",
    "torchtitan": "torchtitan",
    "nanogpt": "nanogpt",
    "textbook": "textbook",
    "megatron": "megatron",
    "nemo": "megatron",
    "deepspeed": "deepspeed",
    "prime-rl": "prime_rl",
    "xtuner": "xtuner",
}
"""framework -> folder. One that runs the trainers of several (`job.framework.SEVERAL`) is answered by the folder of the trainer."""

JUDGED_WITH = {"prime_rl": "pytorch", "xtuner": "pytorch"}
"""Folders with few measured runs -> the one whose runs tell how far off their answers are."""

PREFERENCE = ("transformers",)
"""Folders that know train.extra.rlhf_type."""

SERVE: dict[str, str] = {
    "transformers": "transformers",
    "sglang": "sglang",
    "vllm": "vllm",
    "tensorrt-llm": "tensorrt_llm",
    "tgi": "tgi",
    "lmdeploy": "lmdeploy",
    "exllama": "exllama",
    "mlx": "mlx",
    "llama.cpp": "llamacpp",
    "ollama": "llamacpp",
    "diffusers": "diffusers",
}
"""engine -> folder."""
SERVE_TABLES = {"transformers": "transformers-serve"}
"""Engine -> table of its keys, where a training framework has the same name."""


def folder_of(job: Job) -> tuple[str, str]:
    """(`train` or `serve`, folder whose measured runs a job is judged by). Raises Unsupported for a framework or engine that is not answered yet."""
    section, folder = engine_of(with_own_framework(job))
    return section, JUDGED_WITH.get(folder, folder)


def engine_of(job: Job) -> tuple[str, str]:
    """(`train` or `serve`, folder) of a job. Raises Unsupported for a framework or engine that is not answered yet."""
    if job.train is not None:
        section, name, table, path = "train", trainer_of(job.train), TRAIN, "train.framework"
    else:
        assert job.serve is not None
        section, name, table, path = "serve", server_of(job.serve), SERVE, "serve.engine"
    folder = table.get(name)
    if folder is None:
        known = sorted((*table, SEVERAL)) if section == "train" else sorted(table)
        raise Unsupported(path, f"{name!r} is not supported yet; supported: {', '.join(known)}")
    return section, folder


def server_of(serve: Serve) -> str:
    """The engine of a server; transformers with `extra.library: diffusers` is diffusers."""
    name = serve.engine or "transformers"
    return "diffusers" if name == "transformers" and (serve.extra or {}).get("library") == "diffusers" else name


def runs_on_host(job: Job) -> bool:
    """Whether the engine of a job can do without a GPU."""
    return job.serve is not None and job.serve.engine in ("llama.cpp", "ollama")


def runs_on_several(job: Job) -> bool:
    """Whether a job is spread over GPUs: such runs are measured and learnt from apart."""
    return ((job.hardware.gpus if job.hardware else None) or 1) > 1


def kind_of(job: Job) -> Kind:
    """By whose measured runs a job is judged. Raises Unsupported for a framework or engine that is not answered yet."""
    moved = job.train.offload if job.train is not None else None
    return Kind(
        *folder_of(job),
        several=runs_on_several(job),
        offloads=moved is not None and any(where not in (None, "none") for where in (moved.optimizer, moved.params)),
    )


def account(job: Job, network: Network, device: Device) -> Account:
    """Lets the engine of a job account for it. Raises Unsupported for one that is not answered yet, BadInput for a key of `extra` that it does not have."""
    job = with_own_framework(job)
    section, folder = engine_of(job)
    unread = unread_of(job)
    engine: Any = import_module(f"everybyte.engines.{folder}.{section}")
    found: Account = engine.account(job, network, device)
    if unread:
        from everybyte.rules.accounting.known_keys import tell  # most jobs have none

        tell(unread, found.choices)
    return found


def sections_of(folder: str, section: str) -> tuple[type[Section], ...]:
    """The keys of `extra` that an engine reads; none where its folder has no module of them."""
    name = f"everybyte.engines.{folder}.extra"
    if find_spec(name) is None:
        return ()
    module = import_module(name)
    found: tuple[type[Section], ...] = module.SERVE_SECTIONS if (section, folder) == ("serve", "transformers") else module.SECTIONS
    return found


def unread_of(job: Job) -> tuple[Unread, ...]:
    """The keys of `extra` that the engine of a job does not read. Raises BadInput for one that its framework does not have, with the nearest."""
    job = with_own_framework(job)
    part = job.train if job.train is not None else job.serve
    if part is None or not part.extra:
        return ()
    from everybyte.rules.accounting.known_keys import unread_keys  # most jobs have none

    section, folder = engine_of(job)
    if job.train is not None and folder not in PREFERENCE and part.extra.get("rlhf_type"):
        from everybyte.rules.from_job.preference import refuse_preference

        refuse_preference(job.train, job.train.framework or "pytorch")
    sections = sections_of(folder, section)
    if job.train is not None:
        name: str = job.train.framework or "pytorch"
        sections = (*sections, TrainerKeys) if name == SEVERAL else sections
    else:
        assert job.serve is not None
        engine = server_of(job.serve)
        name = SERVE_TABLES.get(engine, engine)
    return unread_keys(part.extra, sections, (name, str(part.extra.get("framework", ""))), f"{section}.extra")
