"""Published bytes a parameter: ZeRO, Megatron, optimizers, quantised weights, parameter counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everybyte.textbook import parameters, quantized, quick, states, zero

GB = 10**9
ADAM = 12

ZERO_TABLE_1 = [
    # D, and GB a rank for 7.5B, 128B and 1T parameters, as printed
    (1, (120, 120, 120), (2048, 2048, 2048), (16000, 16000, 16000)),
    (4, (52.5, 41.3, 30), (896, 704, 512), (7000, 5500, 4000)),
    (16, (35.6, 21.6, 7.5), (608, 368, 128), (4750, 2875, 1000)),
    (64, (31.4, 16.6, 1.88), (536, 284, 32), (4187, 2218, 250)),
    (256, (30.4, 15.4, 0.47), (518, 263, 8), (4046, 2054, 62.5)),
    (1024, (30.1, 15.1, 0.12), (513, 257, 2), (4011, 2013, 15.6)),
]


@pytest.mark.parametrize("row", ZERO_TABLE_1, ids=lambda r: f"D{r[0]}")
def test_zero_table_1(row: tuple[int, tuple[float, ...], tuple[float, ...], tuple[float, ...]]) -> None:
    """ZeRO, table 1: all 54 printed values are met within their rounding (the paper cuts or rounds the last digit)."""
    D, *models = row
    for P, printed in zip((7_500_000_000, 128 * GB, 1000 * GB), models, strict=True):
        ours = (zero.zero_1(P=P, K=ADAM, D=D), zero.zero_2(P=P, K=ADAM, D=D), zero.zero_3(P=P, K=ADAM, D=D))
        for mine, theirs in zip(ours, printed, strict=True):
            digit = 1 if theirs >= 100 and theirs == int(theirs) else (0.01 if theirs < 5 else 0.1)
            assert abs(mine / GB - theirs) <= max(digit, 0.001 * theirs), (D, P, mine / GB, theirs)


def test_zero_stage_0_is_120_gb() -> None:
    """ZeRO, figure 1: plain data parallelism of a 7.5B model takes 120 GB a rank."""
    assert zero.zero_0(P=7_500_000_000, K=ADAM) == 120 * GB


@given(P=st.integers(1, 10**12), D=st.integers(1, 4096), K=st.sampled_from([4, 8, 12]))
def test_zero_stages_are_ordered(P: int, D: int, K: int) -> None:
    """Each stage needs no more than the one before, and on one rank all are the same."""
    stages = [zero.zero_0(P=P, K=K), zero.zero_1(P=P, K=K, D=D), zero.zero_2(P=P, K=K, D=D), zero.zero_3(P=P, K=K, D=D)]
    assert stages == sorted(stages, reverse=True)
    assert zero.zero_3(P=P, K=K, D=1) == stages[0]


def test_zero_2_of_13b_does_not_fit_40_gb() -> None:
    """A 13B model under ZeRO-2 on 8 ranks needs 48.8 GB a rank: dividing everything by 8 is stage 3."""
    P = 13_015_864_320
    assert zero.zero_2(P=P, K=ADAM, D=8) == pytest.approx(48.8 * GB, rel=0.001)
    assert zero.zero_3(P=P, K=ADAM, D=8) == 16 * P // 8


def test_three_d_states_without_parallelism_is_plain_data_parallelism() -> None:
    """With all degrees 1 the combined formula is 16 bytes a parameter."""
    assert zero.three_d_states(P=10**9, K=ADAM, t=1, p=1, D=1) == states.adam_mixed(P=10**9)


@pytest.mark.parametrize(
    ("sharded", "whole"),
    [
        (states.megatron_distributed_bf16, states.adam_mixed_fp32_grads),
        (states.megatron_distributed_fp16, states.adam_mixed_two_grads),
        (states.megatron_distributed_fp32, states.adam_fp32),
    ],
)
def test_megatron_distributed_optimizer_on_one_rank(sharded: object, whole: object) -> None:
    """Megatron's table: 18, 20 and 16 bytes a parameter, which the distributed optimizer has on one rank."""
    assert sharded(P=1000, D=1) == whole(P=1000)  # type: ignore[operator]


def test_bytes_a_parameter() -> None:
    """The recipes of the literature: 16, 16, 16, 18, 20 and 8 bytes a parameter; a 7B model in fp32 takes 112 GB, not 140."""
    recipes = (
        states.adam_fp32,
        states.adam_amp,
        states.adam_mixed,
        states.adam_mixed_fp32_grads,
        states.adam_mixed_two_grads,
        states.adam_pure_16bit,
    )
    assert [recipe(P=1) for recipe in recipes] == [16, 16, 16, 18, 20, 8]
    assert states.adam_fp32(P=7 * GB) == 112 * GB
    assert quick.quick_training_6(P=7 * GB) < states.adam_mixed(P=7 * GB) / 2


