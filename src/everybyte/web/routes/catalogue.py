"""What is known beforehand: models, devices, formulas, settings. It is small and in memory, so no worker is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Response, get
from litestar.params import QueryParameter

from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import all_gpus, find_gpu
from everybyte.catalog.models import ModelRow, all_models, find_model, model_config
from everybyte.catalog.search import matches
from everybyte.formats.writers import WRITERS
from everybyte.job.described import settings as all_settings
from everybyte.report.as_json import formula_object
from everybyte.report.explain import BASIS_MEANING
from everybyte.report.language import messages as of_language
from everybyte.report.language import speaking
from everybyte.report.palette import CATEGORY_COLOUR
from everybyte.report.tex import tex
from everybyte.report.words import COUNTS, ENGINE_MEANING, FIGURE_MEANING, SPEEDS, category_label
from everybyte.textbook import FORMULAS
from everybyte.textbook.formula import Formula
from everybyte.web.forms import (
    CategoryWords,
    FigureWords,
    FormulasAnswer,
    FormulaShown,
    GpusAnswer,
    Language,
    MessagesAnswer,
    ModelsAnswer,
    ModelShown,
    SettingsAnswer,
    WordsAnswer,
)
from everybyte.web.replies import JSON

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")

Row = TypeVar("Row")
Query = Annotated[str, QueryParameter(max_length=200)]


@get("/api/models", name="models", sync_to_thread=False)
def models(q: Query = "", limit: Annotated[int, QueryParameter(ge=0, le=10_000)] = 20) -> Response[bytes]:
    """Models of the catalogue that match all words."""
    found = _known_first(q, matches(all_models(), q.split(), lambda row: (row.name, row.model_type, row.architecture)), find_model)
    return _json(ModelsAnswer(models=tuple(_model(row.name) for row in found[:limit]), found=len(found)))


@get("/api/gpus", name="gpus", sync_to_thread=False)
def gpus(q: Query = "") -> Response[bytes]:
    """Devices of the catalogue that match all words."""
    found = _known_first(q, matches(all_gpus(), q.split(), lambda gpu: (gpu.name, *gpu.aliases, gpu.vendor, gpu.segment)), find_gpu)
    return _json(GpusAnswer(gpus=tuple(gpu._asdict() for gpu in found)))


@get("/api/formulas", name="formulas", sync_to_thread=False)
def formulas(q: Query = "") -> Response[bytes]:
    """Equations of the book that match all words."""
    found = matches(FORMULAS, q.split(), lambda entry: (entry.name, entry.chapter, entry.summary, str(entry.citation)))
    return _json(FormulasAnswer(formulas=tuple(_formula(entry) for entry in found)))


@get("/api/settings", name="settings", sync_to_thread=False)
def settings() -> Response[bytes]:
    """All settings of a job."""
    return _json(SettingsAnswer(settings=all_settings()))


@get("/api/words", name="words", sync_to_thread=False)
def words() -> Response[bytes]:
    """Names, units and colours."""
    with speaking("en"):
        labels = {name: category_label(name) for name in CATEGORY_COLOUR}
    figures = {name: FigureWords(meaning=meaning, unit=SPEEDS.get(name, "count" if name in COUNTS else "bytes")) for name, meaning in FIGURE_MEANING.items()}
    categories = {name: CategoryWords(label=labels[name], light=colours.light, dark=colours.dark) for name, colours in CATEGORY_COLOUR.items()}
    return _json(WordsAnswer(figures=figures, engines=ENGINE_MEANING, categories=categories, bases=BASIS_MEANING, exports=tuple(WRITERS)))


@get("/api/messages", name="messages", sync_to_thread=False)
def messages(lang: Annotated[Language, QueryParameter()] = "en") -> Response[bytes]:
    """What the page says in another language."""
    return _json(MessagesAnswer(messages=of_language(lang)))


@cache
def _model(name: str) -> ModelShown:
    row = next(row for row in all_models() if row.name == name)
    return ModelShown(params=row.params_meta or row.params_published, **{**row._asdict(), **_sizes(row)})


def _sizes(row: ModelRow) -> dict[str, int | None]:
    """What the config says of layers, hidden size and context; of a model with several parts its text part."""
    config = model_config(row.name)
    parts = [config, *(part for key in ("text_config", "llm_config", "language_config") if isinstance(part := config.get(key), dict))]

    def first(keys: tuple[str, ...]) -> int | None:
        return next((part[key] for part in parts for key in keys if isinstance(part.get(key), int)), None)

    return {"layers": first(LAYERS), "hidden": first(HIDDEN), "context": first(CONTEXT)}


def _known_first(words: str, found: Sequence[Row], find: Callable[[str], Row]) -> Sequence[Row]:
    """What a job means by the words stands first: `a100` is the same GPU here and on the command line."""
    try:
        known = find(words)
    except BadInput:
        return found
    return [known, *(row for row in found if row is not known)]


def _formula(entry: Formula) -> FormulaShown:
    return FormulaShown(tex=tex(entry.text), **formula_object(entry, {}, None))


def _json(answer: Any) -> Response[bytes]:
    return Response(msgspec.json.encode(answer), media_type=JSON)


CATALOGUE = [models, gpus, formulas, settings, words, messages]
