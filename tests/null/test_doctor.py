"""The doctor: messages of every engine are found, their numbers read, and causes follow from the evidence."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from everybyte.basics.units import GiB, MiB
from everybyte.cli.app import group
from everybyte.diagnose.doctor import diagnose
from everybyte.diagnose.evidence import frame_table
from everybyte.diagnose.suspicion import CAUSES, Suspicion, ranked
from everybyte.diagnose.tensor import interval, named, of_config
from everybyte.diagnose.weigh import MODULES
from everybyte.measure.messages.form import forms
from everybyte.report.doctor import PLAIN, as_json

LOGS = Path(__file__).parent / "data/logs"
FRAME_2 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {r} GiB. GPU 1 has a total capacity of {c} GiB of which {f} GiB is free. "
    "Including non-PyTorch memory, this process has {p} GiB memory in use. Of the allocated memory {a} GiB is allocated by PyTorch, "
    "and {u} GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting expandable_segments:True."
)


def said(text: str, **numbers: object) -> dict[str, object]:
    """The diagnosis of a text, as JSON."""
    return as_json(diagnose(io.BytesIO((text.format(**numbers) if numbers else text).encode())))


def test_numbers_of_the_new_frame() -> None:
    """Every number of torch's message is read as whole bytes; reserved is allocated and the rest, others are what is left of the capacity."""
    found = said(FRAME_2, r="2.00", c="80.00", f="1.00", p="70.00", a="68.00", u="0.50")
    expected = {"requested": 2, "capacity": 80, "free": 1, "process": 70, "allocated": 68, "reserved": 68.5, "other": 9}
    assert {name: found[f"{name}_bytes"] for name in expected} == {name: int(value * GiB) for name, value in expected.items()}
    assert (found["device"], found["engine"], found["messages"]) == ("cuda:1", "torch", 1)


def test_numbers_of_the_old_frame() -> None:
    """The frame until torch 2.0: what others hold is total − reserved − free, and the cause follows from it."""
    found = said(
        "RuntimeError: CUDA out of memory. Tried to allocate 1.63 GiB (GPU 0; 44.56 GiB total capacity; 27.91 GiB already allocated; 565.31 MiB free; "
        "27.93 GiB reserved in total by PyTorch)"
    )
    assert found["other_bytes"] == pytest.approx(16.08 * GiB, rel=0.01)
    assert found["cause"] == "other_process"


def test_unknown_is_null_and_nought_is_nought() -> None:
    """2^64 bytes and `0 bytes` of a process mean that the driver does not know; `0 bytes` free is a number."""
    found = said(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 24.00 GiB of which 0 bytes is free. "
        "Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory 20.00 GiB is allocated by PyTorch, "
        "and 1.00 GiB is reserved by PyTorch but unallocated."
    )
    assert found["process_bytes"] is None
    assert found["free_bytes"] == 0
    assert found["other_bytes"] is None
    assert found["requested_bytes"] == GiB


def test_the_own_process_under_a_foreign_number_is_not_another() -> None:
    """In a container the own process stands among the others: it is the one that is as large as what PyTorch reserved and a context."""
    found = said(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free. "
        "Process 11 has 30.00 GiB memory in use. Process 12 has 49.00 GiB memory in use. Of the allocated memory 47.00 GiB is allocated by PyTorch, "
        "and 1.00 GiB is reserved by PyTorch but unallocated."
    )
    assert found["process_bytes"] == 49 * GiB
    assert found["other_bytes"] == 30 * GiB


@pytest.mark.parametrize(("rest", "first"), [("9.00", True), ("0.09", False)])
def test_fragmentation_needs_a_rest_that_would_have_served(rest: str, first: bool) -> None:
    """Fragmentation comes first only where free and unallocated bytes together reach the request, and only then its cure is named."""
    found = said(FRAME_2, r="4.00", c="80.00", f="0.10", p="79.50", a="70.00", u=rest)
    assert (found["cause"] == "fragmentation") is first
    assert any("env.alloc_conf" in cure["change"] for cure in found["cures"]) is first  # type: ignore[union-attr]


def test_a_loss_that_ran_out() -> None:
    """The frames in front of the message say where the program was, the earliest message of eight ranks counts, and the request is logits."""
    found = as_json(diagnose(io.BytesIO((LOGS / "loss.log").read_bytes())))
    assert (found["cause"], found["phase"], found["rank"], found["line"], found["messages"]) == ("logits", "loss", 2, 11, 2)
    assert found["tensor"]["formula"] == "T*V*4"
    assert found["tensor"]["bytes"] == pytest.approx(4 * 8192 * 128_256 * 4, rel=0.001)
    assert not any(key.startswith("serve.") for cure in found["cures"] for key in cure["change"])


