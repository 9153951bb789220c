"""Runs are measured from outside and from inside; without a GPU the record says what it lacks, with a driver every process is seen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everybyte.basics.errors import BadInput
from everybyte.basics.units import GiB, MiB
from everybyte.measure.recording.inside import Recorder
from everybyte.measure.recording.outside import joined, merged, read_record
from everybyte.measure.recording.outside import record as record_run

SOURCE = Path(__file__).with_name("fake_nvml.c")
EVERYBYTE = Path(sys.executable).with_name("everybyte")


class FakeCuda:
    """torch.cuda with counters that a test sets."""

    def __init__(self) -> None:
        self.now = self.peak = self.reserved = 0

    def hold(self, nbytes: int) -> None:
        """Allocates, or frees below zero."""
        self.now += nbytes
        self.peak, self.reserved = max(self.peak, self.now), max(self.reserved, self.now)

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def max_memory_allocated(self) -> int:
        return self.peak

    def max_memory_reserved(self) -> int:
        return self.reserved

    def memory_allocated(self) -> int:
        return self.now

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.now

    def current_device(self) -> int:
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A torch with a GPU."""
    fake = FakeCuda()
    torch = SimpleNamespace(cuda=fake, __version__="9.9", version=SimpleNamespace(cuda="13.0"), Tensor=int, nn=SimpleNamespace(Parameter=float))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr("everybyte.measure.recording.inside._cpu_tensors", lambda: 0)
    return fake


def test_peaks_by_phase(cuda: FakeCuda, tmp_path: Path) -> None:
    """Each phase has its own peak, the run has the highest, and what is held after the optimizer is static."""
    with Recorder(tmp_path / "run.json") as run:
        for _ in range(2):
            with run.phase("forward"):
                cuda.hold(5 * GiB)
            with run.phase("backward"):
                cuda.hold(2 * GiB)
                cuda.hold(-6 * GiB)
            with run.phase("optimizer"):
                cuda.hold(GiB)
                cuda.hold(-GiB)
    found = read_record(tmp_path / "run.json")
    assert {phase["name"]: phase["allocated"] for phase in found["phases"]} == {"forward": 6 * GiB, "backward": 8 * GiB, "optimizer": 3 * GiB}
    assert found["figures"] == {"peak.allocated": 8 * GiB, "peak.reserved": 8 * GiB, "static.allocated": 2 * GiB}
    assert found["lacks"] == []


def test_a_run_that_ends_out_of_memory_is_recorded(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message stands in the record, and the exception goes on."""
    monkeypatch.setattr(Recorder, "_dump_snapshot", lambda self: None)
    with pytest.raises(RuntimeError), Recorder(tmp_path / "run.json"):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert read_record(tmp_path / "run.json")["oom"].startswith("CUDA out of memory")


def test_ranks_write_files_of_their_own(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun each rank has a file; merged, the worst rank counts and the spread is told."""
    for rank, nbytes in enumerate((3, 5, 4)):
        monkeypatch.setenv("RANK", str(rank))
        cuda.now = cuda.peak = cuda.reserved = 0
        with Recorder(tmp_path / "run.json"):
            cuda.hold(nbytes * GiB)
    files = sorted(tmp_path.glob("*.json"))
    assert [file.name for file in files] == ["run.rank0.json", "run.rank1.json", "run.rank2.json"]
    whole = merged(files)
    assert whole["figures"]["peak.allocated"] == 5 * GiB
    assert whole["spread"]["peak.allocated"] == [3 * GiB, 5 * GiB]


def test_without_a_gpu_host_memory_is_measured(tmp_path: Path) -> None:
    """A program without a GPU: its host memory, and torch's tensors on the CPU; what is lacking is said; its exit code is kept."""
    code = "import torch; kept = torch.ones(64 * 2**18); import time; time.sleep(0.3); raise SystemExit(3)"
    found, status = record_run([sys.executable, "-c", code], 0.05)
    assert status == 3
    assert found["ranks"][0]["host"]["torch_cpu"] >= 64 * MiB
    assert found["figures"]["host.bytes"] > 64 * MiB
    assert any("no GPU was used" in line for line in found["lacks"])


def test_a_driver_is_asked_for_every_process(tmp_path: Path) -> None:
    """With a driver (a small library that stands for it) the record has the peak of the run's own process and of the GPU; unused GPUs are left out."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(SOURCE)], check=True)
    pid = tmp_path / "pid"
    program = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(0.6)"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "FAKE_NVML_PID_FILE": str(pid)}
    command = [str(EVERYBYTE), "record", "--out", str(tmp_path / "run.json"), "--", sys.executable, "-c", program]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    found = read_record(tmp_path / "run.json")
    (gpu,) = found["seen"]["gpus"]
    assert (gpu["index"], gpu["capacity"], list(gpu["processes"].values())) == (0, 80 * GiB, [9 * GiB])
    assert gpu["used_peak"] > gpu["used_before"] >= 10 * GiB
    assert found["figures"]["peak.device"] == 9 * GiB
    watched = subprocess.run([str(EVERYBYTE), "watch", "--count", "1", "--json"], env=environment, check=True, capture_output=True, text=True)
    assert [state["capacity"] for state in json.loads(watched.stdout)["gpus"]] == [80 * GiB] * 2


def test_figures_of_the_driver_go_to_the_process() -> None:
    """What the driver saw of a process stands beside what torch saw in it."""
    rank: dict[str, Any] = {"pid": 7, "figures": {"peak.allocated": 5}, "environment": {}, "lacks": []}
    seen = {"gpus": [{"processes": {"7": 9, "8": 1}}], "host_peak": 3}
    whole = joined([rank], seen, [], {})
    assert whole["figures"] == {"peak.allocated": 5, "peak.device": 9, "host.bytes": 3}


def test_bad_input(tmp_path: Path) -> None:
    """A command that is not there, and a file that is no record, are refused with their place."""
    with pytest.raises(BadInput, match="cannot be started"):
        record_run(["no-such-program-at-all"])
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(BadInput, match="is no record"):
        read_record(other)