def test_eight_bit_adam() -> None:
    """8-bit Adam, section 2: 2 bytes of moments a parameter instead of 8, and 8 bytes of scales for 256."""
    assert states.adam_8bit_states(P=256 * 1000) == 2 * 256_000 + 8 * 1000
    assert states.adam_8bit_mixed(P=256) / 256 == 10.03125


def test_one_billion_in_fp32() -> None:
    """A billion fp32 parameters are 4 GB, which is 3.725 GiB."""
    assert states.weights(P=GB, e=4) == 4 * GB
    assert states.weights(P=GB, e=4) / 2**30 == pytest.approx(3.725, abs=0.0005)


def test_double_quantisation_saves_0_373_bits() -> None:
    """QLoRA, section 3: double quantisation takes the scales from 0.5 to 0.127 bits a weight, 3 GB for 65B."""
    P = 64 * 256 * 1000
    saved = 8 * (quantized.nf4(P=P) - quantized.nf4_double(P=P)) / P
    assert saved == pytest.approx(0.373, abs=0.0005)
    assert quantized.nf4(P=65 * GB) - quantized.nf4_double(P=65 * GB) == pytest.approx(3 * GB, rel=0.02)


@pytest.mark.parametrize(
    ("bits", "block", "expected"),
    [(4, 32, 0.53125), (4, 16, 0.5625), (8, 32, 1.03125)],
    ids=["mxfp4", "nvfp4", "mxfp8"],
)
def test_block_scaled_formats(bits: int, block: int, expected: float) -> None:
    """OCP microscaling: 4.25, 4.5 and 8.25 bits a weight."""
    assert quantized.block_scaled(P=320, bits=bits, B=block) / 320 == expected


def test_gptq_of_group_128() -> None:
    """4-bit GPTQ with groups of 128 takes 0.5195 bytes a weight."""
    assert quantized.gptq(P=128 * 1000, bits=4, g=128) / 128_000 == pytest.approx(0.5195, abs=0.0001)


@pytest.mark.parametrize(
    ("L", "h", "billions"),
    [(48, 6144, 22), (96, 12288, 175), (105, 20480, 530), (128, 25600, 1008)],
    ids=["22B", "175B", "530B", "1T"],
)
def test_gpt_parameters(L: int, h: int, billions: float) -> None:
    """The four models of Korthikanti et al., table 3, have the parameters that name them."""
    assert parameters.params_gpt(L=L, h=h, V=51200, s=2048) == pytest.approx(billions * GB, rel=0.005)


def test_llama_parameters() -> None:
    """Llama-3.1-8B and Llama-2-13B have exactly 8,030,261,248 and 13,015,864,320 parameters."""
    assert parameters.params_llama(V=128256, h=4096, L=32, A=4096, k=8, d=128, f=14336) == 8_030_261_248
    assert parameters.params_llama(V=32000, h=5120, L=40, A=5120, k=40, d=128, f=13824) == 13_015_864_320


def test_mixtral_parameters() -> None:
    """Mixtral-8x7B has 46,702,792,704 parameters, of which a token visits 12.9B: neither is 8 times 7."""
    P = parameters.params_mixtral(V=32000, h=4096, L=32, A=4096, k=8, d=128, f=14336, E=8)
    assert P == 46_702_792_704
    assert parameters.params_moe_active(P=P, L=32, E=8, top=2, h=4096, f=14336) == pytest.approx(12.9 * GB, rel=0.005)


def test_lora_parameters_of_gpt_3() -> None:
    """LoRA, table 4: rank 1 and 8 on the queries and values of GPT-3 175B are 4.7M and 37.7M parameters."""
    assert parameters.lora_params(n=2 * 96, r=1, rows=12288, cols=12288) == pytest.approx(4.7e6, rel=0.01)
    assert parameters.lora_params(n=2 * 96, r=8, rows=12288, cols=12288) == pytest.approx(37.7e6, rel=0.002)


def test_galore_and_adafactor_are_below_adam() -> None:
    """States of a 4096 x 11008 matrix: GaLore of rank 128 and Adafactor take a small share of Adam's 8 bytes."""
    adam = 8 * 4096 * 11008
    assert states.galore_states(rows=4096, cols=11008, r=128, n=1) == 4 * 128 * (4096 + 2 * 11008)
    assert states.adafactor_states(rows=4096, cols=11008, n=1) < states.galore_states(rows=4096, cols=11008, r=128, n=1) < adam / 20
