"""The routes behind the page's tabs: plans, hardware, exports, and what dropped logs and snapshots say."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import msgspec
import pytest
from servers import SERVE, TRAIN, error_of, post

from everybyte.web import forms

OOM = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.06 GiB is free. "
    b"Of the allocated memory 74.60 GiB is allocated by PyTorch, and 2.62 GiB is reserved by PyTorch but unallocated.\n"
)
TABLE = b"index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB]\n0, NVIDIA L40S, 46068 MiB, 40000 MiB, 6068 MiB\n"
SMALL: dict[str, Any] = {
    "model": "Qwen/Qwen2.5-0.5B",
    "hardware": {"gpu": "a100-sxm-80gb", "gpus": 2},
    "train": {"framework": "megatron", "micro_batch": 1, "seq_len": 512, "grad_accum": 2, "precision": "bf16"},
}


def file(content: bytes, name: str = "a.log") -> dict[str, Any]:
    """A dropped file."""
    return {"name": name, "size": len(content), "base64": base64.b64encode(content).decode()}


def test_each_plan_opens_as_a_job_with_the_same_memory(server: str) -> None:
    """The job of the first plan, estimated, has the peak that the plan says; a wrong key of `fix` is told at `fix`."""
    found = post(server, "plan", {"job": SMALL, "top": 2}).json()
    msgspec.convert(found, forms.PlanAnswer)
    first = found["plans"][0]
    assert post(server, "estimate", first["job"]).json()["figures"]["peak.device"] == first["peak.device"]
    assert error_of(post(server, "plan", {"job": SMALL, "fix": ["speed=9"]}))["path"] == "fix"
    assert error_of(post(server, "plan", {"job": {**SMALL, "hardware": {"gpu": "l4"}}}))["path"] == "gpus"


def test_each_gpu_opens_as_a_job_that_fits(server: str) -> None:
    """The job of a row, estimated, needs what the row says."""
    found = post(server, "hardware", {"job": TRAIN, "only": ["L40S"]}).json()
    msgspec.convert(found, forms.HardwareAnswer)
    row = found["rows"][0]
    assert post(server, "estimate", row["job"]).json()["figures"]["peak.device"] == row["peak.device"]
    assert "no GPU" in error_of(post(server, "hardware", {"job": TRAIN, "only": ["abacus"]}))["message"]


def test_export_writes_files_and_refuses_unknown_targets(server: str) -> None:
    """A server's job becomes vLLM's command; a target that is none is told at `to`."""
    assert "vllm serve" in "".join(post(server, "export", {"job": SERVE, "to": "vllm"}).json()["files"].values())
    assert error_of(post(server, "export", {"job": SERVE, "to": "vlm"}))["path"] == "to"


def test_doctor_reads_a_dropped_log(server: str) -> None:
    """The request, the free bytes and a cause are read; half a file is refused."""
    found = post(server, "doctor", {"file": file(OOM)}).json()
    assert found["diagnosis"]["requested_bytes"] == 2 * 2**30
    assert found["diagnosis"]["cause"] == "fragmentation"
    assert found["lines"]
    assert error_of(post(server, "doctor", {"file": {**file(OOM), "size": 10**9}}))["path"] == "file.size"


def test_figures_stand_beside_the_prediction(server: str) -> None:
    """What nvidia-smi prints is read to the MiB, with the job's prediction beside it."""
    found = post(server, "figures", {"file": file(TABLE, "smi.csv"), "job": TRAIN}).json()
    assert found["measured"][0]["value"] == 40000 * 2**20
    assert found["predicted"] == post(server, "estimate", TRAIN).json()["figures"]


def test_snapshot_runs_nothing_of_a_dropped_file(server: str) -> None:
    """Plain values are read to the byte; a pickle that names a function is refused."""
    event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
    found = post(server, "snapshot", {"file": file(pickle.dumps({"segments": [], "device_traces": [[event]]}), "a.pickle")}).json()
    assert found["devices"][0]["allocated"]["peak"] == 512
    assert "names builtins.print" in error_of(post(server, "snapshot", {"file": file(pickle.dumps(print), "a.pickle")}))["message"]


@pytest.mark.parametrize("task", ["doctor", "snapshot", "figures"])
def test_what_is_no_base64_is_refused_with_its_place(server: str, task: str) -> None:
    """Broken base64 is told at its key."""
    assert error_of(post(server, task, {"file": {"name": "a.log", "base64": "%%"}}))["path"] == "file.base64"
