"""Types, names and sizes of GGUF files against llama.cpp: its own quantize (recorded by record_gguf_types.py), and its package gguf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from record_gguf_types import DATA, FTYPES, MODELS, grouped

from everybyte.catalog.releases import Release
from everybyte.models.count import DECLARE, declared, parameter_count
from everybyte.models.source import network_of
from everybyte.rules.quantization.gguf.size import METADATA, file_size
from everybyte.rules.quantization.gguf.tensors import Converter, _leaf, gguf_tensors, typed_tensors
from everybyte.rules.quantization.gguf.types import FORK_TYPES, MIXTURES, block_of, quantization
from everybyte.rules.quantization.gguf.vocabulary import Vocabulary, vocabulary_bytes, vocabulary_of

RECORDED: dict[str, Any] = json.loads(DATA.read_text())
SPELT = {"f32": "F32", "f16": "F16"}


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_has_the_type_that_quantize_gives_it(name: str) -> None:
    """All mixtures, with and without an importance matrix: the type of each matrix of each layer is that of the real tool."""
    network, real = network_of(name), RECORDED["models"][name]
    for word in FTYPES:
        for imatrix in (False, True):
            how = quantization(word, imatrix=imatrix, release=Release("llama.cpp", (RECORDED["build"],)))
            mine = grouped({t.tensor.name: t.kind for t in typed_tensors(network, how)})
            expected = real.get(f"{word} imatrix", real[word]) if imatrix else real[word]
            assert mine == expected, (word, imatrix)


def test_the_record_covers_what_issue_four_asks_for() -> None:
    """At least 400 points: mixtures × importance matrix × models, dense, MoE, window, MLA, Mamba and hybrid."""
    assert len(RECORDED["models"]) * 2 * len(FTYPES) >= 400


@pytest.mark.parametrize("kind", sorted(set(MIXTURES.values())))
def test_blocks_are_those_of_the_package(kind: str) -> None:
    """Elements and bytes of a block of every type that a file stores."""
    member = getattr(gguf.GGMLQuantizationType, kind.upper(), None)
    if member is None:
        pytest.skip(f"gguf {kind} is newer than the package")
    assert gguf.GGML_QUANT_SIZES[member] == block_of(kind)[:2]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "Qwen/Qwen3.5-27B"])
def test_names_are_those_of_the_converter(name: str) -> None:
    """Each matrix of a block is called what gguf's tensor map calls it; joined experts are the converter's own work."""
    network, arch = network_of(name), MODELS[name]
    known = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch], 4)
    prefixes = {run.label: run.prefix for run in network.runs}
    checked = 0
    for row in declared(network):
        prefix = prefixes.get(row.part)
        if prefix is None or ".experts" in row.parameter.name or len(row.parameter.dims) < 2:
            continue
        real = known.get_name(f"{prefix.replace('language_model.', '')}.0.{row.parameter.name}", try_suffixes=(".weight", ".bias"))
        leaf, suffix = _leaf(row.parameter.name)
        assert f"blk.0.{leaf}{'.' if suffix else ''}{suffix}" == real, row.parameter.name
        checked += 1
    assert checked


@pytest.mark.parametrize("name", [*MODELS, "google-bert/bert-base-uncased", "google-t5/t5-base", "baichuan-inc/Baichuan2-7B-Base", "databricks/dbrx-base"])
def test_no_element_is_lost(name: str) -> None:
    """The file has as many elements as the network has parameters, but for towers, heads of encoders, and matrices that are stored twice."""
    network = network_of(name)
    stored = sum(t.elements for t in gguf_tensors(network))
    twice = sum(t.elements for t in gguf_tensors(network) if t.name == "output.weight") if network.tied else 0
    towers = {tower.name for tower in network.towers} - {"encoder"}
    left_out = [row for row in declared(network, DECLARE) if row.part.split(".")[0] in towers]
    if network.family == "bert":
        left_out += [row for row in declared(network, DECLARE) if row.part in ("head", network.tail_label)]
    buffers = sum(row.copies * row.parameter.numel for row in declared(network, DECLARE) if row.parameter.buffer)
    assert stored - twice == parameter_count(network) + buffers - sum(row.copies * row.parameter.numel for row in left_out)


def test_latent_projections_by_build() -> None:
    """kv_b lies whole in old files, in two parts in new ones, and both ways in those of the fork; the parts have its elements."""
    network = network_of("deepseek-ai/DeepSeek-V2-Lite")

    def sizes(converter: Converter) -> dict[str, int]:
        return {t.name.removeprefix("blk.0."): t.elements for t in gguf_tensors(network, converter) if "blk.0." in t.name and "_b.weight" in t.name}

    old, new, fork = (sizes(c) for c in (Converter(Release("llama.cpp", (5000,))), Converter(Release("llama.cpp", (6000,))), Converter(both_latents=True)))
    assert set(old) == {"attn_kv_b.weight"}
    assert set(new) == {"attn_k_b.weight", "attn_v_b.weight"}
    assert sum(new.values()) == old["attn_kv_b.weight"]
    assert fork == old | new


def test_a_file_is_as_large_as_the_writer_makes_it(tmp_path: Path) -> None:
    """Head, table, tokenizer and padded tensors of a small model, written by gguf's writer, are what the rule says."""
    network = network_of(
        {
            "config": {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 96,
                "vocab_size": 40,
            }
        }
    )
    tensors = typed_tensors(network, quantization("q8_0"))
    vocabulary = Vocabulary("spm", 40, 40 * 6)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    before_tokens = len("general.architecture") + len("llama") + 8 + 4 + 8
    writer.add_token_list([f"tok{i:03d}" for i in range(40)])
    writer.add_token_scores([0.0] * 40)
    writer.add_token_types([1] * 40)
    names = sum(8 + len(key) + 4 + 4 + 8 for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"))
    for typed in tensors:
        shape, kind = typed.tensor.shape, gguf.GGMLQuantizationType[typed.kind.upper()]
        row = np.zeros((*shape[:-1], shape[-1] // block_of(typed.kind)[0] * block_of(typed.kind)[1]), dtype=np.uint8)
        writer.add_tensor(
            typed.tensor.name, row if typed.kind == "q8_0" else np.zeros(shape, dtype=np.float32), raw_dtype=kind if typed.kind == "q8_0" else None
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ruled = file_size(tensors, vocabulary_bytes(vocabulary)) - METADATA + before_tokens + names
    assert abs((tmp_path / "m.gguf").stat().st_size - ruled) <= 2 * 32  # the head and the last tensor are padded


@pytest.mark.parametrize(
    ("family", "tokens", "kind", "basis"),
    [
        ("llama", 32000, "spm", "formula"),
        ("llama", 32016, "spm", "formula"),
        ("llama", 128256, "bpe", "formula"),
        ("qwen2", 152064, "bpe", "formula"),
        ("gemma2", 256000, "spm", "calibrated"),
        ("bert", 30522, "wordpiece", "formula"),
        ("gemma4", 262144, "gemma4", "formula"),
        ("x", 7, "bpe", "calibrated"),
    ],
)
def test_which_tokenizer_a_model_has(family: str, tokens: int, kind: str, basis: str) -> None:
    """Vocabularies of one size are told apart by the family; one that nobody shipped is scaled, and called so."""
    found, how = vocabulary_of(family, tokens)
    assert (found.kind, found.tokens, how) == (kind, tokens, basis)
    assert vocabulary_bytes(found) > 12 * tokens


def test_types_of_the_fork_have_rows_of_their_own() -> None:
    """ik_llama.cpp's types with a scale in front of each row: IQ4_KS has 4.25 bits a weight and 4 bytes a row."""
    assert FORK_TYPES["iq4_ks"] == (256, 136, 4)
    assert block_of("iq2_bn") == (64, 16, 4)
