"""Where the equations of the literature and the counted ledger agree: under the paper's own assumptions, to the byte. And where they do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte import estimate, read_job
from everybyte.basics.dtypes import BF16
from everybyte.job import InlineModel
from everybyte.layers.network import Network, hidden_dims, write
from everybyte.layers.recording.replay import Recompute
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point, elements
from everybyte.models.count import parameter_count
from everybyte.models.source import network_of
from everybyte.textbook import activations, inference, parameters, states

DROPOUT = {"resid_pdrop": 0.1, "attn_pdrop": 0.1, "embd_pdrop": 0.1}


def gpt(h: int, a: int, L: int = 1, V: int = 1024, positions: int = 4096) -> Network:
    """A GPT-2 model with a fused GELU and dropout on, as the paper assumes."""
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": h, "n_layer": L, "n_head": a, "n_positions": positions, "vocab_size": V}
    return network_of(InlineModel(config=config | {"activation_function": "gelu"} | DROPOUT), "model")


def kept(network: Network, s: int, b: int, recompute: Recompute = "none", **kernels: Any) -> int:
    """Bytes that the first layer keeps for backward on a GPU."""
    setup = Setup(weights=BF16, kernels=Kernels(**kernels), single=b == 1)
    tally = write(network.runs[0].layer, setup, hidden_dims(network.hidden), BF16, recompute).tally
    return tally.kept_size.at(Point(Batch(b, s, s)))


def statistics(s: int, b: int) -> int:
    """Mean and reciprocal deviation of two LayerNorms, fp32 for each token. The paper leaves them out as small (section 4.1)."""
    return 2 * 2 * 4 * s * b


@settings(max_examples=25, deadline=None)
@given(s=st.integers(1, 2048), b=st.integers(2, 8), a=st.integers(1, 16), d=st.sampled_from([32, 64, 128]))
def test_korthikanti_is_the_counted_gpt_layer(s: int, b: int, a: int, d: int) -> None:
    """A GPT layer with eager 16-bit attention keeps exactly 34·s·b·h + 5·a·s²·b, and the statistics that the paper leaves out."""
    counted = kept(gpt(a * d, a), s, b, attention="eager")
    assert counted == activations.korthikanti_none(s=s, b=b, h=a * d, a=a) + statistics(s, b)


@settings(max_examples=10, deadline=None)
@given(s=st.integers(1, 2048), b=st.integers(1, 8))
def test_full_recomputation_keeps_the_input(s: int, b: int) -> None:
    """With full recomputation a layer keeps exactly 2·s·b·h."""
    assert kept(gpt(512, 8), s, b, "full", attention="eager") == activations.korthikanti_full(s=s, b=b, h=512)


@settings(max_examples=10, deadline=None)
@given(h=st.sampled_from([64, 192, 512]), L=st.integers(1, 6), V=st.integers(1, 5000), s=st.integers(1, 4096))
def test_gpt_parameters_are_the_counted_ones(h: int, L: int, V: int, s: int) -> None:
    """The equation of Narayanan et al. counts every parameter but those of the last LayerNorm."""
    assert parameter_count(gpt(h, h // 64, L, V, s)) == parameters.params_gpt(L=L, h=h, V=V, s=s) + 2 * h


def test_llama_parameters_and_cache_are_the_counted_ones() -> None:
    """Llama-3.1-8B of the catalogue: parameters and bytes of cache a token equal their equations."""
    network = network_of("meta-llama/Meta-Llama-3.1-8B", "model")
    assert parameter_count(network) == parameters.params_llama(V=128256, h=4096, L=32, A=4096, k=8, d=128, f=14336)
    caches = write(network.runs[0].layer, Setup(grad=False), hidden_dims(4096), BF16).caches
    assert 32 * sum(BF16.nbytes(elements(cache.dims)[0]) for cache in caches) == inference.kv_gqa(e=2, L=32, k=8, d=128, s=1, b=1)


@pytest.mark.parametrize(
    ("precision", "equation"),
    [("fp32", states.adam_fp32), ("bf16-mixed", states.adam_amp), ("bf16", states.adam_pure_16bit), ("bf16-master", states.adam_mixed)],
)
def test_states_are_the_adam_recipes(precision: str, equation: Any) -> None:
    """Weights, gradients and states of the ledger are 16, 16, 8 and 16 bytes a parameter, but for rounding (1 MiB for the 16-bit embedding)."""
    job = {"model": "meta-llama/Llama-3.2-1B", "train": {"framework": "pytorch", "micro_batch": 1, "seq_len": 64, "precision": precision, "recompute": "full"}}
    answer = estimate(read_job(job))
    rows = [e for e in answer.worst.ledger if "optimizer" in e.phases and e.category in ("parameter", "gradient", "optimizer_state")]
    assert sum(e.bytes for e in rows) == pytest.approx(equation(P=answer.model.params), rel=1.1e-4)


def test_llama_keeps_other_tensors_than_the_equation_says() -> None:
    """A Llama layer keeps 16nh + 8n + 4nA + 4nK + 4na + 8nf with SDPA, where the equation says 34nh: 44 % more for Llama-3.1-8B."""
    n, h, A, K, a, f = 4096, 4096, 4096, 1024, 32, 14336
    counted = kept(network_of("meta-llama/Meta-Llama-3.1-8B", "model"), n, 1, attention="sdpa")
    assert counted == 16 * n * h + 8 * n + 4 * n * A + 4 * n * K + 4 * n * a + 8 * n * f
    assert counted / activations.korthikanti_selective(s=n, b=1, h=h, t=1) == pytest.approx(1.44, abs=0.005)
