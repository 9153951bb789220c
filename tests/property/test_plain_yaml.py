"""The quick reader of plain YAML against the one that reads all of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everybyte.basics.errors import BadInput
from everybyte.job import plain_yaml, yaml_text
from everybyte.measure.truth import load_records

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("docs/jobs/*.yaml")])
WORDS = [
    "a",
    "b",
    "on",
    "Yes",
    "null",
    "true",
    "True",
    "~",
    "1",
    "-1",
    "+1",
    "01",
    "1.5",
    "1.",
    ".5",
    "1e5",
    "0x1f",
    "1_000",
    "1:30",
    "2026-01-15",
    "a b",
    "a,b",
    "a, b",
    "a:b",
    "a: b",
    "'x y'",
    '"x"',
    "''",
    "'it''s'",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    ": ",
    "-",
    "- ",
    "#",
    " #c",
    "&a",
    "*a",
    "!t",
    "|",
    ">",
    "%",
    "@",
    "<<",
    "{a: 1, b: [x, 2.5]}",
    "{}",
    "[]",
    "[a, ]",
    "{a}",
    "{a: {b: c}}",
    "{a:1}",
    ".inf",
    "=",
    "a=b",
    "---",
    "...",
    "a(b)",
    "a -b",
    "a - b",
    "a #b",
    "hf:o/n",
    "0.11.0",
    "1f1b",
    "0b1",
    "8e3",
    "13B on 8",
    "1 2",
]
PIECES = st.one_of(st.sampled_from(WORDS), st.sampled_from(["\n", "\n", "\n  ", "\n    ", " ", "a: ", "b: ", "c:", "a:\n  b: "]))
TEXTS = st.lists(PIECES, max_size=14).map("".join)


@given(TEXTS)
@example("a: b\n c: d")
@example("a:\n  b: 1\n c: 2")
@example("a: {b: 1} x")
@example("a: 'b' 'c'")
@example("a: [b c, 'd' ]")
@example("a: x\n\n\nb: y # z\n")
def test_reads_what_the_whole_reader_reads(text: str) -> None:
    """Whatever text the quick reader takes, PyYAML's parser with our values comes to the same, types and order included."""
    quick = plain_yaml.load(text)
    if quick is None:
        return
    whole = yaml_text.load(text, "text")
    assert repr(quick) == repr(whole)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_takes_the_examples(path: Path) -> None:
    """The jobs that we show people are plain: none of them waits for PyYAML."""
    text = path.read_text(encoding="utf-8")
    assert plain_yaml.load(text) == yaml_text.load(text, str(path))


def test_leaves_faults_to_the_whole_reader() -> None:
    """A key that comes twice is no plain text: the reader that names its line refuses it."""
    assert plain_yaml.load("a: 1\na: 2\n") is None
    with pytest.raises(BadInput, match="twice"):
        yaml_text.load("a: 1\na: 2\n", "job.yaml")


def test_reads_records_as_they_are_written() -> None:
    """A job of every measured run, written as YAML in blocks, is read back equal."""
    taken = 0
    for record in load_records():
        text = msgspec.yaml.encode(record["job"]).decode()
        quick = plain_yaml.load(text)
        taken += quick is not None
        assert quick is None or quick == record["job"]
    assert taken > 200
