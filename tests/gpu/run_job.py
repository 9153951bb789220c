"""Runs one job on the GPU and prints what it took: a process of its own, so that each job has a clean allocator and a crash costs one job.

Reads one line of JSON ({"job", "snapshot"}) from standard input once torch and transformers are imported, and answers with one line.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import transformers
from jobs import JOB, STEPS, TRACED_ON
from loop import Inference, Training

Fields = dict[str, Any]
READY, RESULT = "READY", "RESULT "
DEVICE = "cuda"
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "torchao", "liger_kernel")


def main() -> None:
    """Waits for a job, runs it, prints the result."""
    transformers.logging.set_verbosity_error()
    print(READY, flush=True)
    task = json.loads(sys.stdin.readline())
    with contextlib.redirect_stdout(sys.stderr):
        result = run(task["job"], task.get("snapshot"))
    print(RESULT + json.dumps(result), flush=True)


def program() -> Callable[[], object]:
    """The same program for `everybyte trace tests/gpu/run_job.py:program`: builds the job that the environment holds, and returns its step."""
    job, device = json.loads(os.environ[JOB]), os.environ.get(TRACED_ON, DEVICE)
    return Training(job, device).step if "train" in job else Inference(job, device).run


def run(job: Fields, snapshot: str | None) -> Fields:
    """Figures of a job with the environment; `error` instead of figures if it failed, `oom` if that was for want of memory."""
    result: Fields = {}
    try:
        used_before = device_used()
        torch.cuda.init()
        result["environment"] = environment()
        with recorded(snapshot):
            figures = train(job) if "train" in job else serve(job)
        figures["peak.device"], result["device_by"] = device_bytes(used_before)
        result["figures"] = figures
    except torch.cuda.OutOfMemoryError as error:
        result |= {"oom": True, "error": str(error).split("\n")[0][:300]}
    except Exception as error:  # noqa: BLE001 - the parent shows it beside the job's name
        result["error"] = f"{type(error).__name__}: {error}"[:500]
    return result


@contextlib.contextmanager
def recorded(path: str | None) -> Iterator[None]:
    """Records every allocation and writes a memory snapshot, also when the job runs out of memory."""
    if path is None:
        yield
        return
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=200_000)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            torch.cuda.memory._dump_snapshot(path)


def train(job: Fields) -> dict[str, int]:
    """Three steps; peak.allocated is that of the last, when optimizer states are there."""
    training = Training(job, DEVICE)
    reserved = 0
    for _ in range(STEPS):
        reserved = max(reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()
        training.step()
    gc.collect()
    torch.cuda.synchronize()
    return {
        "peak.allocated": torch.cuda.max_memory_allocated(),
        "peak.reserved": max(reserved, torch.cuda.max_memory_reserved()),
        "static.allocated": torch.cuda.memory_allocated(),
    }


def serve(job: Fields) -> dict[str, int]:
    """Two runs; peak.allocated is that of the second, weights are counted before the first."""
    inference = Inference(job, DEVICE)
    prompt = sum(t.untyped_storage().nbytes() for t in inference.batch.values())
    weights = torch.cuda.memory_allocated() - -(-prompt // 512) * 512
    inference.run()
    reserved = torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    inference.run()
    torch.cuda.synchronize()
    return {
        "weights": weights,
        "peak.allocated": torch.cuda.max_memory_allocated(),
        "peak.reserved": max(reserved, torch.cuda.max_memory_reserved()),
    }


# -- the device -------------------------------------------------------------------------------------------------------------------
def environment() -> Fields:
    """What the record names: the card, its driver, versions."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": smi("--query-gpu=driver_version") or "unknown",
        "cuda": torch.version.cuda,
        "versions": {name: found for name in PACKAGES if (found := installed(name))},
        "alloc_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", os.environ.get("PYTORCH_ALLOC_CONF", "")),
    }


def installed(name: str) -> str:
    """Version of a package, or nothing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def smi(*query: str) -> str:
    """The first line that nvidia-smi answers for the card in use, or nothing."""
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    try:
        done = subprocess.run(["nvidia-smi", *query, "--format=csv,noheader,nounits", f"--id={card}"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().split("\n")[0]


def device_used() -> int:
    """Bytes in use on the whole card, 0 where nvidia-smi is not there."""
    text = smi("--query-gpu=memory.used")
    return int(text) * 2**20 if text.isdigit() else 0


def device_bytes(used_before: int) -> tuple[int, str]:
    """(bytes of this process on the card, how that was found out)."""
    found = by_nvml()
    if found:
        return found, "NVML, this process"
    for line in smi_processes():
        process, _, used = line.partition(",")
        if process.strip() == str(os.getpid()) and used.strip().isdigit():
            return int(used) * 2**20, "nvidia-smi, this process"
    if used_before:
        return device_used() - used_before, "nvidia-smi, the card's use less that before"
    free, total = torch.cuda.mem_get_info()
    return total - free, "mem_get_info, the whole card"


def by_nvml() -> int:
    """NVML's figure for this process, 0 without nvidia-ml-py or where a container hides its number."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        mine = [p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()]
    except Exception:  # noqa: BLE001 - any failure means that another way is tried
        return 0
    return int(mine[0] or 0) if mine else 0


def smi_processes() -> list[str]:
    """`pid, MiB` lines of the processes on the cards."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().split("\n")


if __name__ == "__main__":
    main()