FRAMES = {
    "optimizer": ('  File "torch/optim/adam.py", line 1, in _init_group\n    state["exp_avg"] = torch.zeros_like(', "optimizer_states"),
    "save": ('  File "trainer.py", line 9, in _save_checkpoint\n    state = model.state_dict()', "checkpoint_save"),
    "capture": ('  File "vllm/worker/model_runner.py", line 3, in capture_model\n    self._capture()', "cuda_graphs"),
    "profile": ('  File "vllm/v1/worker/gpu_worker.py", line 3, in determine_available_memory\n    self.model_runner.profile_run()', "profiling_run"),
    "gather": ('  File "deepspeed/partitioned_param_coordinator.py", line 3, in fetch_sub_module\n    self.__all_gather_params(x)', "comm_buffers"),
    "eval": ('  File "trainer.py", line 3, in evaluation_loop\n    loss = x', "evaluation_or_generation"),
    "forward": ('  File "modeling.py", line 3, in eager_attention_forward\n    attn_weights = torch.matmul(query, key)', "attention_scores"),
    "backward": ('  File "torch/autograd/__init__.py", line 3, in backward\n    _engine_run_backward(', "activations"),
}


@pytest.mark.parametrize(("phase", "frame", "cause"), [(phase, *row) for phase, row in FRAMES.items()])
def test_frames_give_phase_and_cause(phase: str, frame: str, cause: str) -> None:
    """The innermost frame that is known decides the phase and the cause of a plain lack of room."""
    message = FRAME_2.format(r="2.00", c="80.00", f="0.50", p="79.50", a="78.00", u="0.10")
    found = said(f'Traceback (most recent call last):\n  File "main.py", line 1, in main\n{frame}\n{message}')
    assert (found["phase"], found["cause"]) == (phase, cause)


HOST = {
    "kernel": "[123.4] Memory cgroup out of memory: Killed process 4321 (python) total-vm:90000000kB, anon-rss:60000000kB",
    "slurm": "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
    "kubernetes": "    State: Terminated  Reason: OOMKilled  Exit Code: 137",
    "torchrun": "  exitcode  : -9 (pid: 4321)\n  traceback : Signal 9 (SIGKILL) received by PID 4321",
    "shm": "RuntimeError: DataLoader worker (pid 4321) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    "cpu": "RuntimeError: [enforce fail at alloc_cpu.cpp:1] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes.",
}


@pytest.mark.parametrize("name", HOST)
def test_host_memory(name: str) -> None:
    """Kills by the kernel, containers and schedulers are told as memory of the host."""
    assert said(f"step 10 loss 2.0\n{HOST[name]}\n")["cause"] == "host_memory"


DECOYS = {
    "assert first": "../aten/src/ATen/native/cuda/Indexing.cu: Assertion `srcIndex < srcSelectDimSize` failed.\n"
    "RuntimeError: CUDA error: device-side assert triggered\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "disk": "OSError: [Errno 28] No space left on device\n",
    "advice": "WARNING If out-of-memory error occurs during cudagraph capture, consider decreasing gpu_memory_utilization\nINFO done",
    "shared memory of a kernel": "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
    "retracted": "WARNING KV cache pool is full. Retract requests. #retracted_reqs: 1\nINFO all requests done",
    "nothing": "step 1 loss 3.0\nstep 2 loss 2.9\ndone",
}


@pytest.mark.parametrize("name", DECOYS)
def test_logs_that_are_no_memory_fault(name: str) -> None:
    """Another fault that came first, advice, and warnings that were survived are no lack of memory: exit code 0."""
    result = CliRunner().invoke(group, ["doctor", "-", "--json"], input=DECOYS[name], standalone_mode=False)
    assert json.loads(result.stdout)["cause"] == "not_memory"
    assert result.return_value == 0


