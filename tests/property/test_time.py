"""Laws of the ledger of time: what adds up, what grows, what more of a thing cannot make slower."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everybyte
from everybyte.catalog.gpus import all_gpus
from everybyte.catalog.speed_cards import speed_card
from everybyte.job import read_job
from everybyte.job.pattern import model_of
from everybyte.models.count import active_count, parameter_count
from everybyte.models.source import network_of
from everybyte.plan.time.figures import Speed, speed_of
from everybyte.plan.time.kernels import product
from everybyte.plan.time.shape import NetworkShape, shape_of

MODELS = ("meta-llama/Llama-3.1-8B", "openai-community/gpt2", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "tiiuae/falcon-7b", "openai/gpt-oss-20b")


def speed(job: dict[str, Any]) -> Speed:
    """The speed of a job in the contract's form."""
    read = read_job({"everybyte": 1, **job})
    found = speed_of(read, network_of(model_of(read), "model"), 100_000)
    assert isinstance(found, Speed), found
    return found


def training(**train: Any) -> dict[str, Any]:
    """A Megatron job on 64 H100."""
    base = {"framework": "megatron", "precision": "bf16-master", "micro_batch": 1, "seq_len": 4096, "grad_accum": 8, "sharding": "distributed-optimizer"}
    return {"model": "meta-llama/Llama-3.1-8B", "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 64, "gpus_per_node": 8}, "train": base | train}


def network_shape(name: str) -> NetworkShape:
    """The shape of a model of the catalogue."""
    found = shape_of(network_of(name, "model"))
    assert found is not None
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_shape_has_the_models_parameters(name: str) -> None:
    """Products and tables are all parameters of a model but norms, biases and positions: within 2 %; so are those that a token meets."""
    network, shape = network_of(name, "model"), network_shape(name)
    tables = shape.vocab * shape.hidden
    whole = shape.dense_parameters + shape.expert_parameters + tables * (1 if shape.tied else 2)
    assert whole == pytest.approx(parameter_count(network), rel=0.02)
    active = shape.active_parameters + (0 if shape.tied else tables)
    assert active == pytest.approx(active_count(network), rel=0.02)


@settings(max_examples=40, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    accum=st.sampled_from([4, 8, 16]),
    form=st.sampled_from(["bf16-master", "fp8"]),
)
def test_terms_add_up_and_are_no_less_than_the_arithmetic(tp: int, pp: int, cp: int, accum: int, form: str) -> None:
    """A step is the sum of its terms, each positive, and never faster than its model FLOPs at the card's peak."""
    found = speed(training(mesh={"tp": tp, "pp": pp, "cp": cp}, grad_accum=accum, precision=form))
    figures = dict(found.figures)
    assert figures["step.time_s"] == pytest.approx(sum(term.seconds for term in found.ledger.terms))
    assert all(term.seconds > 0 for term in found.ledger.terms)
    peak = 989e12 * (2 if form == "fp8" else 1)
    assert figures["tflops_per_gpu"] * 1e12 < peak


@pytest.mark.parametrize(
    "more",
    [{"grad_accum": 16}, {"seq_len": 8192}, {"recompute": "full"}, {"micro_batch": 2}, {"offload": {"optimizer": "cpu"}}],
)
def test_more_work_takes_longer(more: dict[str, Any]) -> None:
    """More micro-batches, longer sequences, recomputation, and an optimizer on the host lengthen a step."""
    assert dict(speed(training(**more)).figures)["step.time_s"] > dict(speed(training()).figures)["step.time_s"]


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 10_000), out=st.integers(1, 20_000), inner=st.integers(1, 20_000))
def test_a_product_is_bound_by_arithmetic_and_by_memory(rows: int, out: int, inner: int) -> None:
    """No product is faster than its FLOPs at the peak, or than its operands at the memory's bandwidth."""
    card = speed_card("H100-SXM5-80GB")
    assert card is not None
    seconds = product(card, rows, out, inner, "bf16")
    assert seconds >= 2 * rows * out * inner / card.products["bf16"]
    assert seconds >= 2 * (rows * inner + out * inner) / card.memory


