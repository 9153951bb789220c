"""How many GPUs a job has, and which: from the launchers around a command, the scheduler, the container and the environment.

The innermost launcher that counts processes decides; what it does not say (`--nnodes $SLURM_NNODES`) comes from the ones around it. `CUDA_VISIBLE_DEVICES`
counts only where nothing else does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from everybyte.formats.command import Launcher, Word
from everybyte.formats.finding import Finding
from everybyte.formats.place import Given
from everybyte.formats.shell.launchers import value_of

_GPU_NAME = re.compile(
    r"(?<![a-z0-9])(gb200|gb300|b200|b300|h200|h100|h800|h20|gh200|a100|a800|a40|a10g?|a6000|a30|l40s?|l4|v100|t4"
    r"|mi300x|mi250x?|mi325x|mi355x|rtx[_-]?\w+)(?![a-z0-9])",
    re.IGNORECASE,
)
NCCL = frozenset(
    (
        "NCCL_BUFFSIZE",
        "NCCL_NCHANNELS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS",
        "NCCL_CUMEM_ENABLE",
        "NCCL_NVLS_ENABLE",
        "NCCL_PROTO",
        "NCCL_ALGO",
        "NCCL_LL_BUFFSIZE",
        "NCCL_LL128_BUFFSIZE",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_GRAPH_REGISTER",
        "NCCL_LOCAL_REGISTER",
    )
)
"""Variables of NCCL that change what it allocates."""


class Layer(NamedTuple):
    """What one launcher says; each may be unsaid."""

    nodes: Given | None = None
    per_node: Given | None = None
    total: Given | None = None
    gpu: Given | None = None
    unknown: str = ""
    """Why a count that it should say is not known."""
    counts_processes: bool = True
    """It starts one process a GPU, so that its counts are the job's; a scheduler only hands GPUs out."""


class Counted(NamedTuple):
    """Job keys with their values, job keys that cannot be known, and what does not fit together."""

    settings: dict[str, Given]
    missing: dict[str, str]
    findings: tuple[Finding, ...]


def counted(launchers: Sequence[Launcher], environment: Mapping[str, Given], program: Sequence[Word] = ()) -> Counted:
    """GPUs, GPUs a node, the GPU's name and the allocator's settings."""
    layers = [layer for launcher in launchers if (layer := _layer(launcher)) is not None]
    layers += _of_program(program, environment)
    settings: dict[str, Given] = {}
    missing: dict[str, str] = {}
    findings: list[Finding] = []
    gpu = next((layer.gpu for layer in reversed(layers) if layer.gpu is not None), None)
    if gpu is not None:
        settings["hardware.gpu"] = gpu
    memory = next((found for launcher in launchers if launcher.name in ("sbatch", "srun") and (found := _memory(launcher)) is not None), None)
    if memory is not None:
        settings["hardware.host_memory_gib"] = memory
    _gpus(layers, environment, settings, missing, findings)
    _environment(environment, settings)
    return Counted(settings, missing, tuple(findings))


