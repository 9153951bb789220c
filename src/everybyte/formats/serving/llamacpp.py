"""llama.cpp: `llama-server`, `llama-cli`, `llama-bench`, their LLAMA_ARG_ variables, and the fork ik_llama.cpp."""

from __future__ import annotations

from everybyte.formats.bag import Bag
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.names import packed_by_name
from everybyte.formats.place import Given
from everybyte.formats.serving.engine_reading import Reading
from everybyte.formats.serving.reading import finished, model, of_command, of_document
from everybyte.formats.values import boolean, whole

FILE = "llamacpp.csv"
VARIABLES = "LLAMA_ARG_"
_OTHER_NAMES = {"batch": "batch_size", "ubatch": "ubatch_size", "n_parallel": "parallel", "kv_split": "kv_unified", "hfd_repo": "hf_repo_draft"}


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`llama-server -m model.gguf -c 8192 ...`."""
    skip = 2 if len(command.words) > 1 and command.words[1].text in ("--server", "-s", "--run", "server", "serve") else 1
    reading = of_command("llama.cpp", FILE, command, skip, context)
    reading = reading._replace(bag=reading.bag.over(_variables(reading)))
    return _read(reading)


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """The flags of the server as keys."""
    return _read(of_document("llama.cpp", FILE, document, context))


def _variables(reading: Reading) -> Bag:
    """`LLAMA_ARG_CTX_SIZE=8192`: the same flags by the environment."""
    found = {}
    for name, given in reading.environment.items():
        if name.startswith(VARIABLES):
            key = name[len(VARIABLES) :].casefold()
            found[_OTHER_NAMES.get(key, key)] = given
    return reading.table.settled(found, reading.draft)


def _read(reading: Reading) -> list[JobDraft]:
    draft, bag = reading.draft, reading.bag
    _model(reading)
    context = bag.take("ctx_size")
    if context is not None:
        count = whole(context.value)
        if count:
            draft.state("serve.context", count, context.place)
        elif count is None:
            draft.find("impossible-value", "error", context.place, f"-c {context.value} is no number of tokens")
    flash = bag.take("flash_attn")
    if flash is not None:
        word = str(flash.value).casefold()
        if word not in ("auto", "-1"):
            draft.state("serve.attention", "flash" if flash.value is True or boolean(flash.value) else "eager", flash.place)
    projector = bag.take("mmproj")
    if projector is not None:
        draft.state("serve.multimodal", True, projector.place)
        draft.state("serve.extra.mmproj", projector.value, projector.place)
    device = bag.take("device")
    if device is not None:
        devices = [name for name in str(device.value).split(",") if name]
        draft.state("hardware.gpus", 0 if devices == ["none"] else len(devices), device.place)
    forked = [flag for flag in reading.table.flags.values() if flag.job.startswith("fork:") and bag.peek(flag.name) is not None]
    if forked:
        draft.infer("serve.extra.fork", "ik_llama.cpp", f"only that fork has --{forked[0].name.replace('_', '-')}")
    _fork_of_program(reading)
    return finished(reading)


def _fork_of_program(reading: Reading) -> None:
    if reading.command is not None and "ik_llama" in reading.command.program:
        reading.draft.infer("serve.extra.fork", "ik_llama.cpp", "the path of the program")


def _model(reading: Reading) -> None:
    """A file, or a repository with a quantisation behind the colon; `--hf-file` names the file inside."""
    bag, draft = reading.bag, reading.draft
    file, repository, inside, url = bag.take("model"), bag.take("hf_repo"), bag.take("hf_file"), bag.take("model_url")
    given = file or repository or url
    model(reading, given)
    if given is None:
        _of_positional(reading)
        return
    said = inside or (url if file is None and repository is None else None)
    packed = packed_by_name(str(said.value)) if said is not None else None
    if packed is not None and said is not None:
        draft.infer("serve.weights.format", packed.format, packed.because)
    elif repository is not None and given is repository and ":" not in str(repository.value) and inside is None:
        draft.default("serve.weights.format", "q4_k_m", of="llama.cpp for a repository without a quantisation")


def _of_positional(reading: Reading) -> None:
    """A file that stands alone, as older examples have it."""
    word = next((word for word in reading.positional if word.text.casefold().endswith(".gguf")), None)
    if word is not None:
        model(reading, Given(word.text, word.place))
