"""TensorRT-LLM: `trtllm-serve`, `trtllm-bench`, and the YAML of further options."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.serving.engine_reading import Reading
from everybyte.formats.serving.reading import finished, gpus, model, model_of_word, of_command, of_document, product, weights, with_file

FILE = "tensorrt_llm.csv"
_VERBS = ("serve", "throughput", "latency", "build", "mm_embedding_serve", "disaggregated")


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`trtllm-serve MODEL --tp_size 4 --config options.yaml`."""
    reading = of_command("tensorrt-llm", FILE, command, 1, context)
    config = reading.bag.value("config")
    if isinstance(config, str):
        document = context.document(config, command.files)
        if document is None:
            reading.draft.find("file-missing", "warning", command.place, f"{config} was not given: its settings are not read", f"give {config} as well")
        else:
            reading = with_file(reading, document, wins=True)
        reading.bag.take("config")
    positional = [word for word in reading.positional if word.text not in _VERBS]
    model(reading, reading.bag.take("model_path") or reading.bag.take("model"))
    if "model" not in reading.draft:
        model_of_word(reading, next(iter(positional), None))
    return _read(reading)


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """Further options of the engine as keys."""
    reading = of_document("tensorrt-llm", FILE, document, context)
    model(reading, reading.bag.take("model"))
    return _read(reading)


def _read(reading: Reading) -> list[JobDraft]:
    weights(reading)
    bag = reading.bag
    bag.ignore(("cuda_graph_config", "speculative_config"))
    total, stated = product(reading, "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
    gpus(reading, total, "the product of its parallel sizes", stated=stated)
    return finished(reading)
