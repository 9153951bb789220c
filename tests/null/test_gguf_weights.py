"""Weights of GGUF files as a job gives them: names of quantisations, contradictions, the model's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import GGUF_LLAMA_TENSORS, gguf_bytes, gguf_llama_metadata

from everybyte import estimate
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.catalog.releases import Release
from everybyte.job import read_job
from everybyte.models.source import network_of
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.gguf.size import gguf_weights
from everybyte.rules.quantization.gguf.tensors import mean_bits, typed_tensors
from everybyte.rules.quantization.gguf.types import fallback, is_gguf, is_quantised, quantization, role_of
from everybyte.rules.serving.weights import packing

MODEL = "meta-llama/Llama-2-7b-hf"


def weights(asked: Any, choices: ResolvedSettings | None = None, **serve: Any):
    """The weights of a job, and what it assumes."""
    job = read_job({"model": MODEL, "serve": {"engine": "llama.cpp", "weights": asked, **serve}})
    assert job.serve is not None
    return gguf_weights(job.serve, network_of(MODEL), choices or ResolvedSettings())


@pytest.mark.parametrize(
    ("word", "gigabytes"),
    [("q2_k", 2.533), ("q3_k_m", 3.298), ("q4_0", 3.826), ("q4_k_s", 3.857), ("q4_k_m", 4.081), ("q5_k_m", 4.783), ("q6_k", 5.529), ("q8_0", 7.161)],
)
def test_published_sizes_of_llama_2_7b(word: str, gigabytes: float) -> None:
    """The sizes that repositories of quantised models list for Llama-2-7B, to their last digit."""
    assert round(weights(word).file_bytes / 1e9, 3) == gigabytes


def test_unknown_quantisations_are_refused_with_the_nearest_names() -> None:
    """A word that is no quantisation, one of another engine, and one that is known only by its bits: one message each, with a way out."""
    with pytest.raises(BadInput, match=r"serve.weights.format: 'q4_k_x' is no quantisation of llama.cpp \(did you mean q4_k"):
        weights("q4_k_x")
    with pytest.raises(BadInput, match=r"'awq' is no quantisation of llama.cpp"):
        weights("awq")
    with pytest.raises(Unsupported, match=r"'q4_k_xl' is another mixture for every model; state the mean as serve.weights: \{format: q4_k_xl, bits"):
        weights("q4_k_xl")
    with pytest.raises(BadInput, match=r"serve.weights.format: 'qk4m' is not a known format \(did you mean"):
        read_job({"model": MODEL, "serve": {"engine": "llama.cpp", "weights": "qk4m"}})


def test_contradictions_are_refused() -> None:
    """A mixture of two bits cannot be made without an importance matrix."""
    with pytest.raises(Unsupported, match=r"serve.extra.imatrix: quantize refuses to make iq2_xxs without an importance matrix"):
        weights("iq2_xxs", extra={"imatrix": False})


def test_the_mean_of_the_bits_gives_the_size() -> None:
    """With stated bits a weight, bytes are elements · bits / 8 whatever the name."""
    found = weights({"format": "q4_k_xl", "bits": 4.5})
    assert found.nbytes == found.elements * 9 // 16
    assert found.tensors == ()


def test_what_is_taken_for_granted_is_said() -> None:
    """Build and importance matrix are assumptions until the job states them."""
    choices = ResolvedSettings()
    weights("q4_k_m", choices)
    assert any("importance matrix" in text for text in choices.assumptions)
    assert any("llama.cpp b" in text for text in choices.assumptions)
    told = ResolvedSettings()
    weights("q4_k_m", told, version="b5000", extra={"imatrix": True})
    assert told.assumptions == []


def test_builds_differ_where_the_rules_did() -> None:
    """Q2_K lost bits in January 2024; a tied embedding got the output's type in March; fused matrices count as values since 2026."""
    old, new = (weights("q2_k", version=build).nbytes for build in ("b1500", "b3000"))
    assert old > 1.1 * new
    tied = network_of("google/gemma-2b")

    def kind(network: Any, name: str, release: int) -> str:
        return next(t.kind for t in typed_tensors(network, quantization("q4_k_m", release=Release("llama.cpp", (release,)))) if t.tensor.name == name)

    assert [kind(tied, "token_embd.weight", build) for build in (2300, 2400)] == ["q4_k", "q6_k"]
    phi = network_of("microsoft/Phi-3-mini-4k-instruct")
    assert [kind(phi, "blk.0.attn_qkv.weight", build) for build in (6000, 11434)] == ["q5_k", "q6_k"]


