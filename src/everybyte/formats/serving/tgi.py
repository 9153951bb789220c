"""Text Generation Inference: `text-generation-launcher`, whose every flag is also a variable."""

from __future__ import annotations

from everybyte.formats.bag import Bag
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.serving.engine_reading import Reading
from everybyte.formats.serving.flag_table import convert
from everybyte.formats.serving.reading import finished, gpus, model, of_command, of_document, product, weights

FILE = "tgi.csv"


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`text-generation-launcher --model-id MODEL ...`."""
    reading = of_command("tgi", FILE, command, 1, context)
    return _read(reading._replace(bag=reading.bag.over(_variables(reading))))


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """The flags of the launcher as keys."""
    return _read(of_document("tgi", FILE, document, context))


def _variables(reading: Reading) -> Bag:
    """`MAX_TOTAL_TOKENS=4096`."""
    names = {flag.name.upper(): flag.name for flag in reading.table.flags.values()} | {
        alias.upper(): name for alias, name in reading.table.names.items() if len(alias) > 1
    }
    return reading.table.settled({names[name]: given for name, given in reading.environment.items() if name in names}, reading.draft)


def _read(reading: Reading) -> list[JobDraft]:
    model(reading, reading.bag.take("model_id"))
    weights(reading)
    graphs = reading.bag.take("cuda_graphs")
    if graphs is not None:
        sizes = convert("ints", graphs.value)
        if sizes == [0]:
            reading.draft.state("serve.cuda_graphs", False, graphs.place)
        elif sizes:
            reading.draft.state("serve.cuda_graphs.sizes", sizes, graphs.place)
    total, stated = product(reading, "num_shard")
    if stated:
        gpus(reading, total, "one GPU a shard", stated=True)
    return finished(reading)
