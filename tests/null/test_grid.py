"""Sweeps: every combination has one row, whatever is wrong with it and whichever process is killed."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from everybyte import estimate, quick
from everybyte.basics.errors import BadInput
from everybyte.cli.app import run
from everybyte.grid.axes import Axis, read_axis
from everybyte.grid.cases import Case, cases_of_jobs, cases_of_program
from everybyte.grid.rows import lost
from everybyte.grid.run import run_grid

JOB: dict[str, Any] = {
    "model": "meta-llama/Llama-3.2-1B",
    "hardware": {"gpu": "a100-40gb", "gpus": 8},
    "train": {"framework": "torchtitan", "micro_batch": 1, "seq_len": 2048},
}
COMMAND = [sys.executable, "-c", "from everybyte.cli import main; main()"]


def cases(count: int, **more: Any) -> list[Case]:
    """Quick questions about as many lengths."""
    return cases_of_jobs([("job", {**JOB, **more})], [Axis("seq_len", tuple(range(64, 64 * (count + 1), 64)))], "quick")


def lengths(rows: list[dict[str, Any]]) -> list[int]:
    return [row["train.seq_len"] for row in rows]


def test_rows_are_the_answers(tmp_path: Path) -> None:
    """A row has the figures of `estimate` and of `quick` for the same job, in the order of the axes."""
    axes = [read_axis("micro_batch=1,2"), read_axis("train.recompute=[none, {policy: full}]")]
    for ask in ("estimate", "quick"):
        found = run_grid(cases_of_jobs([("job", JOB)], axes, ask), workers=1).rows
        assert [(row["train.micro_batch"], row["train.recompute"]) for row in found][:2] == [(1, "none"), (1, '{"policy":"full"}')]
        alone = {**JOB, "train": {**JOB["train"], "micro_batch": 2, "recompute": "full"}}
        assert found[3]["peak.allocated"] == (estimate(alone).figures["peak.allocated"] if ask == "estimate" else quick(alone).peak_allocated)


def test_a_wrong_combination_is_a_row() -> None:
    """What is refused has its reason in its row, and the others their answers."""
    found = run_grid(cases_of_jobs([("job", JOB)], [Axis("gpu", ("h100", "no-such-card", "l40s"))], "estimate"), workers=1)
    assert found.failed == 1
    assert [row["error"] is None for row in found.rows] == [True, False, True]
    assert "no-such-card" in found.rows[1]["error"]


def test_a_restart_works_out_what_is_missing_only(tmp_path: Path) -> None:
    """Rows that a file keeps are taken from it, a line that a kill cut off is made again, and the table is whole."""
    to, asked = str(tmp_path / "table.csv"), cases(12)
    run_grid(asked[:7], to, workers=1)
    kept = Path(f"{to}.rows")
    kept.write_bytes(kept.read_bytes()[:-10])
    found = run_grid(asked, to, workers=1)
    assert found.known == 6
    lines = kept.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 12
    with open(to, newline="") as file:
        assert [int(row["train.seq_len"]) for row in csv.DictReader(file)] == [case.values["train.seq_len"] for case in asked]


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Rows are not written behind something else."""
    (tmp_path / "table.csv.rows").write_text("notes\n")
    with pytest.raises(BadInput, match="something else than rows"):
        run_grid(cases(2), str(tmp_path / "table.csv"), workers=1)
    assert (tmp_path / "table.csv.rows").read_text() == "notes\n"


def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """Of two processes on this machine one is killed in the middle: each combination still has its answer, once."""
    asked, killed = cases(40), []

    def kill(done: int, total: int) -> None:
        children = multiprocessing.active_children()
        if done >= total // 3 and not killed and children:
            killed.append(children[0].pid)
            os.kill(children[0].pid or 0, signal.SIGKILL)

    to = str(tmp_path / "table.parquet")
    found = run_grid(asked, to, workers=2, tell=kill)
    assert killed
    assert found.failed == 0
    assert lengths(found.rows) == [case.values["train.seq_len"] for case in asked]
    table = parquet.read_table(to)
    assert table.num_rows == 40
    assert table.column("peak.device").to_pylist() == [row["peak.device"] for row in found.rows]
    assert len(Path(f"{to}.rows").read_text().splitlines()) == 40


