"""Programs of users, traced in a process of their own: what is seen, and what is said when something goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from everybyte.allocator.settings import read_alloc_conf
from everybyte.basics.errors import EverybyteError
from everybyte.basics.units import MiB
from everybyte.trace.recording.timeline import Timeline
from everybyte.trace.request import Progress, Traced, TraceRequest
from everybyte.trace.results.answer import answer_of
from everybyte.trace.run import TraceFailed, run
from everybyte.trace.shim import NoFakeDevice, built

pytestmark = pytest.mark.usefixtures("compiler")
DEEP = 40
"""Layers of the program `deep`."""


def test_a_trace_sees_both_steps(traced: Traced) -> None:
    """The states of the optimizer are made at the end of the first step and live through the second."""
    timeline = Timeline(traced)
    first, second, end = (mark.position for mark in traced.marks)

    def states(position: int) -> int:
        return sum(size for number, size in timeline.living(position).items() if timeline.births[number].category == "optimizer_state")

    assert [mark.name for mark in traced.marks] == ["step 1", "step 2", "end"]
    assert states(first) == 0
    assert states(second) == states(end) > 0


def test_every_storage_that_dies_was_born_before(traced: Traced) -> None:
    """Events are births and deaths of the same bytes, in this order, and nothing dies twice."""
    alive: dict[int, int] = {}
    for number, nbytes in traced.events:
        if nbytes > 0:
            assert number not in alive
            alive[number] = nbytes
        else:
            assert alive.pop(number) == -nbytes


def test_births_name_operation_module_phase_and_line(traced: Traced, toy: str) -> None:
    """The largest activation of the head says what made it, in which module and phase, and on which line of the user's code."""
    logits = next(birth for birth in traced.births if birth.shape == (256, 1000) and birth.module == "Net.head" and birth.phase == "forward")
    assert logits.operation.startswith("aten.mm")
    assert logits.dtype == "bfloat16"
    assert logits.line.startswith(f"{toy}:")
    source = Path(toy).read_text(encoding="utf-8").splitlines()[int(logits.line.rpartition(":")[2]) - 1]
    assert "self.head(x)" in source


