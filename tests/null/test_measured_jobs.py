"""The jobs that are measured on a GPU, without one: they are jobs, they are answered, they fit; results become truth records and a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from everybyte import estimate
from everybyte.job import read_job
from everybyte.measure.accuracy import COMPARABLE_RANKS

sys.path.append(str(Path(__file__).parents[1] / "gpu"))

from dry_run import MOST_BYTES, predicted_need
from jobs import JOBS, Measured, tiny
from records import read, record, table, write

RESULT = {
    "environment": {
        "gpu": "NVIDIA H200",
        "memory_bytes": 150_000_000_000,
        "compute_capability": "9.0",
        "driver": "580.1",
        "cuda": "13.0",
        "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
        "alloc_conf": "",
    },
    "figures": {"static.allocated": 2**30, "peak.allocated": 8 * 2**30, "peak.reserved": 9 * 2**30, "peak.device": 10 * 2**30},
    "device_by": "NVML, this process",
}


def test_names_are_unique() -> None:
    """A record is called after its job."""
    assert len({m.name for m in JOBS}) == len(JOBS) >= 30


@pytest.mark.parametrize("measured", JOBS, ids=lambda m: m.name)
def test_a_job_is_answered_and_fits_a_card_of_24_gb(measured: Measured) -> None:
    """What is run is what is predicted, and any card from 24 GB on can run it."""
    assert 2**30 < predicted_need(measured.job) < MOST_BYTES


@pytest.mark.parametrize("measured", JOBS, ids=lambda m: m.name)
def test_the_small_twin_is_the_same_job_but_for_sizes(measured: Measured) -> None:
    """A twin has the same keys and settings, so that checking it says something about the job."""
    twin = tiny(measured).job
    assert estimate(twin).figures["peak.allocated"] < estimate(measured.job).figures["peak.allocated"] / 8
    section = "train" if "train" in twin else "serve"
    changed = {key for key in twin[section] if twin[section][key] != measured.job[section][key]}
    assert changed <= {"micro_batch", "seq_len", "context", "sequences", "adapter", "extra"}
    assert twin[section].keys() == measured.job[section].keys()


def test_a_result_becomes_a_truth_record() -> None:
    """The record has the contract's keys, its job is a job on the card that ran it, with the versions that ran."""
    found = record(JOBS[0], RESULT)
    assert {"id", "group", "source", "date", "job", "measured", "completeness", "note"} == found.keys()
    job = read_job(found["job"])
    assert job.hardware is not None
    assert job.train is not None
    assert (job.hardware.gpu, job.train.version) == ("NVIDIA H200", "torch 2.13.0, transformers 5.24.0")
    assert [(m["figure"], m["value"]) for m in found["measured"]] == list(RESULT["figures"].items())
    assert all(m["rank"] in COMPARABLE_RANKS for m in found["measured"])


def test_an_unknown_card_is_named_with_its_memory() -> None:
    """A card that the catalogue does not have gives a job that can be answered all the same."""
    environment = {**RESULT["environment"], "gpu": "NVIDIA Something New"}
    found = record(JOBS[0], {**RESULT, "environment": environment})
    assert estimate(found["job"]).hardware.capacity == 150_000_000_000


def test_a_newer_measurement_replaces_the_older(tmp_path: Path) -> None:
    """Records of other jobs stay in the file."""
    path = tmp_path / "records" / "card.jsonl"
    first, second = record(JOBS[0], RESULT), record(JOBS[1], RESULT)
    write(path, [first, second])
    newer = {**first, "date": "2999-01-01"}
    write(path, [newer])
    assert read(path) == [newer, second]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_the_table_shows_errors_and_a_summary() -> None:
    """Each figure with measured, predicted and error; then the kinds of run."""
    lines = table([record(JOBS[0], RESULT)])
    row = next(line for line in lines if "peak.allocated" in line)
    predicted = estimate(JOBS[0].job | {"hardware": {"gpu": "NVIDIA H200"}}).figures["peak.allocated"]
    assert row.split()[2:4] == ["8.000", f"{predicted / 2**30:.3f}"]
    assert lines[-1].startswith("own-full")