ONE_REQUEST = (
    "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is needed, which is larger than the available "
    "KV cache memory (3.18 GiB). Based on the available memory, the estimated maximum model length is 34736."
)
COMPUTE = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9866.00 MiB on device 1: cudaMalloc failed: out of memory\n"
    "ggml_gallocr_reserve_n: failed to allocate CUDA1 buffer of size 10345253120"
)
ENGINES = {
    "vllm one request": (ONE_REQUEST, ("kv_cache", 24 * GiB, int(3.18 * GiB))),
    "sglang": ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", ("memory_fraction", None, None)),
    "llama.cpp": (COMPUTE, ("activations", 10345253120, None)),
    "mlx": (
        "RuntimeError: [metal::malloc] Attempting to allocate 25353916928 bytes which is greater than the maximum allowed buffer size of 20100448256 bytes.",
        ("limit", 25353916928, None),
    ),
}


@pytest.mark.parametrize("name", ENGINES)
def test_messages_of_engines(name: str) -> None:
    """Engines say in words what did not fit; their numbers are read by name."""
    text, (cause, requested, free) = ENGINES[name]
    found = said(text)
    assert (found["cause"], found["requested_bytes"]) == (cause, requested)
    assert free is None or found["free_bytes"] == pytest.approx(free, abs=1)


def test_a_request_is_decoded_against_what_the_allocator_rounds() -> None:
    """PyTorch asks the driver in steps of 2 MiB: 135.00 MiB are printed as 136.00, and 20.00 MiB name no tensor."""
    assert interval(20 * MiB, digits=0) is None
    found = named(136 * MiB, of_config({"hidden_size": 5120, "intermediate_size": 13824, "vocab_size": 32000}))
    assert found is not None
    assert found.bytes == 13824 * 5120 * 2


def test_steady_growth_is_a_leak() -> None:
    """Memory that grows at every step is a leak, memory that follows the batch is none."""
    message = FRAME_2.format(r="2.00", c="80.00", f="0.50", p="79.50", a="78.00", u="0.10")
    steps = "\n".join(f"step {i}: loss 1.0, memory allocated: {20 + i:.2f} GiB" for i in range(50))
    assert said(f"{steps}\n{message}")["cause"] == "leak"
    jagged = random.Random(0)
    steps = "\n".join(f"step {i}: loss 1.0, memory allocated: {40 + 20 * jagged.random():.2f} GiB" for i in range(50))
    assert said(f"{steps}\n{message}")["cause"] != "leak"


def test_cached_memory_of_deepspeed_is_no_leak() -> None:
    """see_memory_usage that shows much reserved and little allocated is told as cached memory."""
    found = said("[INFO] MA 0.58 GB         Max_MA 26.38 GB         CA 26.71 GB         Max_CA 27 GB \n")
    assert found["cause"] == "fragmentation"


HOSTILE = {
    "not text": bytes(range(256)) * 100,
    "colours": b"\x1b[31mRuntimeError: CUDA out of memory.\x1b[0m Tried to allocate \x1b[1m2.00 GiB\x1b[0m",
    "one line of 40 MB": b"CUDA out of memory. Tried to allocate 2.00 GiB " + b"x" * (40 << 20),
    "UTF-16": "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB".encode("utf-16"),
    "empty": b"",
    "absurd numbers": b"CUDA out of memory. Tried to allocate 99999999999999999999.00 GiB (GPU 0; 1.2.3 GiB total capacity;",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_logs(name: str) -> None:
    """Whatever bytes come, an answer comes: in bounded memory and without an exception."""
    found = as_json(diagnose(io.BytesIO(HOSTILE[name])))
    assert found["cause"] in CAUSES


def test_tables_use_the_closed_list() -> None:
    """Every cause that a form or frame names is of the closed list and has words; every rule has a module of its own."""
    named_causes = {cause for form in forms() for cause, _ in form.causes} | {cause for _, place in frame_table() for cause, _ in place.causes}
    assert named_causes <= set(CAUSES)
    assert set(PLAIN) == set(CAUSES)
    assert len({module.__name__ for module in MODULES}) == len(MODULES)


def test_signs_add_up() -> None:
    """Independent signs for a cause add up as 1 − Π(1 − p), never to more than 1."""
    (first, second) = ranked([Suspicion("logits", 0.5, "a"), Suspicion("logits", 0.5, "b"), Suspicion("leak", 0.6, "c")])
    assert (first.cause, first.confidence, second.confidence) == ("logits", 0.75, 0.6)


def test_bad_input_is_one_message() -> None:
    """A folder and a file that is not there end in one message with exit code 2."""
    from everybyte.cli.app import run

    assert run(["doctor", str(LOGS)]) == 2
    assert run(["doctor", "no-such.log"]) == 2
