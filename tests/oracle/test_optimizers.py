"""Optimizers against the real ones on the CPU: state to the byte, and what a step makes for a moment, on tensors of unequal sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes

from everybyte.basics.dtypes import BF16, FP32, DType
from everybyte.rules.optimizers.plan import OptimizerPlan, Tensor, named

SHAPES: list[tuple[int, ...]] = [(512, 384), (384,), (256, 1024), (1024,), (384, 512), (100, 100)]
TYPES: list[tuple[torch.dtype, DType]] = [(torch.float32, FP32), (torch.bfloat16, BF16)]
STEP_COUNT = 4
"""Bytes of the number of steps, which torch keeps beside the moments of each tensor: on the host, unless the step is fused."""


def parameters(shapes: Sequence[tuple[int, ...]], kind: torch.dtype) -> list[torch.nn.Parameter]:
    """Trained tensors with their gradients."""
    torch.manual_seed(0)
    found = [torch.nn.Parameter(torch.randn(*shape).to(kind)) for shape in shapes]
    for p in found:
        p.grad = torch.randn_like(p)
    return found


def moments(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the state but for single numbers."""
    return sum(v.numel() * v.element_size() for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor) and v.dim())


def step_temporaries(optimizer: torch.optim.Optimizer, tensors: list[torch.nn.Parameter]) -> int:
    """Bytes that the second step needs above what lives before it."""
    live = LiveBytes()
    with live:
        for p in tensors:
            live.add(p)
            assert p.grad is not None
            live.add(p.grad)
        optimizer.step()
        before = live.live
        live.reset_peak()
        optimizer.step()
    return live.peak - before


def predicted_state(plan: OptimizerPlan, shapes: Sequence[tuple[int, ...]], kind: DType) -> int:
    """The same from the rule, without single numbers."""
    return sum(size for shape in shapes for size in plan.state_tensors(shape, kind) if size > STEP_COUNT)


def predicted_temporaries(plan: OptimizerPlan, shapes: Sequence[tuple[int, ...]], kind: DType) -> int:
    """The same from the rule."""
    tensors = [Tensor(shape, kind) for shape in shapes]
    return plan.temporary(sum(t.nbytes for t in tensors), tensors).nbytes


Make = Callable[..., torch.optim.Optimizer]
CASES: list[tuple[str, Make, dict[str, Any], tuple[str, ...]]] = [
    ("adamw", torch.optim.AdamW, {}, ("foreach", "for-loop", "fused")),
    ("adamw-amsgrad", torch.optim.AdamW, {"amsgrad": True}, ("foreach", "for-loop", "fused")),
    ("adam", torch.optim.Adam, {}, ("foreach", "for-loop", "fused")),
    ("nadam", torch.optim.NAdam, {}, ("foreach", "for-loop")),
    ("radam", torch.optim.RAdam, {}, ("foreach", "for-loop")),
    ("adamax", torch.optim.Adamax, {}, ("foreach", "for-loop")),
    ("sgd", torch.optim.SGD, {}, ("foreach", "for-loop", "fused")),
    ("sgd-momentum", torch.optim.SGD, {"momentum": 0.9}, ("foreach", "for-loop", "fused")),
    ("rmsprop", torch.optim.RMSprop, {}, ("foreach", "for-loop")),
    ("adagrad", torch.optim.Adagrad, {}, ("foreach", "for-loop", "fused")),
    ("adadelta", torch.optim.Adadelta, {}, ("foreach", "for-loop")),
    ("rprop", torch.optim.Rprop, {}, ("foreach", "for-loop")),
    ("adafactor", torch.optim.Adafactor, {}, ("foreach", "for-loop")),
]
EVERY = [(name, make, options, impl, *types) for name, make, options, impls in CASES for impl in impls for types in TYPES]
ARGUMENTS = {"foreach": {"foreach": True}, "for-loop": {"foreach": False}, "fused": {"fused": True}}


@pytest.mark.parametrize(("name", "make", "options", "impl", "kind", "ours"), EVERY, ids=[f"{c[0]}-{c[3]}-{c[5].name}" for c in EVERY])
def test_state_and_temporaries_equal_torchs(name: str, make: Make, options: dict[str, Any], impl: str, kind: torch.dtype, ours: DType) -> None:
    """State is equal to the byte; temporaries are, but for statistics of rows and columns, whatever the implementation and the type."""
    tensors = parameters(SHAPES, kind)
    optimizer = make(tensors, lr=1e-3, **options, **ARGUMENTS[impl])
    plan = OptimizerPlan(named(name).key, impl)
    measured = step_temporaries(optimizer, tensors)
    assert predicted_state(plan, SHAPES, ours) == moments(optimizer)
    slack = 0.013 * measured if name == "adafactor" else 64
    assert abs(predicted_temporaries(plan, SHAPES, ours) - measured) <= slack


