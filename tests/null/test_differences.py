"""What differs between two kinds of rank."""

from __future__ import annotations

import json

import pytest
from made_answers import LORA, entry, rank

from everybyte.cli.app import run
from everybyte.report.differences import causes, differences, told_apart

HERE = rank("pp0", ledger=(*LORA, entry("weights/layers.32-35/mlp", "parameter", 2**30)))
THERE = rank("pp1", ledger=tuple(e for e in LORA if e.id != "weights/embed"))


def test_layers_of_stages_are_one_place() -> None:
    """Layers are compared as layers, whichever numbers a stage holds; what only one kind has is listed against nothing."""
    found = {(row.category, row.place): row.more for row in differences(HERE, THERE)}
    assert found == {("parameter", "layers/mlp"): 2**30, ("parameter", "embed"): 1_050_673_152}


def test_differences_add_up() -> None:
    """The differences of all places add up to the difference of the peaks."""
    assert sum(row.more for row in differences(HERE, THERE)) == HERE.figures["peak.allocated"] - THERE.figures["peak.allocated"]


def test_equal_kinds_differ_in_nothing() -> None:
    """A kind of rank does not differ from itself."""
    assert differences(HERE, HERE) == []
    assert causes(HERE, HERE) == "nothing"


@pytest.mark.parametrize(
    ("here", "there", "names"),
    [
        (("a.yaml", "CUDA0"), ("b.yaml", "CUDA0"), ("a", "b")),
        (("old/job.yaml", "gpu 0"), ("new/job.yaml", "gpu 0"), ("old/job.yaml", "new/job.yaml")),
        (("a.yaml", "pp0"), ("b.yaml", "pp1"), ("a pp0", "b pp1")),
    ],
)
def test_two_sides_never_have_one_name(here: tuple[str, str], there: tuple[str, str], names: tuple[str, str]) -> None:
    """Ranks of the same label are called by their files, files of the same name by their paths."""
    assert told_apart(here, there) == names


def test_command(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """`explain --against` prints one object with both kinds, and refuses an unknown label with the known ones."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"model": "openai-community/gpt2", "train": {"micro_batch": 1, "seq_len": 128}}))
    assert run(["explain", str(job), "--against", "gpu 0", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["differences"] == []
    assert line["rank"] == line["against"]
    assert run(["explain", str(job), "--against", "pp7"]) == 2
    assert "gpu 0" in capsys.readouterr().err
