"""LMDeploy: `lmdeploy serve api_server MODEL`."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.serving.engine_reading import Reading
from everybyte.formats.serving.reading import finished, gpus, model, model_of_word, of_command, of_document, product, weights

FILE = "lmdeploy.csv"
_VERBS = ("serve", "chat", "api_server", "gradio", "pipeline")


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`lmdeploy serve api_server MODEL --tp 2`."""
    if any(word.text in ("proxy", "convert", "lite", "check_env") for word in command.words[1:3]):
        return []
    reading = of_command("lmdeploy", FILE, command, 1, context)
    model(reading, reading.bag.take("model_path"))
    if "model" not in reading.draft:
        model_of_word(reading, next((word for word in reading.positional if word.text not in _VERBS), None))
    return _read(reading)


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """The flags of the server as keys."""
    reading = of_document("lmdeploy", FILE, document, context)
    model(reading, reading.bag.take("model_path"))
    return _read(reading)


def _read(reading: Reading) -> list[JobDraft]:
    weights(reading)
    total, stated = product(reading, "tp")
    gpus(reading, total, "its tensor-parallel size", stated=stated)
    reading.bag.take("nnodes")
    return finished(reading)