def _gpus(layers: list[Layer], environment: Mapping[str, Given], settings: dict[str, Given], missing: dict[str, str], findings: list[Finding]) -> None:
    """All GPUs of the job and those of a node."""
    nodes = _innermost(layers, "nodes")
    total = _innermost(layers, "total")
    per_node = _innermost(layers, "per_node")
    why = next((layer.unknown for layer in reversed(layers) if layer.unknown), "")
    if total is not None and (per_node is None or _depth(layers, total) >= _depth(layers, per_node)):
        settings["hardware.gpus"] = total
        _check_nodes(layers, total, findings)
        if findings:
            return
        if nodes is not None and nodes.value > 1 and total.value % nodes.value == 0 and _depth(layers, nodes) >= _depth(layers, total) - 1:
            settings["hardware.gpus_per_node"] = Given(total.value // nodes.value, nodes.place)
        elif per_node is not None and per_node.value < total.value:
            settings["hardware.gpus_per_node"] = per_node
        return
    if per_node is not None:
        count = nodes.value if nodes is not None else 1
        unsaid = next((layer.unknown for layer in layers if layer.unknown and layer.nodes is None), "")
        if nodes is None and unsaid:
            missing["hardware.gpus"] = unsaid
        else:
            settings["hardware.gpus"] = Given(per_node.value * count, per_node.place)
        if count > 1 or (nodes is None and unsaid):
            settings["hardware.gpus_per_node"] = per_node
        return
    visible = visible_devices(environment)
    if visible is not None:
        settings["hardware.gpus"] = visible
    elif why:
        missing["hardware.gpus"] = why


def _innermost(layers: list[Layer], what: str) -> Given | None:
    return next((found for layer in reversed(layers) if (found := getattr(layer, what)) is not None), None)


def _depth(layers: list[Layer], given: Given) -> int:
    return next((i for i, layer in enumerate(layers) if given in (layer.nodes, layer.per_node, layer.total)), -1)


def _check_nodes(layers: list[Layer], total: Given, findings: list[Finding]) -> None:
    """Processes that are fewer than the nodes and GPUs around them."""
    for layer in layers:
        if layer.nodes is None or layer.nodes.value <= 1 or (layer.total is not None and layer.total is total):
            continue
        if layer.per_node is None:
            continue
        around = layer.nodes.value * layer.per_node.value
        if around != total.value:
            flag = layer.nodes.place.flag or "nodes"
            message = (
                f"{flag} {layer.nodes.value} with {layer.per_node.value} GPUs each are {around} GPUs, while {total.place.flag} starts {total.value} processes"
            )
            remedy = f"start {around} processes, or ask for fewer nodes"
            findings.append(Finding(id="processes-against-gpus", severity="warning", place=str(total.place), message=message, remedy=remedy))


def _layer(launcher: Launcher) -> Layer | None:
    reader = _READERS.get(launcher.name)
    if reader is not None:
        return reader(launcher)
    if launcher.words and launcher.name not in ("kubectl", "ssh", "enroot", "apptainer", "trtllm-llmapi-launch"):
        return _submit(launcher)
    return None


def _submit(launcher: Launcher) -> Layer | None:
    """A submit tool of one's own: its flags as they are usually called."""
    per_node, _ = _count(launcher, "gpus", "num_gpus", "gpus_per_node")
    nodes, _ = _count(launcher, "num_nodes", "nodes", "nnodes")
    return Layer(nodes=nodes, per_node=per_node, counts_processes=False) if per_node is not None else None


def _count(launcher: Launcher, *flags: str) -> tuple[Given | None, str]:
    """A whole number behind a flag, or why it is not known."""
    word = value_of(launcher.words, *flags)
    if word is None:
        return None, ""
    place = word.place._replace(flag=_flag_of(launcher, flags))
    text = word.text.rpartition(":")[2]
    if text.isdigit():
        return Given(int(text), place), ""
    return None, f"{place.flag} is {word.text}" + (f": {word.unknown}" if word.unknown else "")


def _flag_of(launcher: Launcher, flags: tuple[str, ...]) -> str:
    for word in launcher.words:
        written = word.text.partition("=")[0]
        if written.startswith("-") and written.lstrip("-").replace("-", "_") in flags:
            return written
    return ""


def _torchrun(launcher: Launcher) -> Layer:
    per_node, why = _count(launcher, "nproc_per_node")
    nodes, why_nodes = _count(launcher, "nnodes")
    word = value_of(launcher.words, "nproc_per_node")
    if per_node is None and word is None:
        per_node = Given(1, launcher.words[0].place._replace(flag="torchrun") if launcher.words else _nowhere())
    if nodes is None and not why_nodes and value_of(launcher.words, "nnodes") is None and per_node is not None:
        nodes = Given(1, per_node.place)
    return Layer(nodes=nodes, per_node=per_node, unknown=why or why_nodes)


def _nowhere() -> Any:
    from everybyte.formats.place import COMMAND, Place

    return Place(COMMAND, None, "torchrun")


def _accelerate(launcher: Launcher) -> Layer:
    total, why = _count(launcher, "num_processes", "n")
    nodes, why_nodes = _count(launcher, "num_machines")
    return Layer(nodes=nodes, total=total, unknown=why or why_nodes)


def _deepspeed(launcher: Launcher) -> Layer:
    include = value_of(launcher.words, "include", "i")
    nodes, why_nodes = _count(launcher, "num_nodes")
    if include is not None and not include.unknown:
        place = include.place._replace(flag=_flag_of(launcher, ("include", "i")))
        hosts = include.text.split("@")
        devices = [len([slot for slot in host.partition(":")[2].split(",") if slot]) for host in hosts]
        if all(devices):
            return Layer(nodes=Given(len(hosts), place) if len(hosts) > 1 else nodes, total=Given(sum(devices), place))
    per_node, why = _count(launcher, "num_gpus")
    return Layer(nodes=nodes, per_node=per_node, unknown=why or why_nodes or ("" if per_node else "deepspeed starts a process for each GPU that it sees"))


def _slurm(launcher: Launcher) -> Layer:
    nodes, why_nodes = _count(launcher, "nodes", "N")
    per_node, gpu = None, None
    for flags in (("gpus_per_node",), ("gres",)):
        word = value_of(launcher.words, *flags)
        if word is not None and (word.text.startswith("gpu") or flags != ("gres",)):
            per_node, gpu = _typed(word, launcher, flags)
            break
    total, gpu_of_total = _typed(value_of(launcher.words, "gpus", "G"), launcher, ("gpus", "G"))
    per_task, gpu_of_task = _typed(value_of(launcher.words, "gpus_per_task"), launcher, ("gpus_per_task",))
    tasks, _ = _count(launcher, "ntasks", "n")
    tasks_per_node, _ = _count(launcher, "ntasks_per_node")
    if per_task is not None and per_node is None and total is None:
        if tasks_per_node is not None:
            per_node = Given(per_task.value * tasks_per_node.value, per_task.place)
        elif tasks is not None:
            total = Given(per_task.value * tasks.value, per_task.place)
    if per_node is not None and nodes is None and not why_nodes:
        nodes = Given(1, per_node.place) if launcher.name == "sbatch" else None
    constraint = value_of(launcher.words, "constraint", "C")
    gpu = gpu or gpu_of_total or gpu_of_task or (named_gpu(constraint.text, constraint) if constraint else None)
    return Layer(nodes=nodes, per_node=per_node, total=total, gpu=gpu, unknown=why_nodes, counts_processes=False)


def _typed(word: Word | None, launcher: Launcher, flags: tuple[str, ...]) -> tuple[Given | None, Given | None]:
    """`gpu:a100:4`, `a100:4`, `4`: a count and a name."""
    if word is None:
        return None, None
    place = word.place._replace(flag=_flag_of(launcher, flags))
    for text in word.text.split(","):
        parts = [part for part in text.split(":") if part]
        if flags == ("gres",) and (not parts or parts[0].partition("/")[0] != "gpu"):
            continue
        count = next((int(part) for part in reversed(parts) if part.isdigit()), 1 if flags == ("gres",) else None)
        name = next((part for part in parts if not part.isdigit() and part != "gpu"), "")
        return (Given(count, place) if count is not None else None), (Given(name, place) if named_gpu(name, word) else None)
    return None, None


def named_gpu(text: str, word: Word) -> Given | None:
    """The GPU that a label names, such as `nvidia-gpu-h100` or a Slurm constraint."""
    match = _GPU_NAME.search(text)
    return Given(match[1].casefold().replace("_", "-"), word.place) if match else None


def _memory(launcher: Launcher) -> Given | None:
    word = value_of(launcher.words, "mem")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MGT])B?", word.text, re.IGNORECASE) if word else None
    if word is None or match is None or float(match[1]) == 0:
        return None
    scale = {"M": 1 / 1024, "G": 1, "T": 1024}[match[2].upper()]
    return Given(float(match[1]) * scale, word.place._replace(flag="--mem"))


