"""People are spoken to in their language: no message lacks a translation, and programs are spoken to as before."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from everybyte.cli.app import run
from everybyte.report.language import messages, said, speak

ROOT = Path(__file__).parents[2]
LORA = str(ROOT / "examples/llama-3.1-8b-lora-24gb.yaml")
WAITING = 10
"""Messages that may wait for a translator while a room is being written; none of them is older than its room."""


@pytest.fixture(autouse=True)
def english() -> None:
    speak(None)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("babel", reason="the catalogue is kept with Babel")
    sys.path.insert(0, str(ROOT / "scripts"))
    import messages as found

    return found


def test_no_message_lacks_a_translation(script: ModuleType) -> None:
    """Every sentence of the source is said in Chinese, by itself or by a wider template; `python scripts/messages.py` adds new ones to the catalogue."""
    missing = script.waiting("zh")
    assert len(missing) <= WAITING, "add them to src/everybyte/report/locale/zh/LC_MESSAGES/everybyte.po and run scripts/messages.py"


def test_the_compiled_catalogue_is_that_of_the_text(script: ModuleType) -> None:
    """The .mo file holds the translations of the .po file beside it."""
    written = {m.id: m.string for m in script.catalogue("zh") if m.id and m.string}
    assert messages("zh") == written


def test_translations_have_the_holes_of_their_messages(script: ModuleType) -> None:
    """What is put into a message is put into its translation too, nothing else; only an English plural may be lost."""
    for message, translation in messages("zh").items():
        assert set(script.HOLE.findall(translation)) <= set(script.HOLE.findall(message)), message


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("needs 21.4 GiB of 23.6: ", "需要 21.4 GiB / 23.6："),
        (" - routing is balanced: every expert gets the same number of tokens", " - 假定路由均衡：每个专家分到相同数量的 token"),
        ("'foo' is not supported for LitGPT; supported: nf4 and fp4", "LitGPT 不支持 'foo'；支持：nf4 and fp4"),
        ("peak 21.4 GiB in backward", "peak 21.4 GiB in backward"),
        ("layers.0-31/mlp", "layers.0-31/mlp"),
        ("", ""),
    ],
)
def test_said(text: str, spoken: str) -> None:
    """Whole messages, messages with values in them, and what the catalogue does not have."""
    speak("zh")
    assert said(text) == spoken
    speak("en")
    assert said(text) == text


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"EVERYBYTE_LANG": "zh"}, "假设"),
        ({"LANG": "zh_CN.UTF-8"}, "假设"),
        ({"LANG": "zh_CN.UTF-8", "EVERYBYTE_LANG": "en"}, "Assumed"),
        ({"LANG": "de_DE.UTF-8"}, "Assumed"),
        ({}, "Assumed"),
    ],
)
def test_the_environment_chooses(variables: dict[str, str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """EVERYBYTE_LANG comes before LANG; a language without a catalogue is answered in English."""
    for name in ("EVERYBYTE_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(["estimate", LORA]) == 0
    assert word in capsys.readouterr().out


@pytest.mark.parametrize("args", [["--lang", "zh", "estimate", LORA], ["estimate", LORA, "--lang=zh"]])
def test_the_flag_chooses_and_json_stays(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """--lang stands anywhere on the line; the JSON of an answer is the same in every language."""
    assert run(args) == 0
    assert "激活检查点" in capsys.readouterr().out
    assert run([*args, "--json"]) == 0
    chinese = json.loads(capsys.readouterr().out)
    assert run(["estimate", LORA, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == chinese


def test_errors_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal keeps its place and is told in the language; so are the lines of --help. An unknown language is refused."""
    assert run(["estimate", "no-such-file.yaml", "--lang", "zh"]) == 2
    assert "错误：no-such-file.yaml: 无法读取" in capsys.readouterr().err.replace("： ", "：")
    assert run(["estimate", "--help", "--lang", "zh"]) == 0
    assert "估算每个 JOB 的 GPU 显存" in capsys.readouterr().out
    assert run(["estimate", LORA, "--lang", "tlh"]) == 2
    assert "--lang: 'tlh' is not known; supported: en, zh" in capsys.readouterr().err
