"""Tables of releases: their form, what a release has, and that code and tables name the same facts."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import everybyte
from everybyte.basics.errors import BadInput
from everybyte.catalog.generations import by_word, generation_of, generations
from everybyte.catalog.releases import Release, events, line_named, lines, newest, release_in, releases, stated, tagged, written
from everybyte.cli.app import run
from everybyte.engines.sglang.fraction import RULES as RULES_OF_SGLANG

CODE = Path(everybyte.__file__).parent
ASKS = ("has", "value", "find", "whole", "share")


def calls() -> Iterator[tuple[str, str]]:
    """(receiver, name of a fact) of calls that ask a release; f-strings by what stands before their first hole, with a star."""
    for path in CODE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKS and len(node.args) == 1:
                yield from ((ast.unparse(node.func.value), name) for name in _name(node.args[0]))


def _name(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        yield f"{node.values[0].value}*"


@pytest.mark.parametrize("line", lines())
def test_tables_are_in_order(line: str) -> None:
    """Releases stand from the oldest to the newest, nothing begins after it ends, and every row says what changed and how that is known."""
    table = releases(line)
    numbers = [known.number for known in table.known]
    assert numbers == sorted(numbers)
    assert all(known.source for known in table.known)
    for change in table.changes:
        assert not change.until or change.since < change.until, change
        assert change.meaning, change
        assert change.source, change


@pytest.mark.parametrize("line", lines())
def test_nothing_is_newer_than_the_newest_release(line: str) -> None:
    """What is assumed for a job without a version has every change of the table."""
    last = releases(line).newest.number
    assert all(change.since <= last for change in releases(line).changes)


RULES = ("fork_of_same_day", *(name for name, _ in RULES_OF_SGLANG))
"""Facts that code reads off the table without asking a release, or asks for by a list."""


def test_every_fact_of_a_table_is_asked_for() -> None:
    """A row that no code reads is a row too many."""
    asked = {name for _, name in calls()} | set(RULES)
    prefixes = tuple(name[:-1] for name in asked if name.endswith("_*"))
    unread = {change.name for line in lines() for change in releases(line).changes if not change.name.startswith(prefixes)} - asked
    assert sorted(unread) == []


def test_every_fact_that_code_asks_for_is_in_a_table() -> None:
    """A release answers False for a name that its line does not have, so that a slip of the pen must be found here."""
    names = {change.name for line in lines() for change in releases(line).changes}
    asked = {name for receiver, name in calls() if "release" in receiver and not name.endswith("*")}
    assert sorted(asked - names) == []


def test_a_change_holds_from_one_release_to_another() -> None:
    """The first release has it, the last has it no more, and other variants never do."""
    have = [Release("transformers", number).has("makes_masks") for number in ((4, 53), (4, 53, 1), (4, 99), (5, 0))]
    assert have == [False, True, True, False]
    assert [Release("vllm", (0, 10, 0), variant).has("groups_layers") for variant in ("v0", "v1")] == [False, True]


def test_a_default_is_the_last_that_was_set() -> None:
    """Of several rows with one name the newest that holds says the value; a release before all of them has none."""
    values = [Release("vllm", number, "v1").share("padding_ratio") for number in ((0, 11), (0, 12), (0, 18), (0, 33))]
    assert values == [1.0, 1.25, 1.5, 1.5]
    assert Release("torch", (2, 4)).find("branch_cut") is None


def test_scales() -> None:
    """Versions, days and builds are written as people write them."""
    assert [written(number) for number in ((0, 20, 1), (2024, 12, 26), (2024, 7), (5145,))] == ["0.20.1", "2024-12-26", "2024-07", "b5145"]
    assert newest("litgpt").title == "LitGPT 2026-06-29"
    assert Release("litgpt", (2024, 3, 18), name="0.2").title == "LitGPT 0.2"


def test_versions_in_a_text() -> None:
    """Every package that a text names, of a range its lowest version; one that is not named is taken at its newest."""
    text = "transformers 4.48.1, trl>=0.13"
    assert stated(text) == {"transformers": (4, 48, 1), "trl": (0, 13)}
    assert release_in(text, "trl").number == (0, 13)
    assert release_in(text, "peft") == newest("peft")


def test_a_release_between_two_tags_is_that_of_the_earlier_one() -> None:
    """LitGPT 0.4.5 has the code of 0.4."""
    assert tagged("litgpt", (0, 4, 5)) == (2024, 6, 10)


def test_an_unknown_line_is_refused_with_the_nearest() -> None:
    """A name without a table gets the nearest ones."""
    with pytest.raises(BadInput, match="did you mean vllm"):
        releases("vlm")


def test_generations() -> None:
    """A capability finds its generation; what has no row, or no number, is taken as Ampere."""
    assert generation_of("9.0").nccl_rings == 24
    assert generation_of("gfx942") == generation_of("") == generations()[8]


def test_words_in_names_of_cards() -> None:
    """An engine's rule by the card's name holds from its release on."""
    batches = [by_word(Release("lmdeploy", number), "NVIDIA H100 80GB HBM3", "max_batch_size") for number in ((0, 9), (0, 10))]
    assert batches == ["512", "1024"]
    assert by_word(Release("lmdeploy", (0, 10)), "T4", "max_batch_size") is None


def test_events_of_a_release() -> None:
    """`0.20` is what 0.20 and 0.20.1 brought, the newest first; what ends is an event of the release that has it no more."""
    found = events(releases("vllm"), "0.20")
    assert [written(event.release) for event in found] == ["0.20.1", "0.20", "0.20", "0.20"]
    ended = [event.text for event in events(releases("vllm"), "0.17") if event.ends]
    assert sorted(text.partition(":")[2].split()[0] for text in ended) == ["The", "Top-k"]


def test_a_line_is_found_by_its_title() -> None:
    """`PyTorch` and `torch` are one table."""
    assert line_named("PyTorch") == line_named("torch")
    assert line_named("nemo").name == "megatron-core"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """All lines without a name, one release with one, the same as data, and a refusal with the nearest name."""
    assert run(["releases"]) == 0
    assert "0.33.0" in capsys.readouterr().out
    assert run(["releases", "vllm", "0.20"]) == 0
    assert "gpu_memory_utilization = 0.92" in capsys.readouterr().out
    assert run(["releases", "vllm", "0.99"]) == 0
    assert "nothing that changes memory is known" in capsys.readouterr().out
    assert run(["releases", "vllm", "0.20", "--json"]) == 0
    names = {change["name"] for change in json.loads(capsys.readouterr().out)["changes"]}
    assert names == {"counts_requests", "subtracts_graphs", "memory_fraction", "checks_state_blocks"}
    assert run(["releases", "vlm"]) == 2
    assert "did you mean vllm" in capsys.readouterr().err
