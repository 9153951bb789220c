"""Job files that are damaged, hostile or not there: one message with the place."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from everybyte.basics.errors import BadInput
from everybyte.job import read_job

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{this}: &{this} [{', '.join([f'*{before}'] * 9)}]\n" for before, this in zip("abcdefgh", "bcdefghi", strict=True)
)

TEXTS = {
    "duplicate.yaml": ("model: m\nmodel: n\n", "duplicate.yaml:2:1", "given twice"),
    "nested-duplicate.yaml": ("model: m\ntrain: {tokens: 1, tokens: 2}\n", "nested-duplicate.yaml:2:20", "given twice"),
    "syntax.yaml": ("model: [m\ntrain: {", "syntax.yaml:2:6", "not valid YAML"),
    "tab.yaml": ("model: m\ntrain:\n\tmicro_batch: 1", "tab.yaml:3:1", "not valid YAML"),
    "bomb.yaml": (BOMB, "bomb.yaml:1:", "more than 100,000 values"),
    "endless.yaml": ("model: m\ntrain: {extra: &a {b: *a}}", "endless.yaml:2:", "nested"),
    "deep.yaml": ("[" * 100_000, "deep.yaml:1:", "nesting"),
    "deep-but-legal.yaml": ("model: " + "[" * 500 + "]" * 500, "deep-but-legal.yaml:1:", "nested"),
    "merge.yaml": ("model: m\ntrain: {extra: {<<: {a: 1}}}", "merge.yaml:2:", "merge keys"),
    "code.yaml": ("model: !!python/object/apply:os.system [ls]", "code.yaml:1:8", "holds no python/object"),
    "wrong-tag.yaml": ("model: !!int m", "wrong-tag.yaml:1:8", "not of its tag"),
    "set.yaml": ("model: !!set {a}", "set.yaml:1:8", "holds no set"),
    "two.yaml": ("model: m\n---\nmodel: n", "two.yaml:3:1", "another document"),
    "alias.yaml": ("model: *m", "alias.yaml:1:8", "undefined alias"),
    "key.yaml": ("model: m\ntrain: {on: 1}", "key.yaml:2:9", "not text"),
    "complex-key.yaml": ("? [a]\n: b", "complex-key.yaml:1:3", "not text"),
    "list.yaml": ("- a", "list.yaml", "top level is a list"),
    "empty.yaml": ("", "empty.yaml", "empty"),
    "word.yaml": ("hello", "word.yaml", "top level is a str"),
    "deep.json": ("[" * 100_000, "deep.json", "nested too deeply"),
    "duplicate.json": ('{"model": 1, "model": 2}', "duplicate.json", "given twice"),
    "nan.json": ('{"model": NaN}', "nan.json", "not a number of JSON"),
    "comma.json": ('{"model": 1,}', "comma.json:1:13", "not valid JSON"),
    "digits.json": ('{"model": ' + "9" * 10_000 + "}", "digits.json", "too many digits"),
    "syntax.toml": ('model = "m"\ntrain = {', "syntax.toml", "not valid TOML"),
    "nul.yaml": ("model: m\0", "nul.yaml", "NUL"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_damaged_text_is_refused_with_its_place(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, line and column where the parser knows them; the file where it does not."""
    text, place, words = TEXTS[name]
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(BadInput) as caught:
        read_job(name)
    assert caught.value.path.startswith(place)
    assert words in caught.value.message


def test_a_fault_of_a_value_names_its_line(tmp_path: Path) -> None:
    """The key path comes with the line of the YAML file that holds it, also where shorthand was used."""
    path = tmp_path / "job.yaml"
    path.write_text("model: m\ntrain:\n  micro_batch: 2\n  recompute: ful\n")
    with pytest.raises(BadInput, match=r"train\.recompute\.policy: .*job\.yaml, line 4\]"):
        read_job(path)


@pytest.mark.parametrize(("name", "words"), [("missing.yaml", "No such file"), (".", "directory"), ("a\0b", "NUL"), ("x" * 5000, "too long")])
def test_files_that_cannot_be_opened(name: str, words: str) -> None:
    """A missing file, a folder and impossible names are bad input."""
    with pytest.raises(BadInput, match=words):
        read_job(name)


def test_binary_and_huge_files(tmp_path: Path) -> None:
    """Bytes that are no text, and files beyond any job, are refused before anything parses them."""
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="UTF-8"):
        read_job(tmp_path / "binary.yaml")
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(BadInput, match="larger than"):
        read_job(tmp_path / "huge.yaml")


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """Editors that write a byte order mark do no harm."""
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbfmodel: m\ntrain: {}\n")
    assert read_job(tmp_path / "job.yaml").model == "m"


def test_standard_input_takes_yaml_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads standard input and tells JSON from YAML by its beginning."""
    for text in (b"model: m\ntrain: {}", b'{"model": "m", "train": {}}', b"{model: m, train: {}}"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert read_job("-").model == "m"


def test_dates_are_text(tmp_path: Path) -> None:
    """A version written as a date is the text that was written."""
    (tmp_path / "job.yaml").write_text("model: m\ntrain: {version: 2026-01-15}\n")
    job = read_job(tmp_path / "job.yaml")
    assert job.train is not None
    assert job.train.version == "2026-01-15"
