"""Korthikanti et al. against the numbers that the paper prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everybyte.textbook import activations as act
from everybyte.textbook import compute

# Table 3 of the paper: a, h, L, p, t, b; s = 2048 and V = 51200 for all
MODELS = {
    "22B": (64, 6144, 48, 1, 8, 4),
    "175B": (96, 12288, 96, 8, 8, 1),
    "530B": (128, 20480, 105, 35, 8, 1),
    "1T": (160, 25600, 128, 64, 8, 1),
}
S, V = 2048, 51200


@pytest.mark.parametrize(("model", "share"), [("175B", 80), ("530B", 64)])
def test_the_attention_term(model: str, share: int) -> None:
    """Section 5: 5·a·s/h is 80 for GPT-3 175B and 64 for MT-NLG 530B."""
    a, h, *_ = MODELS[model]
    whole = act.korthikanti_tp_sp(s=S, b=1, h=h, a=a, t=8)
    kept = act.korthikanti_selective(s=S, b=1, h=h, t=8)
    assert 8 * (whole - kept) == share * S * h


@pytest.mark.parametrize(("model", "saved", "flops"), [("175B", 0.70, 0.027), ("530B", 0.65, 0.016)])
def test_selective_recomputation(model: str, saved: float, flops: float) -> None:
    """Section 5: selective recomputation saves 70 % and 65 % of the activations for 2.7 % and 1.6 % more FLOPs."""
    a, h, L, *_ = MODELS[model]
    whole, kept = act.korthikanti_none(s=S, b=1, h=h, a=a), act.korthikanti_selective(s=S, b=1, h=h, t=1)
    assert 1 - kept / whole == pytest.approx(saved, abs=0.005)
    extra = compute.flops_selective(b=1, s=S, L=L, h=h) / compute.flops_step(b=1, s=S, L=L, h=h, V=V)
    assert extra == pytest.approx(flops, abs=0.0005)


def test_selective_recomputation_is_cheaper_than_printed() -> None:
    """The scores are part of what full recomputation adds, so that selective costs 4·b·s·s·L·h, a third of the printed figure."""
    sizes = {"b": 1, "s": S, "L": 96, "h": 12288}
    scores = compute.flops_full(**sizes) - 24 * S * 96 * 12288**2
    assert 3 * scores == compute.flops_selective(**sizes)


@pytest.mark.parametrize("model", MODELS)
def test_both_techniques_together_save_five_times(model: str) -> None:
    """Section 6.1, figure 7: with sequence parallelism and selective recomputation a fifth of the baseline is left (17 to 21 %)."""
    a, h, _, _, t, b = MODELS[model]
    share = act.korthikanti_selective(s=S, b=b, h=h, t=t) / act.korthikanti_tp(s=S, b=b, h=h, a=a, t=t)
    assert 0.15 < share < 0.21


@pytest.mark.parametrize("model", MODELS)
def test_full_recomputation_leaves_a_tenth(model: str) -> None:
    """Section 6.1, figure 7: full recomputation leaves about a tenth of the tensor-parallel baseline."""
    a, h, _, _, t, b = MODELS[model]
    assert 0.07 < act.korthikanti_full(s=S, b=b, h=h) / act.korthikanti_tp(s=S, b=b, h=h, a=a, t=t) < 0.11


def test_the_parts_of_a_layer_make_34() -> None:
    """Section 4.1: attention 11, MLP 19, two LayerNorms 4 times s·b·h, and 5 bytes a score."""
    assert act.korthikanti_none(s=128, b=2, h=512, a=8) == (11 + 19 + 4) * 128 * 2 * 512 + 5 * 8 * 128 * 128 * 2


@given(s=st.integers(1, 8192), b=st.integers(1, 8), a=st.integers(1, 64), t=st.sampled_from([1, 2, 4, 8]))
def test_forms_are_ordered(s: int, b: int, a: int, t: int) -> None:
    """Sequence parallelism never needs more than tensor parallelism alone, and both agree on one rank with the plain form."""
    h = 64 * a
    assert act.korthikanti_tp_sp(s=s, b=b, h=h, a=a, t=t) <= act.korthikanti_tp(s=s, b=b, h=h, a=a, t=t)
    assert act.korthikanti_tp(s=s, b=b, h=h, a=a, t=1) == act.korthikanti_none(s=s, b=b, h=h, a=a)
    assert act.korthikanti_selective(s=s, b=b, h=h, t=t) <= act.korthikanti_selective_tp(s=s, b=b, h=h, t=t)


def test_first_stage_holds_all_layers() -> None:
    """Section 4.2.3: p micro-batches of L/p layers are L layers; interleaving adds (p - 1)/(p·v)."""
    a, h, L, p, t, b = MODELS["530B"]
    assert act.korthikanti_first_stage(s=S, b=b, h=h, a=a, t=t, L=L) == L * act.korthikanti_tp_sp(s=S, b=b, h=h, a=a, t=t)
    assert act.interleaved_first_stage(L=L, p=p, v=3) == 139  # 105 · (1 + 34/105)
    assert act.microbatches_1f1b(m=280, p=p, i=0) == p
    assert act.microbatches_1f1b(m=280, p=p, i=p - 1) == 1
    assert act.microbatches_gpipe(m=280) == 280


def test_ends_are_small_for_22b() -> None:
    """Section 4.3: for the 22B model everything outside the layers is below 1 % of the activations without recomputation."""
    a, h, L, p, t, b = MODELS["22B"]
    assert act.korthikanti_ends(s=S, b=b, h=h, p=p, t=t, V=V) < 0.01 * L * act.korthikanti_tp_sp(s=S, b=b, h=h, a=a, t=t)


def test_ends_with_stages_leave_out_the_head() -> None:
    """With pipeline stages the first one keeps no logits."""
    assert act.korthikanti_ends(s=16, b=1, h=64, p=4, t=1, V=1000) == 16 * 64 * 4
    assert act.korthikanti_ends(s=16, b=1, h=64, p=1, t=1, V=1000) == 16 * 64 + 4 * 16 * (64 + 1000)


def test_one_matrix_of_scores() -> None:
    """12 heads and 1,024 tokens in 16 bits are 24 MiB: the size of a head is no factor."""
    assert act.attention_scores(e=2, b=1, a=12, s=1024) == 24 * 2**20


def test_one_feature_map() -> None:
    """32 x 128 x 128 x 128 in fp32 are 256 MiB, not 2 GB."""
    assert act.convolution_activation(e=4, N=32, C=128, H=128, W=128) == 256 * 2**20


def test_palm_model_flops_utilisation() -> None:
    """PaLM, section 4.1 and appendix B: 238.3K tokens a second on 6,144 chips of 275 TFLOP/s are 46.2 % of the peak."""
    flops = compute.flops_token(P=540_350_000_000, L=118, s=2048, A=48 * 256)
    assert 238_300 * flops / (6144 * 275e12) == pytest.approx(0.462, abs=0.001)


def test_full_recomputation_costs_a_third() -> None:
    """Full recomputation adds one forward pass of the layers, a third of what they compute: 33 % of a step for GPT-3, less the head."""
    _, h, L, *_ = MODELS["175B"]
    ratio = compute.flops_full(b=1, s=S, L=L, h=h) / compute.flops_step(b=1, s=S, L=L, h=h, V=V)
    assert 0.33 < ratio < 1 / 3 + 0.001
    assert 3 * compute.flops_forward(P=10) == compute.flops_token(P=10, L=0, s=0, A=0)
