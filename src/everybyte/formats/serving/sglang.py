"""SGLang: `python -m sglang.launch_server` and the YAML that `--config` takes."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.serving.engine_reading import Reading
from everybyte.formats.serving.reading import finished, gpus, model, model_of_word, of_command, of_document, product, weights, with_file
from everybyte.formats.values import boolean, whole

FILE = "sglang.csv"


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`sglang.launch_server --model-path MODEL ...`, `sglang serve ...`."""
    skip = 2 if len(command.words) > 1 and command.words[1].text == "serve" else 1
    reading = of_command("sglang", FILE, command, skip, context)
    config = reading.bag.value("config")
    if isinstance(config, str) and (document := context.document(config, command.files)) is not None:
        reading = with_file(reading, document)
    model(reading, reading.bag.take("model_path"))
    if "model" not in reading.draft:
        model_of_word(reading, next(iter(reading.positional), None))
    return _read(reading)


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """The flags of the server as keys."""
    reading = of_document("sglang", FILE, document, context)
    model(reading, reading.bag.take("model_path"))
    return _read(reading)


def _read(reading: Reading) -> list[JobDraft]:
    weights(reading)
    _prefill(reading)
    _speculation(reading)
    _lora(reading)
    keys = ["tp_size", "pp_size"]
    attention_groups = reading.bag.peek("enable_dp_attention")
    if attention_groups is None or not boolean(attention_groups.value):
        keys.append("dp_size")  # without data-parallel attention each rank is an engine of its own
    total, stated = product(reading, *keys)
    gpus(reading, total, "the product of its parallel sizes", stated=stated)
    reading.bag.take("nnodes")
    return finished(reading)


def _prefill(reading: Reading) -> None:
    """`--chunked-prefill-size`: tokens of one prefill step; -1 turns chunks off."""
    given = reading.bag.take("chunked_prefill_size")
    found = whole(given.value) if given is not None else None
    if given is None:
        return
    reading.draft.state("serve.extra.chunked_prefill_size", found, given.place)
    if found is not None and found > 0:
        reading.draft.state("serve.batched_tokens", found, given.place)


def _speculation(reading: Reading) -> None:
    given = reading.bag.take("speculative_algorithm")
    if given is not None:
        reading.draft.state("serve.draft.method", str(given.value).casefold(), given.place)


def _lora(reading: Reading) -> None:
    given = reading.bag.take("enable_lora")
    if given is not None and boolean(given.value) and not any(reading.bag.peek(key) for key in ("max_lora_rank", "max_loras_per_batch", "lora_target_modules")):
        reading.draft.state("serve.lora", True, given.place)
