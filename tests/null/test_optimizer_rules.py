"""Rules of optimizers: formulas give the bytes of the tensors, names say what they mean, states are counted where they live."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, prod

import pytest

from everybyte.basics.dtypes import BF16, FP32
from everybyte.basics.errors import Unsupported
from everybyte.rules.optimizers.names import Named
from everybyte.rules.optimizers.plan import PROJECTED, RULES, OptimizerPlan, Tensor, named, rule

SHAPES: list[tuple[int, ...]] = [(512, 384), (384,), (256, 1024), (64, 33), (8, 96, 48), (128, 128)]
RANK = 32


def value(formula: str, shape: tuple[int, ...], width: int) -> int:
    """A rule's formula with the numbers of a shape put in."""
    numbers = {"P": prod(shape), "e": width, "r": RANK, "dims": sum(shape)}
    if len(shape) > 1:
        numbers |= {"m": shape[-2], "n": shape[-1], "lead": prod(shape[:-2])}
    scope = {key: Fraction(number) for key, number in numbers.items()} | {"ceil": ceil}
    return int(eval(formula.replace("·", "*"), {"__builtins__": {}}, scope))


@pytest.mark.parametrize("key", [*RULES, *PROJECTED])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_a_formula_is_the_sum_of_the_state_tensors(key: str, dtype) -> None:  # type: ignore[no-untyped-def]
    """For every optimizer, shape and type, also with states on the host and fused steps."""
    for impl in ("foreach", "fused"):
        for paged in (False, True):
            plan = OptimizerPlan(key, impl, rank=RANK, paged=paged)
            for shape in SHAPES:
                assert value(plan.state_text(shape), shape, dtype.block_bytes) == sum(plan.state_tensors(shape, dtype))


@pytest.mark.parametrize("key", [*RULES, *PROJECTED])
def test_temporaries_come_with_their_formula(key: str) -> None:
    """The formula of a step's temporaries gives their bytes, whatever the implementation."""
    tensors = [Tensor(shape, BF16) for shape in SHAPES]
    for impl in ("foreach", "fused", "for-loop"):
        made = OptimizerPlan(key, impl, rank=RANK).temporary(sum(t.nbytes for t in tensors), tensors)
        assert eval(made.formula.replace("·", "*"), {"__builtins__": {}}, dict(made.symbols)) == made.nbytes


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("AdamW", "adamw"),
        ("torch.optim.AdamW", "adamw"),
        ("adamw_torch", "adamw"),
        ("bitsandbytes.optim.PagedAdamW8bit", "adamw-8bit"),
        ("paged_adamw_32bit", "adamw-32bit"),
        ("adamw8bit", "adamw-8bit"),
        ("adamw_torch_4bit", "adamw-torchao-4bit"),
        ("lion_8bit", "lion-8bit"),
        ("galore_adamw_8bit_layerwise", "galore-8bit"),
        ("apollo_adamw", "apollo"),
        ("Adam-mini", "adam-mini"),
        ("Muon", "muon"),
    ],
)
def test_names_are_understood_as_people_write_them(written: str, key: str) -> None:
    """Case, separators and module paths do not matter."""
    assert named(written).key == key


def test_a_name_carries_its_settings() -> None:
    """Paged, layerwise and fused forms are part of the name."""
    assert named("paged_adamw_8bit").paged
    assert named("galore_adamw_layerwise").in_backward
    assert named("adamw_torch_fused").impl == "fused"


def test_bits_of_the_states_pick_the_library() -> None:
    """8-bit AdamW is bitsandbytes' unless torchao is named; 4 bit is torchao's."""
    assert named("adamw", bits=8).key == "adamw-8bit"
    assert named("adamw", bits=8, library="torchao").key == "adamw-torchao-8bit"
    assert named("adamw8bit", library="torchao").key == "adamw-torchao-8bit"
    assert named("adamw", bits=4).key == "adamw-torchao-4bit"
    assert named("adamw", paged=True) == Named("adamw-32bit", paged=True)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    """The refusal names the key and what may have been meant."""
    with pytest.raises(Unsupported, match=r"adamm.*did you mean.*adam"):
        named("adamm")


def test_paged_states_are_not_in_the_allocator() -> None:
    """Large tensors leave only their scales; small ones stay."""
    plan = OptimizerPlan("adamw-8bit", paged=True)
    assert sum(plan.state_tensors((1024, 1024), BF16)) == 2 * 4 * 1024 * 1024 // 256
    assert sum(plan.state_tensors((64, 64), BF16)) == 2 * (4096 + 4 * 16)


def test_outer_tensors_are_not_projected() -> None:
    """GaLore and Muon leave embeddings and the head to AdamW."""
    for key in ("galore", "muon"):
        plan = OptimizerPlan(key, rank=RANK)
        assert plan.state_tensors((1000, 128), FP32, "embed_tokens.weight") == (512_000, 512_000)
        assert plan.state_tensors((1000, 128), FP32, "lm_head.weight") == (512_000, 512_000)
        assert sum(plan.state_tensors((1000, 128), FP32, "mlp.up_proj.weight")) < 2 * 512_000


def test_galore_keeps_two_moments_of_rank_r_and_a_projector() -> None:
    """2·r·n + m·r for m ≤ n (Zhao et al. 2024, table 1)."""
    assert sum(rule("galore", 4).state.tensors((16, 64), FP32)) == 4 * (2 * 4 * 64 + 16 * 4)