@pytest.mark.parametrize(("kind", "ours"), TYPES, ids=["fp32", "bf16"])
def test_muon_orthogonalises_one_matrix_at_a_time(kind: torch.dtype, ours: DType) -> None:
    """Muon keeps one momentum and needs, in bf16, two iterates and two squares of the matrix that is stepped."""
    shapes = [shape for shape in SHAPES if len(shape) == 2]
    tensors = parameters(shapes, kind)
    optimizer = torch.optim.Muon(tensors)
    plan = OptimizerPlan("muon")
    measured = step_temporaries(optimizer, tensors)
    assert predicted_state(plan, shapes, ours) == moments(optimizer)
    assert abs(predicted_temporaries(plan, shapes, ours) - measured) <= 64


@pytest.mark.parametrize(("kind", "ours"), TYPES, ids=["fp32", "bf16"])
def test_adafactor_of_transformers_steps_in_fp32(kind: torch.dtype, ours: DType) -> None:
    """Statistics are fp32 whatever the type, and a 16-bit weight, its gradient and update are copied to fp32."""
    from transformers.optimization import Adafactor

    tensors = parameters(SHAPES, kind)
    optimizer = Adafactor(tensors)
    plan = OptimizerPlan("adafactor-hf", "for-loop")
    measured = step_temporaries(optimizer, tensors)
    assert predicted_state(plan, SHAPES, ours) == moments(optimizer)
    assert predicted_temporaries(plan, SHAPES, ours) == pytest.approx(measured, rel=0.005)


OTHERS = [("prodigy", "Prodigy"), ("came", "CAME"), ("adopt", "ADOPT"), ("lamb", "Lamb"), ("adan", "Adan"), ("adabelief", "AdaBelief"), ("tiger", "Tiger")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "cls"), OTHERS, ids=[name for name, _ in OTHERS])
@pytest.mark.parametrize(("kind", "ours"), TYPES, ids=["fp32", "bf16"])
def test_states_of_other_optimizers(name: str, cls: str, kind: torch.dtype, ours: DType) -> None:
    """The states of optimizers that people bring along are those of their own code to the byte; multi-tensor steps need what theirs need."""
    import pytorch_optimizer

    tensors = parameters(SHAPES, kind)
    optimizer = getattr(pytorch_optimizer, cls)(tensors, lr=1e-3)
    plan = OptimizerPlan(named(name).key, "foreach")
    measured = step_temporaries(optimizer, tensors)
    assert predicted_state(plan, SHAPES, ours) == moments(optimizer)
    if plan.rule.foreach is not None:
        assert predicted_temporaries(plan, SHAPES, ours) == pytest.approx(measured, rel=0.01)


BITSANDBYTES = [
    ("AdamW8bit", "adamw_bnb_8bit"),
    ("AdamW32bit", "adamw-32bit"),
    ("Lion8bit", "lion_8bit"),
    ("Lion32bit", "lion_32bit"),
    ("AdEMAMix8bit", "ademamix_8bit"),
    ("AdEMAMix", "ademamix"),
    ("RMSprop8bit", "rmsprop_bnb_8bit"),
    ("RMSprop32bit", "rmsprop_bnb"),
    ("Adagrad8bit", "adagrad-8bit"),
]


@pytest.mark.parametrize(("cls", "name"), BITSANDBYTES, ids=[name for _, name in BITSANDBYTES])
@pytest.mark.parametrize(("kind", "ours"), TYPES, ids=["fp32", "bf16"])
def test_states_of_bitsandbytes(cls: str, name: str, kind: torch.dtype, ours: DType) -> None:
    """The states that bitsandbytes makes for tensors above and below 4,096 numbers are equal to the byte, code tables apart."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    tensors = parameters(SHAPES, kind)
    optimizer = getattr(bitsandbytes.optim, cls)(tensors, lr=1e-3)
    for index, group in enumerate(optimizer.param_groups):
        for place, p in enumerate(group["params"]):
            optimizer.init_state(group, p, index, place)
    plan = OptimizerPlan(named(name).key, "for-loop")
    for p in tensors:
        real = sum(v.numel() * v.element_size() for k, v in optimizer.state[p].items() if isinstance(v, torch.Tensor) and not k.startswith("qmap"))
        assert sum(plan.state_tensors(tuple(p.shape), ours)) == real


def test_names_of_the_trainer_are_all_known() -> None:
    """Every value of the Trainer's `optim` names a rule."""
    from transformers.training_args import OptimizerNames

    for value in OptimizerNames:
        assert named(value.value).key