def test_old_files_of_mpt_hold_the_embedding_twice() -> None:
    """The converter wrote MPT's tied head until b2249: the published mpt-7b-chat files of before and after, to their tokenizers."""
    sizes = {"d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432}
    model = {"config": {"architectures": ["MPTForCausalLM"], "model_type": "mpt", **sizes}}
    for version, published in (("b2248", 3_912_373_472), ("b2400", 3_796_178_112)):
        found = estimate({"model": model, "serve": {"engine": "llama.cpp", "weights": "q4_0", "version": version}})
        assert abs(found.figures["file_bytes"] - published) < 16 * 1024


def test_importance_matrices_change_what_they_change() -> None:
    """Q4_0 made with one has Q4_1 in the first eighth of ffn_down, IQ4_NL made without one has Q5_K there."""
    network = network_of(MODEL)
    for word, imatrix, raised in (("q4_0", True, "q4_1"), ("iq4_nl", False, "q5_k")):
        kinds = [t.kind for t in typed_tensors(network, quantization(word, imatrix=imatrix)) if "ffn_down" in t.tensor.name]
        assert kinds == [raised] * 4 + [word] * 28


def test_columns_that_are_no_multiple_fall_back() -> None:
    """896 columns take no blocks of 256: Q4_K becomes Q5_0, Q6_K Q8_0; 48 columns take none at all."""
    assert [fallback(kind, 896) for kind in ("q4_k", "q5_k", "q6_k", "q3_k", "iq3_xxs", "q8_0")] == ["q5_0", "q5_1", "q8_0", "q4_0", "iq4_nl", "q8_0"]
    assert fallback("q4_k", 48) == "f16"
    assert fallback("q3_k", 896, Release("llama.cpp", (1500,))) == "q4_1"


def test_wide_ends() -> None:
    """Q4_K_L is Q4_K_M with embedding and output in Q8_0."""
    plain, wide = ({t.tensor.name: t.kind for t in typed_tensors(network_of(MODEL), quantization(word))} for word in ("q4_k_m", "q4_k_l"))
    changed = {name: kind for name, kind in wide.items() if plain[name] != kind}
    assert changed == {"token_embd.weight": "q8_0", "output.weight": "q8_0"}


def test_roles_and_what_stays_plain() -> None:
    """Names decide: norms, routers, convolutions and positions stay; latents of attention are no values until 2026."""
    assert [role_of(f"blk.1.{leaf}.weight") for leaf in ("attn_q", "attn_q_a", "ffn_down_exps", "ffn_gate_shexp", "ssm_in")] == [
        "q",
        "other",
        "down",
        "gate",
        "other",
    ]
    plain = ("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ssm_conv1d.weight", "position_embd.weight", "blk.0.ssm_a")
    assert not any(is_quantised(name, 2) for name in plain)
    assert is_quantised("blk.0.attn_k_b.weight", 3)
    assert not is_quantised("output.bias", 1)


def test_the_models_own_file_counts_as_it_is(tmp_path: Path) -> None:
    """A job that points at a GGUF file has its size and its tensors, to the byte."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(gguf_llama_metadata(), GGUF_LLAMA_TENSORS))
    answer = estimate({"model": str(path), "hardware": {"gpu": "a100-80gb"}, "serve": {"engine": "llama.cpp", "context": 256}})
    assert answer.figures["file_bytes"] == path.stat().st_size


@pytest.mark.parametrize("word", ["q4_k_m", "iq4_ks_r4", "iq2_xxs", "q4_k_xl", "q8_0", "tq1_0"])
def test_formats_of_gguf_are_told_to_other_engines(word: str) -> None:
    """Engines that read no GGUF file refuse them and name the engines that serve them."""
    assert is_gguf(word)
    job = read_job({"model": MODEL, "serve": {"weights": word}})
    assert job.serve is not None
    assert job.serve.weights is not None
    with pytest.raises(Unsupported, match=r"format of GGUF files, which llama.cpp, ollama, vLLM and SGLang serve"):
        packing(job.serve.weights)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_gguf_names_in_engines_that_read_the_files(engine: str) -> None:
    """vLLM and SGLang keep the blocks of the file: its matrices at the mean of the mixture, vLLM the embedding too."""
    mean = mean_bits(network_of("Qwen/Qwen2.5-7B"), "q4_k_m")
    assert 4.7 < mean < 5.1
    found = estimate({"model": "Qwen/Qwen2.5-7B", "hardware": {"gpu": "rtx-4090"}, "serve": {"engine": engine, "weights": "q4_k_m", "context": 4096}})
    table = 152_064 * 3584
    linear = found.model.params - table
    expected = linear * mean / 8 + table * (mean / 8 if engine == "vllm" else 2)
    rows = {row.id: row.bytes for row in found.worst.ledger if row.category == "parameter" and "ro" not in row.id}
    assert sum(rows.values()) == pytest.approx(float(expected), rel=0.006)


def test_transformers_dequantises_gguf_files() -> None:
    """It holds 16 bits a number, whatever the file has."""
    plain, packed = (estimate({"model": MODEL, "serve": {"engine": "transformers", "weights": word}}).figures["weights"] for word in ("bf16", "q4_k_m"))
    assert packed == plain


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        ("awq", ("awq", 128, 4, 1)),
        ("hqq", ("mlx", 64, 4, 1)),
        ("eetq", ("int8", 0, 8, 1)),
        ("w4a16", ("int4", 128, 4, 1)),
        ("fp6", ("mean", 64, 6, 1)),
        ({"format": "aqlm", "bits": 2.29}, ("mean", 64, 229, 100)),
        ({"format": "gptq", "bits": 3, "group_size": 32}, ("gptq", 32, 3, 1)),
    ],
)
def test_words_of_packed_checkpoints(asked: Any, form: tuple[str, int, int, int]) -> None:
    """A word means a layout; one without a public layout counts by its stated bits."""
    job = read_job({"model": MODEL, "serve": {"weights": asked}})
    assert job.serve is not None
    assert job.serve.weights is not None
    packed = packing(job.serve.weights)
    assert (packed.format, packed.group_size, packed.bits, packed.parts) == form


def test_words_without_a_rule_have_a_way_out() -> None:
    """A format without a public layout asks for its bits; one of another engine names it."""
    for word, message in (("vptq", r"state serve.weights: \{format: vptq, bits"), ("exl3", "a format of exllama")):
        job = read_job({"model": MODEL, "serve": {"weights": word}})
        assert job.serve is not None
        assert job.serve.weights is not None
        with pytest.raises(Unsupported, match=message):
            packing(job.serve.weights)
