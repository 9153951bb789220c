"""`everybyte trace TARGET`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.answers import print_answer
from everybyte.cli.ending import DOES_NOT_FIT, FITS
from everybyte.cli.options import as_json, unit
from everybyte.cli.progress import Progress

if TYPE_CHECKING:
    from everybyte.trace.request import Progress as Far


@click.command(no_args_is_help=True)
@click.argument("target")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]...")
@click.option("--gpu", metavar="NAME", help="GPU of the fake device (`everybyte gpus`).  [default: the job's, else h100-80gb]")
@click.option("--steps", default=2, show_default=True, type=click.IntRange(1, 100), help="Steps to run; optimizer states exist from the second step on.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SHAPE",
    help="Shape of an input of a module target: 32,3,224,224 or 8,2048:int64. May be repeated.",
)
@click.option("--optimizer", metavar="NAME", help="Optimizer of torch.optim, for a target that returns a module, such as adamw.")
@click.option("--world", type=click.IntRange(1, 1_000_000), metavar="N", help="World size of the process group; torchrun's variables are set.")
@click.option("--ranks", metavar="LIST", help="Ranks to run, one after another, such as 0,3,last.  [default: 0]")
@click.option("--mesh", metavar="AXES", help="Mesh, outermost axis first: pp=2,dp=4,tp=2. Sets --world and runs one rank per pipeline stage.")
@click.option("--alloc-conf", metavar="CONF", help="PYTORCH_CUDA_ALLOC_CONF, such as expandable_segments:True.")
@click.option("--timeout", type=click.FloatRange(min=1), metavar="S", help="Stop the trace after so many seconds.")
@click.option("--export", metavar="FILE", help="Also write the trace: .html (opens offline), .pickle (for torch's memory viewer), .json, .png, .svg.")
@click.option("--explain", is_flag=True, help="Also print every row with its formula and values.")
@unit
@as_json
def command(
    target: str,
    arguments: tuple[str, ...],
    gpu: str | None,
    steps: int,
    inputs: tuple[str, ...],
    optimizer: str | None,
    world: int | None,
    ranks: str | None,
    mesh: str | None,
    alloc_conf: str | None,
    timeout: float | None,
    export: str | None,
    explain: bool,
    unit: str,
    as_json: bool,
) -> int:
    """Run real PyTorch code on fake tensors, without a GPU, and record every allocation.

    TARGET is module:function or path/to/file.py:function: a function that builds model and optimizer on "cuda" and returns a function that runs one step;
    or that returns (module, inputs), or a module whose inputs --input names, for a forward and backward pass. Or it is a model of torchvision, timm or
    diffusers by its name. Or it is a script, path/to/file.py, with its own ARGUMENTS behind --: a step of it ends when its optimizer has stepped. Or it is a
    job file: its model is built by transformers without weights and trained as the job says.

    \b
    everybyte trace train.py:build
    everybyte trace train.py --gpu rtx-4090 -- --batch-size 8
    everybyte trace mypackage.experiment:build --gpu a100-80gb --steps 3
    everybyte trace torchvision:resnet50 --input 32,3,224,224 --optimizer sgd
    everybyte trace train_fsdp.py --world 64 --ranks 0,last
    everybyte trace job.yaml --explain
    everybyte trace train.py:build --export course.html
    everybyte trace train.py:build --alloc-conf expandable_segments:True --explain
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.allocator.settings import read_alloc_conf
    from everybyte.trace.device.launch import mesh_of, ranks_of, world_of
    from everybyte.trace.jobs.program import asked_of, is_job
    from everybyte.trace.request import DEFAULT_GPU, TraceRequest
    from everybyte.trace.results.answer import answer_of_ranks
    from everybyte.trace.run import run_ranks

    axes = mesh_of(mesh) if mesh else {}
    size = world_of(world, axes)
    if is_job(target):
        _refuse_beside_job({"--input": inputs, "--optimizer": optimizer, "--world": world, "--ranks": ranks, "--mesh": mesh, "ARGUMENTS": arguments})
        asked = asked_of(target, gpu, steps)
    else:
        asked = TraceRequest(target=target, arguments=arguments, inputs=inputs, optimizer=optimizer, gpu=gpu or DEFAULT_GPU, steps=steps, world=size)
    stated = ((asked.job or {}).get("env") or {}).get("alloc_conf", "")
    settings = read_alloc_conf(alloc_conf or stated, "--alloc-conf" if alloc_conf else "env.alloc_conf")
    with Progress("tracing", unit="layers") as progress:
        traced = run_ranks(asked, ranks_of(ranks, size, axes), lambda far: _tell(far, progress), timeout)
    answer = answer_of_ranks(traced, settings)
    if export is not None:
        from everybyte.report.trace_file import write_trace

        write_trace(traced[0][1], answer, export, settings)
    print_answer(answer, as_json=as_json, explain=explain, unit=unit)
    return FITS if answer.fits else DOES_NOT_FIT


def _tell(far: Far, progress: Progress) -> None:
    """Each layer is passed forward and backward in every step; a pass that begins anew, of another micro-batch, takes nothing back."""
    if not far.step:
        progress.words, progress.done = "building", 0  # the next rank begins anew
        return
    passes = 2 * (far.step - 1) + (far.phase != "forward")
    progress.total = 2 * far.steps * far.layers
    progress.done = max(progress.done, passes * far.layers + far.done)
    progress.words = f"step {far.step} of {far.steps}, {far.phase}"


def _refuse_beside_job(options: dict[str, object]) -> None:
    """Options of programs, which a job says itself or does not know. Raises BadInput for the first that is given."""
    for name, value in options.items():
        if value:
            raise BadInput(name, "goes with a program; a job file says what runs, and is traced on one GPU")
