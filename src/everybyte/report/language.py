"""The language that people are spoken to in: English, or Simplified Chinese.

Texts are made in English everywhere and looked up where they are shown: by themselves, or by the template that they were made from, such as
`{0} is not supported; supported: {1}`. So no other room knows of languages, JSON stays as it is, and without a catalogue nothing is loaded.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import pairwise
from os.path import dirname, join
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.text import Text

LANGUAGES = {"en": "English", "zh": "简体中文"}
"""Languages by their codes; English needs no catalogue."""
VARIABLES = ("EVERYBYTE_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
"""Where a person's language is looked for, the first that is set."""
LOCALE = join(dirname(__file__), "locale")

LIST, SENTENCES = " · ", ". "
JOINTS = {" · ": " · ", "; ": "；", ". ": "。", ": ": "："}
"""What stands between messages that are put together, and what stands there in Chinese."""

WIDE = ("：", "；", "。", "，", "、", "（")
"""Marks that have their own room: no space follows them."""
_AROUND = re.compile(r"((?:\s|[-–·]\s)*)(.*?)(\s*)", re.DOTALL)
"""Spaces and list marks around a text, which stay."""
_REMARK = re.compile(r"(.+) (\(.+\))", re.DOTALL)
"""A text with a remark in brackets behind it."""
_HOLE = re.compile(r"\{\d+\}")
_WORD = re.compile(r"[A-Za-z]{3,}")
_chosen: list[str] = []


def speak(language: str | None) -> None:
    """Chooses the language of this process; None asks the environment again."""
    _chosen[:] = [language] if language else []


@contextmanager
def speaking(code: str) -> Iterator[None]:
    """Another language for a while."""
    before = list(_chosen)
    speak(code)
    try:
        yield
    finally:
        _chosen[:] = before


def language() -> str:
    """The code of the language in use."""
    return _chosen[0] if _chosen else _of_environment()


def said(text: str) -> str:
    """The text in the language in use; as it is, where the catalogue does not have it. Spaces around it stay."""
    code = language()
    if code == "en":
        return text
    around = _AROUND.fullmatch(text)
    if around is None or not around[2]:
        return text
    found = _said(around[2], code)
    return around[1] + found + (around[3] if not found.endswith(WIDE) else "")


def said_in_runs(text: Text) -> Text:
    """A styled text, each run of one style said by itself: runs are phrases."""
    if language() == "en" or not text.plain.strip():
        return text
    borders = sorted({0, len(text), *(end for span in text.spans for end in (span.start, span.end))})
    runs = [_run(text[start:end]) for start, end in pairwise(borders) if end > start]
    out = text.blank_copy()
    for run in runs:
        out.append_text(run)
    return out


def _run(run: Text) -> Text:
    spoken = said(run.plain)
    if spoken == run.plain:
        return run
    out = run.blank_copy(spoken)
    for span in run.spans:
        out.stylize(span.style, 0, len(spoken))
    return out


class Template(NamedTuple):
    """A message with holes: how a text that was made from it is recognised, and how it is said."""

    pattern: re.Pattern[str]
    holes: tuple[str, ...]
    translation: str
    length: int
    """Letters that are no hole: of two that match, the longer one says more."""
    is_list: bool
    """Whether it is a list itself: items of a list are said one by one."""


@lru_cache(maxsize=4096)
def _said(text: str, code: str) -> str:
    """What the catalogue says of a text without spaces around it."""
    messages, templates = _catalogue(code)
    if text in messages:
        return messages[text]
    listed = LIST in text
    candidates = {id(t): t for word in _WORD.findall(text) for t in templates.get(word, ()) if not listed or t.is_list}
    for template in sorted(candidates.values(), key=lambda one: -one.length):
        match = template.pattern.fullmatch(text)
        if match is not None:
            return _filled(template, match.groups(), text, code)
    return _in_parts(text, code)


def _filled(template: Template, groups: tuple[str, ...], whole: str, code: str) -> str:
    values = dict(zip(template.holes, groups, strict=True))
    return _HOLE.sub(lambda hole: _inner(values.get(hole[0], ""), whole, code), template.translation)


def _in_parts(text: str, code: str) -> str:
    """What is put together of several messages, part by part."""
    for joint, as_said in JOINTS.items():
        parts = text.split(joint)
        if len(parts) > 1:
            ends = [*[joint.strip() if joint == SENTENCES else ""] * (len(parts) - 1), ""]
            spoken = [_said(part + end, code).removesuffix(as_said).removesuffix(end) for part, end in zip(parts, ends, strict=True)]
            if spoken != parts:
                return as_said.join(spoken)
    remark = _REMARK.fullmatch(text)
    return text if remark is None else _remarked(text, _said(remark[1], code), _said(remark[2], code))


def _remarked(text: str, core: str, remark: str) -> str:
    return text if f"{core} {remark}" == text else core + remark


def _inner(value: str, whole: str, code: str) -> str:
    """What was put into a text may be a text itself."""
    core = value.strip()
    return value if not core or len(core) >= len(whole) else value.replace(core, _said(core, code))


@cache
def _catalogue(code: str) -> tuple[dict[str, str], dict[str, list[Template]]]:
    """Messages without holes by themselves, those with holes by the longest word of each."""
    import gettext

    with open(join(LOCALE, code, "LC_MESSAGES", "everybyte.mo"), "rb") as file:
        found = gettext.GNUTranslations(file)
    entries: dict[str, str] = {key: value for key, value in found._catalog.items() if isinstance(key, str) and key and value}  # type: ignore[attr-defined]  # noqa: SLF001
    templates: dict[str, list[Template]] = {}
    for message, translation in entries.items():
        if _HOLE.search(message):
            words = _WORD.findall(_HOLE.sub(" ", message))
            if words:
                templates.setdefault(max(words, key=len), []).append(_template(message, translation))
    return entries, templates


def _template(message: str, translation: str) -> Template:
    literal = _HOLE.split(message)
    pattern = "(.*?)".join(re.escape(part) for part in literal)
    return Template(re.compile(pattern, re.DOTALL), tuple(_HOLE.findall(message)), translation, sum(map(len, literal)), LIST in message)


def messages(code: str) -> dict[str, str]:
    """All messages of a language with their translations, for a page that looks them up itself; empty for English."""
    return {} if code == "en" else _catalogue(code)[0]


def _of_environment() -> str:
    """What the environment asks for, if the terminal can show it."""
    asked = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")
    code = asked.partition("_")[0].partition(".")[0].casefold()
    if code not in LANGUAGES or code == "en":
        return "en"
    return code if "utf" in (getattr(sys.stdout, "encoding", None) or "").casefold() else "en"