def test_a_cluster_loses_a_worker_and_nothing_else(tmp_path: Path) -> None:
    """Of three processes of a Dask cluster one is killed in the middle: each combination has its answer, the same as on this machine."""
    from distributed import LocalCluster

    asked, killed = cases(150), []
    with LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50) as cluster:
        process = next(iter(cluster.workers.values())).pid

        def kill(done: int, total: int) -> None:
            if done >= total // 3 and not killed:
                killed.append(process)
                os.kill(process, signal.SIGKILL)

        to = str(tmp_path / "table.csv")
        found = run_grid(asked, to, scheduler=cluster.scheduler_address, tell=kill)
    assert killed
    assert found.failed == 0
    assert lengths(found.rows) == [case.values["train.seq_len"] for case in asked]
    assert len(Path(f"{to}.rows").read_text().splitlines()) == 150
    here = run_grid(asked[70:74], workers=1).rows
    assert [row["peak.device"] for row in found.rows[70:74]] == [row["peak.device"] for row in here]


def test_the_command_goes_on_after_a_kill(tmp_path: Path) -> None:
    """The command itself is killed: its workers end with it, and the same command again finishes the table without working anything out twice."""
    job, to = tmp_path / "sweep.yaml", tmp_path / "table.csv"
    job.write_text(
        "model: meta-llama/Llama-3.2-1B\ntrain: {framework: torchtitan, micro_batch: 1}\nover: {train.seq_len: ["
        + ", ".join(map(str, range(64, 12864, 64)))
        + "]}\n"
    )
    command = [*COMMAND, "sweep", str(job), "--to", str(to), "--workers", "2", "--ask", "quick", "--rows", "1"]
    kept = Path(f"{to}.rows")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as first:
        while not kept.exists() or kept.stat().st_size < 4096:
            time.sleep(0.02)
        first.kill()
    before = kept.read_text().count("\n")
    assert 0 < before < 200
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert f"wrote 200 rows to {to}, " in done.stderr
    assert kept.read_text().count("\n") == 200
    keys = [line.split('"', 4)[3] for line in kept.read_text().splitlines()]
    assert len(set(keys)) == 200


@pytest.mark.long
def test_a_trace_of_each_combination(tmp_path: Path) -> None:
    """A program is traced with each value of its own argument: twice the batch holds more, and a fault of one is its row."""
    program = tmp_path / "tiny.py"
    program.write_text(
        "import sys\nimport torch\n\nrows = int(sys.argv[2])\nassert rows < 5\nmodel = torch.nn.Linear(64, 64).cuda()\n"
        "sgd = torch.optim.SGD(model.parameters())\n"
        "for _ in range(2):\n    model(torch.ones(1024 * rows, 64, device='cuda')).sum().backward()\n    sgd.step()\n    sgd.zero_grad()\n"
    )
    found = run_grid(cases_of_program(str(program), (), [Axis("--batch", (1, 2, 9))]), workers=1).rows
    assert found[0]["peak.allocated"] < found[1]["peak.allocated"]
    assert "AssertionError" in found[2]["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--over", "micrbatch=1"], "did you mean micro_batch"),
        (["--over", "train.micro_batch"], "names no values"),
        (["--over", "train.micro_batch=1,1"], "twice"),
        (["--over", "seq_len=1,2", "--to", "table.xls"], ".csv nor in .parquet"),
        (["--over", "seq_len=1,2", "--to", "/no/such/folder/t.csv"], "no folder"),
        (["--over", "seq_len=1,2", "--scheduler", "localhost"], "no address"),
        (["--over", "seq_len=1,2", "--scheduler", "tcp://127.0.0.1:9", "--workers", "2"], "--workers"),
        ([], "is needed"),
    ],
)
def test_bad_input_is_one_message(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be swept is refused with its place, exit code 2, before anything is worked out."""
    job = tmp_path / "job.yaml"
    job.write_text("model: meta-llama/Llama-3.2-1B\ntrain: {framework: torchtitan, micro_batch: 1, seq_len: 64}\n")
    assert run(["sweep", str(job), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_scheduler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message with the address and a way out."""
    monkeypatch.setattr("everybyte.grid.cluster.WAIT_S", 0.2)
    with pytest.raises(BadInput, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        run_grid(cases(1), scheduler="tcp://127.0.0.1:9")


def test_a_case_that_ends_its_process_has_a_row() -> None:
    """The row says so and has no figures."""
    row = lost(cases(1)[0], "ended")
    assert row["error"] == "ended"
    assert row["train.seq_len"] == 64
