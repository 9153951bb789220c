"""Models whose config.json and parameter count are known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from os.path import join
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from everybyte.catalog.names import DATA, fold, read_row, read_table, refuse_unknown
from everybyte.catalog.search import matches

MODELS, ALIASES = "models.csv", "model_aliases.csv"


class ModelRow(NamedTuple):
    """What is known of a model beside its config. None where no source states a value."""

    name: str
    """Hugging Face id; of a pipeline, with its part: `black-forest-labs/FLUX.1-dev::transformer`."""
    file: str
    model_type: str
    architecture: str
    params_published: int | None
    params_meta: int | None
    """Parameters counted on the meta device, tied weights once, buffers apart."""
    match: str
    """How `params_published` and `params_meta` relate."""
    active_params_meta: int | None
    params_untied: int | None
    embedding_params: int | None
    tied: bool | None
    verified_with: str
    config_origin: str
    """verbatim-copy, copy-with-edits or reconstructed."""
    config_source: str
    params_source: str
    note: str


if TYPE_CHECKING:
    from everybyte.catalog.renamed import Relative


@lru_cache(maxsize=1024)
def find_model(name: str, path: str = "model") -> ModelRow:
    """The row of the model called `name`, without regard to case and separators; the organisation may be left out where one model has the name.

    `data/model_aliases.csv` holds further names, each with its reason. Raises BadInput at `path` with the three nearest names.
    """
    known = read_row(MODELS, name) or read_row(MODELS, (read_row(ALIASES, name) or ("", ""))[1])
    if known is not None:
        return _row(known[0])
    index = _index()
    key = fold(name)
    found = index.get(key) or _index_without_points().get(key.replace(".", ""))
    if found is None and (other := relative_of(name)) is not None:
        found = other.name
    if found is None:
        way_out = "a model that is not in the catalogue is given by a path to its config.json, folder or .gguf, or as hf:ORG/NAME"
        refuse_unknown(name, key, index, path=path, kind="model", way_out=way_out)
    return _row(found)


def catalogue_name(name: str) -> str | None:
    """The model of the catalogue that a name means; None if there is none. As `find_model`, without looking for the nearest."""
    key = fold(name)
    found = _index().get(key) or _index_without_points().get(key.replace(".", ""))
    other = None if found else relative_of(name)
    return found or (other.name if other else None)


@lru_cache(maxsize=1024)
def relative_of(name: str) -> Relative | None:
    """The model of the catalogue whose network a re-upload, a packed or a tuned copy has, with the reason; None if the name is its own or no rule finds one."""
    if read_row(MODELS, name) is not None or read_row(ALIASES, name) is not None:
        return None
    key = fold(name)
    if key in _index() or key.replace(".", "") in _index_without_points():
        return None
    from everybyte.catalog.renamed import relative  # not paid for where names are known

    return relative(name, _index())


def model_config(name: str, path: str = "model") -> dict[str, Any]:
    """The config.json of the model called `name`, as a new dict. Raises as `find_model`."""
    with open(join(DATA, find_model(name, path).file), "rb") as file:
        content = file.read()
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:  # as Python writes them, some hold Infinity
        import json

        config: dict[str, Any] = json.loads(content)
        return config


def search_models(words: str) -> Sequence[ModelRow]:
    """The models that match all words, the plainest names first; all of them without a word."""
    return matches(all_models(), words.split(), lambda row: (row.name, row.model_type, row.architecture))


def all_models() -> tuple[ModelRow, ...]:
    """Every model of the catalogue, in its order."""
    return tuple(_row(name) for name in _rows())


@cache
def _rows() -> dict[str, list[str]]:
    return {row[0]: row for row in read_table(MODELS)[1:]}


@cache
def _index() -> dict[str, str]:
    """Folded name -> catalogue name. Full names come first; a short one counts only if one model has it."""
    full = {fold(name): name for name in _rows()}
    aliases = {alias: name for alias, name, _ in read_table(ALIASES)[1:]}
    for alias, name in aliases.items():
        full.setdefault(fold(alias), name)
    short: dict[str, set[str]] = {}
    for text, name in [*zip(_rows(), _rows(), strict=True), *aliases.items()]:
        for form in _short_forms(text):
            short.setdefault(fold(form), set()).add(name)
    return {**{key: names.pop() for key, names in short.items() if len(names) == 1}, **full}


@cache
def _index_without_points() -> dict[str, str]:
    """For `llama31-8b`: the index with numbers run together, where that leaves one meaning."""
    meanings: dict[str, set[str]] = {}
    for key, name in _index().items():
        meanings.setdefault(key.replace(".", ""), set()).add(name)
    return {key: names.pop() for key, names in meanings.items() if len(names) == 1}


def _short_forms(name: str) -> list[str]:
    """`org/name::part` without its organisation, without its part, and without both."""
    whole, _, part = name.partition("::")
    bare = whole.rpartition("/")[2]
    return [bare, f"{bare}::{part}", whole] if part else [bare]


@cache
def _row(name: str) -> ModelRow:
    text = read_row(MODELS, name) or []
    row = dict(zip(ModelRow._fields, text, strict=True))
    whole = {field: int(row[field]) if row[field] else None for field in _WHOLE_NUMBERS}
    tied = {"True": True, "False": False}.get(row["tied"])
    return ModelRow(**{**row, **whole, "tied": tied})  # type: ignore[arg-type]


_WHOLE_NUMBERS = ("params_published", "params_meta", "active_params_meta", "params_untied", "embedding_params")