def _mpirun(launcher: Launcher) -> Layer:
    total, why = _count(launcher, "np", "n")
    per_node, _ = _count(launcher, "npernode", "ppn", "N")
    return Layer(total=total, per_node=per_node, unknown=why)


def _docker(launcher: Launcher) -> Layer | None:
    word = value_of(launcher.words, "gpus")
    if word is None:
        return None
    place = word.place._replace(flag="--gpus") if launcher.name == "docker" else word.place
    text = word.text.strip("\"'")
    devices = re.search(r"device=\"?([\w,-]+)", text)
    count = re.fullmatch(r"(?:count=)?(\d+)", text)
    if devices:
        return Layer(total=Given(len([each for each in devices[1].split(",") if each]), place), counts_processes=False)
    if count:
        return Layer(total=Given(int(count[1]), place), counts_processes=False)
    return Layer(unknown=f"--gpus {text} does not say how many", counts_processes=False)


_READERS: dict[str, Callable[[Launcher], Layer | None]] = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "sbatch": _slurm,
    "srun": _slurm,
    "mpirun": _mpirun,
    "horovodrun": _mpirun,
    "docker": _docker,
    "container": _docker,
    "ray": lambda launcher: None,
}


def _of_program(program: Sequence[Word], environment: Mapping[str, Given]) -> list[Layer]:
    """Programs that start their own processes: `tune run`, `swift`, `run_train.sh`, by their flags and variables."""
    layers = []
    first = [word.text for word in program[:2]]
    if first == ["tune", "run"]:
        own = Launcher("torchrun", tuple(program[2:]))
        if value_of(own.words, "nproc_per_node") is not None:
            layers.append(_torchrun(own))
    per_node = _variable(environment, "NPROC_PER_NODE", "NGPU") or None
    if per_node is not None:
        layers.append(Layer(per_node=per_node, nodes=_variable(environment, "NNODES")))
    return layers


def _variable(environment: Mapping[str, Given], *names: str) -> Given | None:
    for name in names:
        given = environment.get(name)
        if given is not None and str(given.value).isdigit():
            return Given(int(given.value), given.place)
    return None


def visible_devices(environment: Mapping[str, Given]) -> Given | None:
    """How many GPUs `CUDA_VISIBLE_DEVICES` leaves."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        given = environment.get(name)
        text = str(given.value) if given is not None else ""
        if given is not None and re.fullmatch(r"\s*(\w[\w-]*|GPU-[\w-]+)(\s*,\s*[\w-]*)*\s*", text) and text not in ("all", "none", "void"):
            return Given(len([each for each in text.split(",") if each.strip()]), given.place)
    return None


def _environment(environment: Mapping[str, Given], settings: dict[str, Given]) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if name in environment and str(environment[name].value).strip():
            settings["env.alloc_conf"] = Given(str(environment[name].value).strip(), environment[name].place)
    nccl = {name: given for name, given in environment.items() if name in NCCL}
    if nccl:
        first = next(iter(nccl.values()))
        settings["env.nccl"] = Given({name: given.value for name, given in nccl.items()}, first.place)
