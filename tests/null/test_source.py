"""The door from a job's `model` to a network."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.models.count import parameter_count
from everybyte.models.source import checkpoint_of, network_of

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}
PARAMETERS = 2 * 100 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64


def test_a_catalogue_name_in_any_spelling_is_one_object() -> None:
    """The same model asked for again is the same network, found by name without regard to case."""
    first = network_of("meta-llama/Meta-Llama-3.1-8B")
    assert network_of("meta-llama/Meta-Llama-3.1-8B") is first
    assert parameter_count(network_of("meta-llama/meta-llama-3.1-8b")) == parameter_count(first) == 8030261248


def test_a_part_of_a_pipeline() -> None:
    """NAME::transformer is the transformer of a diffusion pipeline."""
    assert parameter_count(network_of("black-forest-labs/FLUX.1-dev::transformer")) == 11901408320


@pytest.mark.parametrize("form", ["config.json", "folder", "inline"])
def test_a_config_in_all_its_forms(form: str, tmp_path: Path) -> None:
    """A file, a folder and an inline mapping of the same fields give the same parameters."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    asked: Any = {"config.json": str(tmp_path / "config.json"), "folder": str(tmp_path), "inline": {"config": CONFIG}}[form]
    assert parameter_count(network_of(asked)) == PARAMETERS


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    """The cache of networks knows a file by its time and size."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    before = parameter_count(network_of(str(file)))
    file.write_text(json.dumps({**CONFIG, "num_hidden_layers": 12}))
    assert parameter_count(network_of(str(file))) > before


def test_a_plain_word_that_exists_here_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder beside the job may be named without ./ in front, if no model of the catalogue is called so."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    assert parameter_count(network_of("mine")) == PARAMETERS


def test_a_checkpoint_tells_what_it_stores(tmp_path: Path) -> None:
    """Stored tensors come with their types and bytes; names and inline models have none."""
    header = {"model.norm.weight": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(256))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    checkpoint = checkpoint_of(str(tmp_path))
    assert checkpoint is not None
    assert [(t.name, t.dtype, t.nbytes) for t in checkpoint.tensors] == [("model.norm.weight", "fp32", 256)]
    assert checkpoint_of("gpt2") is None
    assert checkpoint_of({"config": CONFIG}) is None


def test_asking_again_costs_microseconds() -> None:
    """A warm call is a look-up: well under a millisecond for names and inline models."""
    for asked in ("meta-llama/Meta-Llama-3.1-8B", {"config": CONFIG}):
        network_of(asked)  # type: ignore[arg-type]
        start = time.perf_counter()
        for _ in range(100):
            network_of(asked)  # type: ignore[arg-type]
        assert (time.perf_counter() - start) / 100 < 0.0005


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("meta-lama/Lama-33.1-8B", "unknown model"),
        ("./not-there.json", "cannot be read"),
        ("nowhere.gguf", "cannot be read"),
        ({"config": {"architectures": ["LlamaForCausalLM"], "hidden_size": 64}}, "is missing"),
        ({"config": {}}, "is missing"),
        ({"config": 3}, "must be a mapping"),
        ({"shape": {"family": "lama"}}, "must be one of"),
        ({"config": {}, "shape": {}}, "exactly one of"),
        ({"shpae": {}}, "exactly one of"),
        (7, "must be a name"),
    ],
)
def test_what_is_no_model_is_refused(asked: Any, words: str) -> None:
    """One message with the place."""
    with pytest.raises(BadInput, match=words):
        network_of(asked)


def test_an_unknown_architecture_is_refused_by_name() -> None:
    """The name is repeated, with the nearest that is supported."""
    with pytest.raises(Unsupported, match=r"LlamaForCausalML is not supported .*LlamaForCausalLM"):
        network_of({"config": {**CONFIG, "architectures": ["LlamaForCausalML"]}})


def test_tensors_without_a_config_are_refused(tmp_path: Path) -> None:
    """A lone weights file does not say how its tensors are used."""
    text = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    file = tmp_path / "lonely.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(BadInput, match="holds no config"):
        network_of(str(file))