def test_categories_are_those_of_the_ledger(traced: Traced) -> None:
    """Parameters, gradients and states of the optimizer are as many bytes as the network's size says: AdamW keeps two states a parameter."""
    answer = answer_of(traced, TraceRequest(target="toy", gpu="rtx-4090"))
    by_category = dict.fromkeys(("parameter", "gradient", "optimizer_state"), 0)
    for entry in answer.worst.ledger:
        if "optimizer" in entry.phases and entry.category in by_category:
            by_category[entry.category] += entry.bytes
    assert by_category["parameter"] == by_category["gradient"]
    assert by_category["optimizer_state"] == 2 * by_category["parameter"]
    assert answer.model.params == answer.model.trainable_params == sum(2 * 256 * 1000 // 2 for _ in range(2)) + 2 * (12 * 256 * 256 + 11 * 256)


def test_phases_add_up(traced: Traced) -> None:
    """The rows of each phase add up to the highest instant of that phase in the events, and cuBLAS' workspaces."""
    answer = answer_of(traced, TraceRequest(target="toy", gpu="rtx-4090"))
    workspace = sum(entry.bytes for entry in answer.worst.ledger if entry.id == "workspace/cublas")
    for phase in answer.worst.phases:
        assert phase.allocated == Timeline(traced).peaks[phase.name][0] + workspace


@pytest.mark.parametrize(("conf", "block"), [("", 12 * MiB), ("expandable_segments:True", 11 * MiB)])
def test_a_rest_that_is_no_block_counts(toy: str, conf: str, block: int) -> None:
    """A weight of 11 MiB lies in a segment of 12, whose rest is not worth a block of its own and is counted, as torch.cuda.memory_allocated does; segments that
    grow have no such rest."""
    asked = TraceRequest(target=f"{toy}:eleven_mib")
    answer = answer_of(run(asked), asked, read_alloc_conf(conf, "--alloc-conf"))
    assert sum(entry.bytes for entry in answer.worst.ledger if entry.category == "parameter" and "between_steps" in entry.phases) == block


def test_optimizers_take_the_way_of_a_gpu(toy: str) -> None:
    """AdamW over four matrices of 64 MiB peaks at weights, gradients, two states and one temporary of all of them: 1,280 MiB, as `foreach` needs on a GPU."""
    traced = run(TraceRequest(target=f"{toy}:four_layers"))
    assert Timeline(traced).peaks["optimizer"][0] == pytest.approx(1280 * MiB, rel=1e-4)


def test_a_moved_model_stays_that_of_its_optimizer(toy: str) -> None:
    """An optimizer that is made before its model goes to the GPU steps there: its two states have the size of the weight."""
    births = run(TraceRequest(target=f"{toy}:optimizer_first")).births
    assert [birth.nbytes for birth in births if birth.category == "optimizer_state"] == [2**20, 2**20]


@pytest.mark.cold
def test_a_script_runs_with_its_arguments_until_its_steps_are_done(toy: str) -> None:
    """A script with a loop of a thousand steps is ended after two; its --batch decides the size of its input."""
    script = str(Path(toy).with_name("script.py"))
    traced = run(TraceRequest(target=script, arguments=("--batch", "64")))
    assert [mark.name for mark in traced.marks] == ["step 1", "step 2", "end"]
    assert any(birth.shape == (64, 1024) for birth in traced.births)


def test_a_module_alone_gets_its_input(toy: str) -> None:
    """The convolution of introductions: 256 MiB of output, and what is kept for its backward pass is the input of 128 MiB."""
    traced = run(TraceRequest(target=f"{toy}:module_alone", inputs=("32,64,128,128",)))
    sizes = {birth.nbytes for birth in traced.births}
    assert {256 * MiB, 128 * MiB} <= sizes
    assert max(sizes) == 256 * MiB


@pytest.mark.parametrize(("name", "parameters"), [("resnet50", 25_557_032), ("convnext", 28_589_128)])
def test_convolution_networks_at_their_usual_size(toy: str, name: str, parameters: int) -> None:
    """ResNet-50 and ConvNeXt-T run on the fake GPU and have as many trained parameters as their papers' code."""
    asked = TraceRequest(target=f"{Path(toy).with_name('zoo.py')}:{name}", steps=1)
    answer = answer_of(run(asked), asked)
    assert answer.model.trainable_params == parameters


def test_a_model_of_a_library_is_traced_by_its_name() -> None:
    """A class of diffusers is built and run by its name alone; without its inputs, the message names the arguments that it takes."""
    traced = run(TraceRequest(target="diffusers:AutoencoderTiny", inputs=("1,3,64,64",), steps=1))
    assert any(birth.category == "parameter" for birth in traced.births)
    with pytest.raises(EverybyteError, match=r"is a module that takes sample, timestep: say what goes into it \(--input 2,4,64,64\)"):
        run(TraceRequest(target="diffusers:UNet2DModel"))


@pytest.mark.parametrize(("library", "inputs"), [("torchvision", "2,3,224,224"), ("timm", "2,3,224,224")])
def test_resnet_50_is_the_same_of_every_library(library: str, inputs: str) -> None:
    """ResNet-50 by its name has 25.6 M parameters, whose gradients are as many bytes."""
    pytest.importorskip("torchvision", reason="its wheels need a build of torch for CUDA, with which `make test-cuda-build` runs this", exc_type=Exception)
    asked = TraceRequest(target=f"{library}:resnet50", inputs=(inputs,), steps=1)
    assert answer_of(run(asked), asked).model.trainable_params == 25_557_032


def test_numbers_made_in_backward_are_fake(toy: str) -> None:
    """A backward pass of the program's own makes a tensor of a number on the GPU, as a forward pass may."""
    assert run(TraceRequest(target=f"{toy}:number_in_backward")).events


def test_kernels_of_triton_are_launched_and_not_run(toy: str) -> None:
    """A program with a kernel of its own is traced: its output is there, and the answer says what was taken for granted."""
    pytest.importorskip("triton", reason="comes with a build of torch for CUDA, with which `make test-cuda-build` runs this")
    traced = run(TraceRequest(target=f"{toy}:launched"))
    assert sum(birth.shape == (1024, 1024) for birth in traced.births) == 1 + 2
    assert any("kernels written in Triton are not run" in note for note in traced.notes)


def test_progress_is_told(toy: str) -> None:
    """Whoever waits hears in which step and phase the program is, and how many of its layers are done."""
    heard: list[Progress] = []
    run(TraceRequest(target=f"{toy}:deep", steps=3), heard.append)
    assert {told.steps for told in heard} == {3}
    assert {told.layers for told in heard if told.step > 1} == {DEEP}
    assert all(0 <= told.done <= DEEP for told in heard)
    assert {told.phase for told in heard if 0 < told.done < DEEP} >= {"forward", "backward"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py:build", "there is no file 'nowhere.py'"),
        ("no_such_module:build", "there is no module 'no_such_module' here"),
        ("{toy}:bild", "did you mean build"),
        ("{toy}:no_step", "returns a int; it must build model and optimizer"),
        ("{toy}:module_alone", "is a module that takes input: say what goes into it (--input 32,3,224,224)"),
        ("build", "is neither module:function, nor a script that ends in .py, nor a job file, nor a model of torchvision, timm, diffusers"),
        ("diffusers:UNet2DModl", "is no model of diffusers (did you mean UNet2DModel"),
    ],
)
def test_bad_targets_get_one_clear_message(toy: str, target: str, words: str) -> None:
    """A target that does not exist or returns no step is refused with what helps."""
    with pytest.raises(EverybyteError) as refused:
        run(TraceRequest(target=target.format(toy=toy)))
    assert words in str(refused.value)


