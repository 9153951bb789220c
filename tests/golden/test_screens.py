"""What people see: screens of answers made by hand, and the help texts."""

from __future__ import annotations

import io

import pytest
from made_answers import LORA, answer, entry, rank
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from everybyte.cli.app import COMMANDS, run
from everybyte.ledger.answer import Answer
from everybyte.plan.fit import FitResult, Stop
from everybyte.plan.share import Interval, ShareResult
from everybyte.report.differences import show_differences
from everybyte.report.estimate import show_answer
from everybyte.report.explain import show_entries, show_ledger, show_setting
from everybyte.report.find import find_entries, find_setting
from everybyte.report.fit import show_fit, show_share


def console(width: int = 100) -> Console:
    return Console(file=io.StringIO(), width=width, no_color=True, color_system=None, highlight=False, markup=False, emoji=False, legacy_windows=False)


def text(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def drawn(made: Answer, width: int = 100, unit: str = "GiB") -> str:
    screen = console(width)
    show_answer(screen, made, unit)
    return text(screen)


SERVING = answer(
    name="",
    job={"model": "m", "serve": {"engine": "transformers", "context": 8192, "sequences": 4, "weights": {"format": "bf16"}}},
    figures={"peak.allocated": 20 * 2**30, "peak.device": 21 * 2**30, "kv.bytes_per_token": 131_072, "kv.tokens": 32_768},
    headroom=25_318_832_210 - 21 * 2**30,
    range={},
)

SERVER = answer(
    name="",
    job={"model": "m", "hardware": {"gpus": 2}, "serve": {"engine": "sglang", "context": 8192, "mesh": {"tp": 2}, "weights": {"format": "fp8"}}},
    figures={
        "peak.allocated": 20 * 2**30,
        "peak.device": 21 * 2**30,
        "weights": 8 * 2**30,
        "kv.pool": 10 * 2**30,
        "kv.tokens": 81_920,
        "kv.concurrency": 10.0,
        "decode.tokens_per_s": 104.2,
        "decode.batch_tokens_per_s": 804.0,
        "ttft_s": 0.048,
    },
    headroom=25_318_832_210 - 21 * 2**30,
    range={},
)

PIPELINE = answer(
    capacity=25_000_000_000,
    ranks=(rank("pp0", 4, 0), rank("pp1", 4, 1, extra=3 * 2**30)),
    warnings=("The two stages are unequal by 3 GiB; pipeline.layers can even them out.",),
)

ANSWERS = {
    "fits": answer(),
    "does not fit": answer(capacity=15_800_000_000),
    "no gpu": answer(capacity=None),
    "pipeline": PIPELINE,
    "serving": SERVING,
    "server": SERVER,
    "barely": answer(capacity=rank().figures["peak.device"] + 12 * 2**20),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answer(name: str, snapshot: SnapshotAssertion) -> None:
    """The screen of an answer stays as it was agreed on."""
    assert drawn(ANSWERS[name]) == snapshot


@pytest.mark.parametrize("unit", ["GB", "MiB", "B"])
def test_units(unit: str, snapshot: SnapshotAssertion) -> None:
    """Every size of the screen is in the unit that was asked for."""
    assert drawn(answer(), unit=unit) == snapshot


@pytest.mark.parametrize("width", [40, 60, 80, 132])
@pytest.mark.parametrize("name", ANSWERS)
def test_screen_keeps_to_its_width_and_to_one_page(name: str, width: int) -> None:
    """No line is wider than the console; the answer is one screen: at most 40 lines, and some more at 80 columns, where meanings go on in a second line."""
    lines = drawn(ANSWERS[name], width).splitlines()
    assert max(map(len, lines)) <= width
    assert width < 80 or len(lines) <= (44 if width == 80 else 40)


@pytest.mark.parametrize("name", ANSWERS)
def test_lines_do_not_end_in_spaces(name: str) -> None:
    """Plain output can be pasted and compared."""
    assert [line for line in drawn(ANSWERS[name]).splitlines() if line != line.rstrip()] == []


def test_verdict_is_the_first_line() -> None:
    """The first line says what is needed, of how much, and whether it fits."""
    assert drawn(ANSWERS["fits"]).splitlines()[0] == "needs 19.5 GiB of 23.6: fits, 4.1 GiB left  (RTX-4090)"
    assert drawn(ANSWERS["does not fit"]).splitlines()[0] == "needs 19.5 GiB of 14.7: does not fit by 4.8 GiB  (RTX-4090)"
    assert drawn(ANSWERS["barely"]).splitlines()[0].startswith("needs 19.5 GiB of 19.5: close, 12 MiB left")


def test_a_row_explained(snapshot: SnapshotAssertion) -> None:
    """Formula in letters, then numbers, then bytes, then source."""
    screen = console()
    show_entries(screen, find_entries(rank(), "layers.0-31/attention"), rank())
    assert text(screen) == snapshot


def test_several_rows_explained(snapshot: SnapshotAssertion) -> None:
    """Rows below one name come with their sum."""
    screen = console(60)
    show_entries(screen, find_entries(rank(), "logits"), rank())
    assert text(screen) == snapshot


def test_the_whole_ledger(snapshot: SnapshotAssertion) -> None:
    """All rows by category, and all settings with their origin; nothing is cut where nobody watches."""
    screen = console()
    show_ledger(screen, answer(), rank())
    assert text(screen) == snapshot


def test_two_kinds_of_rank_compared(snapshot: SnapshotAssertion) -> None:
    """What one kind of rank holds more than another, by category and place; the ledger names it in a line."""
    screen = console()
    show_differences(screen, PIPELINE.ranks[1], PIPELINE.ranks[0])
    show_ledger(screen, PIPELINE, PIPELINE.ranks[1])
    assert text(screen).partition("parameter\n")[0] == snapshot


def test_long_formulas_are_whole() -> None:
    """A file holds the whole formula; a source longer than the line goes on below itself."""
    long = entry("weights/long", "parameter", 5, formula=" + ".join(f"a{i}·b{i}" for i in range(60)))
    screen = console()
    made = rank(ledger=(*LORA, long))
    show_ledger(screen, answer(ranks=(made,)), made)
    assert "a59·b59" in text(screen)
    screen = console(60)
    show_entries(screen, (long,), made)
    assert "a59·b59" in text(screen)
    assert max(map(len, text(screen).splitlines())) <= 60


def test_a_setting_explained(snapshot: SnapshotAssertion) -> None:
    """A setting says where its value comes from."""
    screen = console()
    setting = find_setting(answer(), "train.compile")
    assert setting is not None
    show_setting(screen, setting)
    assert text(screen) == snapshot


FITS = {
    "largest": FitResult(
        key="train.micro_batch",
        smallest=False,
        value=7,
        answer=answer(),
        stop=Stop(value=8, short_by=3 * 2**28, rank="gpu 0", phase="backward"),
        holes=(5,),
        tried=19,
    ),
    "smallest": FitResult(key="hardware.gpus", smallest=True, value=2, answer=answer(), stop=Stop(value=1, refused="train.mesh: no"), holes=(), tried=2),
    "none": FitResult(
        key="serve.context", smallest=False, value=None, answer=None, stop=Stop(value=1, short_by=2**30, rank="gpu 0", phase="load"), holes=(), tried=9
    ),
    "unlimited": FitResult(key="train.grad_accum", smallest=False, value=2**29, answer=answer(), stop=None, holes=(), tried=40, unlimited=True),
}


@pytest.mark.parametrize("name", FITS)
def test_fit(name: str, snapshot: SnapshotAssertion) -> None:
    """What a search found, and what stops the next value."""
    screen = console()
    show_fit(screen, FITS[name])
    assert text(screen) == snapshot


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    """The help texts, each with examples."""
    monkeypatch.setenv("COLUMNS", "100")
    run([command, "--help"] if command else ["--help"])
    out = capsys.readouterr().out
    assert "everybyte " in out.split("Options:")[0]
    assert out == snapshot


def test_values_of_a_share(snapshot: SnapshotAssertion) -> None:
    """All values that work, what the cache holds at their ends, why their neighbours do not."""
    screen = console()
    two = (Interval(low=0.2, high=0.4, tokens=(71, 9000)), Interval(low=0.7, high=0.95))
    show_share(screen, ShareResult(key="serve.memory_fraction", intervals=two, below="not enough memory", above="4.48 MiB too much in prefill", tried=107))
    show_share(screen, ShareResult(key="serve.memory_fraction", intervals=(), below="weights are too large", above="weights are too large", tried=100))
    assert text(screen) == snapshot
