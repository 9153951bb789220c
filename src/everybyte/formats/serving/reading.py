"""What all serving engines share on the way from flags to a job: the model, number formats, GPUs, the environment, and what is told at the end."""

from __future__ import annotations

import re
from typing import Any

from everybyte.formats.bag import normal
from everybyte.formats.command import Command, Word
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given
from everybyte.formats.serving import rules
from everybyte.formats.serving.engine_reading import Reading
from everybyte.formats.serving.flag_table import flag_table, words
from everybyte.formats.values import is_placeholder, number

QUIET_VARIABLES = re.compile(
    r"(HF_|HUGGING|TRANSFORMERS_|TOKENIZERS_|OMP_|MKL_|WANDB_|PATH$|HOME$|USER$|LD_|PYTHON|LC_|LANG|TZ$|SLURM_|MASTER_|NODE_RANK|WORLD_SIZE|RANK$|LOCAL_RANK|VLLM_LOGGING|VLLM_HOST|VLLM_PORT"
    r"|VLLM_CONFIG_ROOT|VLLM_CACHE_ROOT|VLLM_ASSETS|VLLM_XLA|VLLM_TARGET|VLLM_PLUGINS|VLLM_TRACE|VLLM_ENGINE_READY|VLLM_RINGBUFFER|VLLM_IMAGE_FETCH"
    r"|VLLM_API_KEY|VLLM_NO_USAGE|VLLM_WORKER_MULTIPROC|VLLM_RPC|VLLM_DO_NOT_TRACK|VLLM_CONFIGURE_LOGGING|CUDA_DEVICE_ORDER|NVIDIA_DRIVER|GLOO_|UCX_|NCCL_|CUDA_HOME|GPU_|PORT$|HOST$|RAY_|DG_JIT)"
)
"""Variables without effect on memory."""


def of_command(engine: str, file: str, command: Command, skip: int, context: Context) -> Reading:
    """The flags of a command; `skip` is the number of words that name the program."""
    draft = JobDraft(engine)
    table = flag_table(file)
    bag, positional = table.bag_of(command.words[skip:], draft)
    draft.findings += command.findings
    draft.state("serve.engine", engine, command.place)
    _version(draft, context)
    return Reading(engine, draft, table, bag, positional, command, command.env)


def _version(draft: JobDraft, context: Context) -> None:
    """The version that was asked for, where the command or its image says none."""
    if context.version is not None:
        draft.infer("serve.version", context.version, "--framework-version")


def of_document(engine: str, file: str, document: Document, context: Context) -> Reading:
    """The keys of a file; nested keys are written with points."""
    draft = JobDraft(engine)
    table = flag_table(file)
    draft.infer("serve.engine", engine, "its names of settings")
    _version(draft, context)
    return Reading(engine, draft, table, table.settled(_flat(document), draft))


def _flat(document: Document) -> dict[str, Given]:
    """The keys of a mapping, normal and flat; a mapping is also there as a whole, for flags that take one."""
    found: dict[str, Given] = {}

    def walk(tree: dict[str, Any], path: str, written: str) -> None:
        for key, value in tree.items():
            name = f"{path}.{normal(str(key))}" if path else normal(str(key))
            where = f"{written}.{key}" if written else str(key)
            place = document.place(where)
            if isinstance(value, dict):
                walk(value, name, where)
            else:
                found[name] = Given(value, place)

    walk(document.value, "", "")
    return found


def with_file(reading: Reading, document: Document, *, wins: bool = False) -> Reading:
    """The reading with the keys of a file beneath those of the command line, or above them if the file `wins`."""
    of_file = reading.table.settled(_flat(document), reading.draft)
    return reading._replace(bag=of_file.over(reading.bag) if wins else reading.bag.over(of_file))


def model(reading: Reading, given: Given | None, reason: str = "") -> None:
    """The model that a word names, with what cannot be known of it."""
    draft = reading.draft
    if given is None or given.value is None:
        return
    name = str(given.value).strip()
    if is_placeholder(name) or not name:
        draft.miss("model", f"{name} waits to be filled in" + (f" ({reason})" if reason else ""))
        return
    draft.state("model", name, given.place)


def model_of_word(reading: Reading, word: Word | None) -> None:
    """The model that stands in the command as a word of its own."""
    if word is None:
        return
    gone = word.unknown and word.text.startswith("$") and "/" not in word.text and "." not in word.text
    if gone or is_placeholder(word.text) or (word.unknown and word.text.startswith("<")):
        reading.draft.miss("model", word.unknown or f"{word.text} waits to be filled in")
        return
    reading.draft.state("model", word.text, word.place)