@pytest.mark.parametrize("option", [["--world", "8"], ["--input", "1,2"], ["--optimizer", "sgd"], ["--mesh", "dp=2"], ["--ranks", "0"]])
def test_options_of_programs_are_refused_beside_a_job(option: list[str]) -> None:
    """Nothing is silently ignored: an option that a job does not follow is named, with exit code 2."""
    job = str(Path(__file__).parents[2] / "examples" / "llama-3.1-8b-lora-24gb.yaml")
    done = subprocess.run([sys.executable, "-m", "everybyte", "trace", job, *option], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {option[0]}: goes with a program")


def test_a_value_of_a_fake_tensor_is_refused_with_a_way_round(toy: str) -> None:
    """A program that branches on a value hears on which line, what fake tensors cannot do, and what it can do instead."""
    with pytest.raises(TraceFailed) as failed:
        run(TraceRequest(target=f"{toy}:asks_for_a_value"))
    first, *rest = str(failed.value).splitlines()
    assert first.startswith(f"{toy}:")
    assert "if model(" in first
    assert "have shapes but no values" in rest[0]
    assert "everybyte.tracing()" in str(failed.value)


@pytest.mark.parametrize(("name", "words"), [("own_operation", "register_fake"), ("asks_triton_for_a_gpu", "Triton")])
def test_what_needs_a_real_gpu_is_told_with_a_way_round(toy: str, name: str, words: str) -> None:
    """An operation without a fake version and a Triton kernel are named with the line that uses them and what helps."""
    with pytest.raises(TraceFailed, match=words) as failed:
        run(TraceRequest(target=f"{toy}:{name}"))
    assert str(failed.value).startswith(f"{toy}:")


def test_compiled_code_runs_eagerly_and_the_answer_says_so(toy: str) -> None:
    """A program that asks for torch.compile is traced as eager code, under Assumed stands that it is; another program's answer says nothing of it."""
    asked = TraceRequest(target=f"{toy}:compiled", steps=1)
    assert any("torch.compile is not followed" in line for line in answer_of(run(asked), asked).assumptions)


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no C++ compiler is found and nothing is compiled yet, the message names what is missing and how to get it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoFakeDevice, match="no C\\+\\+ compiler is here: install one"):
        built(Path(torch.__file__).parent, tmp_path)


def test_each_environment_has_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two environments with the same torch share nothing, so that one may be deleted; a link to an environment is that environment."""
    compiler = tmp_path / "cxx"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ntouch "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    one, other, link = (tmp_path / name for name in ("one", "other", "link"))
    one.mkdir()
    other.mkdir()
    link.symlink_to(one)
    libraries = [built(folder, tmp_path / "cache") for folder in (one, other, link)]
    assert libraries[0] != libraries[1]
    assert libraries[0] == libraries[2]


def test_a_fault_of_the_program_shows_its_own_line_first(toy: str) -> None:
    """An error of the user's code is told with the user's line, not with ours."""
    with pytest.raises(TraceFailed) as failed:
        run(TraceRequest(target=f"{toy}:fails"))
    first, second, *_ = str(failed.value).splitlines()
    assert first.startswith(f"{toy}:")
    assert second.startswith("RuntimeError: ")


def test_a_program_that_leaves_the_gpu_alone_is_refused(toy: str) -> None:
    """A trace without a single tensor on the GPU is no answer."""
    asked = TraceRequest(target=f"{toy}:on_the_cpu")
    with pytest.raises(EverybyteError, match="puts nothing on the GPU"):
        answer_of(run(asked), asked)


@pytest.mark.cold
def test_a_program_without_end_is_stopped(toy: str) -> None:
    """The time limit ends the program, and its process is gone."""
    with pytest.raises(EverybyteError, match="took longer than 8 s and was stopped"):
        run(TraceRequest(target=f"{toy}:without_end"), timeout=8)
    assert not _workers_of(os.getpid())


def test_an_interrupt_leaves_no_process_behind(toy: str) -> None:
    """Ctrl-C ends the command and the process that runs the program."""
    command = [sys.executable, "-m", "everybyte", "trace", f"{toy}:without_end"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (workers := _workers_of(started.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers
    os.killpg(started.pid, 2)
    started.communicate(timeout=30)
    assert started.returncode == 130
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive, gone


def _workers_of(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if "everybyte.trace.worker" in " ".join(child.cmdline())]