def test_every_card_with_rates_has_a_clock() -> None:
    """A card of the catalogue whose 16-bit rate and bandwidth are stated, and whose generation is known, answers with speed."""
    known = [gpu for gpu in all_gpus() if gpu.vendor == "NVIDIA" and gpu.bandwidth_gb_s and gpu.bf16_tflops and gpu.compute_capability >= "8"]
    assert len(known) > 20
    assert [gpu.name for gpu in known if speed_card(gpu.name) is None] == []


def test_measured_rates_of_a_machine_replace_the_cards() -> None:
    """Half the rate of products makes the products take twice as long, and nothing else slower."""
    job = training()
    slow = training()
    card = speed_card("H100-SXM5-80GB")
    assert card is not None
    slow["hardware"] = {**slow["hardware"], "measured": {"matmul_tflops": card.rate("bf16") / 2e12}}
    before = {term.name: term.seconds for term in speed(job).ledger.terms}
    after = {term.name: term.seconds for term in speed(slow).ledger.terms}
    assert after["matrix products"] == pytest.approx(2 * before["matrix products"], rel=0.05)
    assert after["optimizer"] == before["optimizer"]


def test_a_frozen_base_has_no_weight_gradients() -> None:
    """An adapter's step counts 4 FLOPs a weight of the base, a full one 6, and it is shorter."""
    full, lora = speed(training()), speed(training(adapter={"kind": "lora", "rank": 16}))
    assert dict(lora.figures)["step.time_s"] < dict(full.figures)["step.time_s"]
    shape = network_shape("meta-llama/Llama-3.1-8B")
    assert shape.training_flops(4096) - shape.training_flops(4096, is_frozen=True) == 2 * shape.active_parameters


def serving(**load: Any) -> dict[str, float]:
    """Figures of a vLLM server of Llama 8B under a load."""
    job = {"model": "meta-llama/Llama-3.1-8B", "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 1}, "serve": {"engine": "vllm", "context": 16384, "load": load}}
    return dict(speed(job).figures)


def test_a_busier_server_is_slower_for_each_and_faster_for_all() -> None:
    """With more requests at a time each gets fewer tokens a second, and all together more."""
    rates = [serving(prompt=512, output=256, concurrency=n) for n in (1, 4, 16, 64)]
    each = [found["decode.tokens_per_s"] for found in rates]
    together = [found.get("decode.batch_tokens_per_s", found["decode.tokens_per_s"]) for found in rates]
    assert each == sorted(each, reverse=True)
    assert together == sorted(together)


def test_one_token_reads_the_weights_once() -> None:
    """Decoding alone is no faster than the weights at the memory's bandwidth."""
    assert serving(prompt=512, output=256, concurrency=1)["decode.tokens_per_s"] < 3350e9 / (2 * 7.5e9)


def test_why_there_is_no_speed_is_said() -> None:
    """fp32 has no clock; the answer says so instead of a number."""
    job = training(precision="fp32", framework="pytorch", sharding="ddp", grad_accum=1)
    job["hardware"] = {"gpu": "H100-SXM5-80GB", "gpus": 1}
    job["train"] = {"framework": "pytorch", "precision": "fp32", "micro_batch": 1, "seq_len": 128}
    job["model"] = "openai-community/gpt2"
    answer = everybyte.estimate({"everybyte": 1, **job})
    assert "step.time_s" not in answer.figures
    assert any("no figures of speed: not for train.precision fp32" in line for line in answer.assumptions)


def test_an_open_loop_holds_as_many_as_arrive() -> None:
    """Requests in the server are rate times their stay (Little's law); a faster rate is slower for each, and one too fast is said to be."""
    slow, fast = serving(prompt=512, output=256, rate=1), serving(prompt=512, output=256, rate=10)
    assert slow["decode.tokens_per_s"] > fast["decode.tokens_per_s"]
    assert slow["ttft_s"] < fast["ttft_s"]
    closed = serving(prompt=512, output=256, concurrency=round(10 * (fast["ttft_s"] + 256 / fast["decode.tokens_per_s"])))
    assert closed["decode.tokens_per_s"] == pytest.approx(fast["decode.tokens_per_s"], rel=0.1)
    hardware = {"gpu": "H100-SXM5-80GB", "gpus": 1}
    flooded = {"model": "meta-llama/Llama-3.1-8B", "hardware": hardware, "serve": {"engine": "vllm", "load": {"prompt": 4000, "output": 10, "rate": 500}}}
    assert "more than this server keeps up with" in speed(flooded).basis