def weights(reading: Reading) -> None:
    """`--quantization` and `--dtype`: the format of the weights."""
    draft, bag = reading.draft, reading.bag
    packed, dtype = bag.take("quantization"), bag.take("dtype")
    if packed is not None:
        known = words()["weights"].get(str(packed.value).casefold())
        if known is None:
            draft.find(
                "unknown-quantization", "warning", packed.place, f"{packed.value} is no quantisation that is known here; the checkpoint's own is assumed"
            )
        elif known != "-":
            draft.state("serve.weights.format", known, packed.place)
        else:
            draft.state("serve.extra.quantization", str(packed.value), packed.place)
    if dtype is None or str(dtype.value).casefold() == "auto":
        return
    word = words()["dtype"].get(str(dtype.value).casefold())
    if word is None:
        packed_dtype = words()["weights"].get(str(dtype.value).casefold())
        if packed_dtype:
            draft.state("serve.weights.format", packed_dtype, dtype.place)
            return
        draft.find("impossible-value", "error", dtype.place, f"--dtype {dtype.value} is none of half, float16, bfloat16, float, float32, auto")
        return
    if packed is None and "serve.weights.format" not in draft and not _packed_name(draft):
        draft.state("serve.weights.format", word, dtype.place)
    else:
        draft.state("serve.extra.dtype", str(dtype.value), dtype.place)


def _packed_name(draft: JobDraft) -> bool:
    """Whether the model's name says that its weights are packed: then --dtype is what they are computed in."""
    from everybyte.formats.names import packed_by_name

    name = draft.value("model")
    return isinstance(name, str) and packed_by_name(name) is not None


def gpus(reading: Reading, count: int | None, reason: str, *, stated: bool) -> None:
    """The GPUs that the engine uses by its own flags. Where it says none and its surroundings cannot tell, nothing is assumed."""
    if count is None:
        reading.draft.miss("hardware.gpus", "a parallel size is not known")
        return
    missing = reading.command.missing if reading.command is not None else {}
    if stated or (reading.command is not None and "hardware.gpus" not in missing):
        reading.draft.infer("hardware.gpus", count, reason)


def finished(reading: Reading) -> list[JobDraft]:
    """The job, with what launchers and the environment say and what nobody read."""
    draft, command = reading.draft, reading.command
    reading.table.read(reading.bag, draft)
    _surroundings(reading)
    if command is not None:
        mine = draft.value("hardware.gpus")
        around = command.settings.get("hardware.gpus")
        draft.take_given(command.settings)
        if around is not None and mine is not None and around.value != mine:
            _devices(reading, mine, around)
        for key, why in command.missing.items():
            draft.miss(key, why)
    from everybyte.formats.names import settle_model

    settle_model(draft)
    draft.report(reading.bag)
    rules.check(reading)
    return [draft]


def _devices(reading: Reading, mine: int, around: Given) -> None:
    """Processes against devices: what the engine's own flags use and what it was given."""
    draft = reading.draft
    who = around.place.flag or "the container"
    if around.value > mine:
        remedy = "set the tensor-parallel size to the number of GPUs, or start one engine a GPU"
        draft.find(
            "idle-gpus", "warning", around.place, f"{who} gives {around.value} GPUs, and the engine uses {mine}", remedy, {"serve.mesh.tp": around.value}
        )
        return
    nodes = number(reading.bag.value("nnodes"))
    in_pods = reading.command is not None and any(launcher.name == "container" for launcher in reading.command.launchers)
    if mine % around.value == 0 and (in_pods or (isinstance(nodes, int) and around.value * nodes >= mine)):
        draft.state("hardware.gpus", mine, around.place)
        draft.state("hardware.gpus_per_node", around.value, around.place)
        message = f"the engine needs {mine} GPUs and a node has {around.value}: it runs on {mine // around.value} nodes"
        draft.find("several-nodes", "note", around.place, message)
        return
    message = f"the engine needs {mine} GPUs, and {who} gives {around.value}: it will not start"
    draft.find("too-few-gpus", "error", around.place, message, "give it as many GPUs as the product of its parallel sizes")


def _surroundings(reading: Reading) -> None:
    """Variables that the engine reads: kept under their own names, told if they have no meaning here."""
    draft = reading.draft
    prefixes = {"vllm": ("VLLM_",), "sglang": ("SGLANG_", "SGL_"), "tensorrt-llm": ("TRTLLM_",)}.get(reading.engine, ())
    for name, given in reading.environment.items():
        if name.startswith(prefixes) and prefixes and not QUIET_VARIABLES.match(name):
            value = number(given.value)
            draft.state(f"serve.extra.{name}", given.value if value is None else value, given.place)


def product(reading: Reading, *keys: str) -> tuple[int | None, bool]:
    """The product of parallel sizes that the bag states, and whether it states any. None if one of them is not known."""
    total, stated = 1, False
    for key in keys:
        given = reading.bag.peek(key)
        found = number(given.value) if given is not None else None
        if isinstance(found, int) and found > 0:
            total, stated = total * found, True
        elif given is not None or reading.bag.place(key) is not None:
            return None, True
    return total, stated
