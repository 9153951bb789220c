"""Files dropped on the page: read out of memory by their headers, hostile ones refused with one message."""

from __future__ import annotations

import base64
import json
from typing import Any

import gguf
import pytest
from checkpoint_files import GGUF_LLAMA_TENSORS, LLAMA_CONFIG, gguf_bytes, gguf_llama_metadata, header_bytes, safetensors_bytes
from hypothesis import given
from hypothesis import strategies as st

from everybyte.job.words import known_weight_format
from everybyte.models.count import parameter_count
from everybyte.models.source import network_of
from everybyte.web.dropped import GGUF_FILE_TYPES
from everybyte.web.work import work

CONFIG = json.dumps(LLAMA_CONFIG).encode()
PARAMETERS = parameter_count(network_of({"config": LLAMA_CONFIG}))
GGUF = gguf_bytes({**gguf_llama_metadata(), "general.file_type": 2, "general.name": "Tiny"}, GGUF_LLAMA_TENSORS)


def drop(*files: tuple[str, bytes], size: int | None = None) -> tuple[int, dict[str, Any]]:
    """Status and answer for dropped files; `size` says that the last one is longer than what is given of it."""
    listed: list[dict[str, Any]] = [{"name": name, "base64": base64.b64encode(data).decode()} for name, data in files]
    if size is not None:
        listed[-1]["size"] = size
    reply = work("read", json.dumps({"files": listed}).encode())
    return reply.status, json.loads(reply.body)


def refused(*files: tuple[str, bytes], size: int | None = None) -> dict[str, Any]:
    status, answer = drop(*files, size=size)
    assert status == 400, answer
    return answer["error"]


def weights(parameters: int) -> bytes:
    """A safetensors file with so many parameters in bf16."""
    return safetensors_bytes({"a": ("BF16", [parameters])})


def test_a_config_is_the_model() -> None:
    """A config.json gives the model as it stands in the file, and says how large it is."""
    status, answer = drop(("config.json", CONFIG))
    assert status == 200
    assert answer == {"name": "", "model": {"config": LLAMA_CONFIG}, "notes": answer["notes"]}
    assert "2 layers" in answer["notes"][0]


@pytest.mark.parametrize("name", ["job.yaml", "job.yml", "job.json", "job.toml"])
def test_a_job_file_is_a_whole_job(name: str) -> None:
    """YAML, JSON and TOML jobs are taken over whole, with shorthand written out."""
    text = {
        "toml": 'name = "n"\nmodel = "Qwen/Qwen2.5-7B"\n[train]\nmicro_batch = 2\noptimizer = "sgd"\n',
        "json": '{"name": "n", "model": "Qwen/Qwen2.5-7B", "train": {"micro_batch": 2, "optimizer": "sgd"}}',
    }.get(name.rpartition(".")[2], "name: n\nmodel: Qwen/Qwen2.5-7B\ntrain: {micro_batch: 2, optimizer: sgd}\n")
    status, answer = drop((name, text.encode()))
    assert status == 200, answer
    assert answer["name"] == "n"
    assert answer["job"] == {"name": "n", "model": "Qwen/Qwen2.5-7B", "train": {"micro_batch": 2, "optimizer": {"name": "sgd"}}}


def test_weights_with_their_config() -> None:
    """A safetensors header goes with its config.json; where their parameters agree within 2 % no note says otherwise, else one does."""
    status, answer = drop(("config.json", CONFIG), ("model.safetensors", weights(PARAMETERS)))
    assert status == 200, answer
    assert len(answer["notes"]) == 1
    assert answer["model"] == {"config": LLAMA_CONFIG}
    for parameters in (PARAMETERS // 2, 2 * PARAMETERS):
        assert "another model" in drop(("config.json", CONFIG), ("model.safetensors", weights(parameters)))[1]["notes"][1]


def test_weights_alone_ask_for_their_config() -> None:
    """Tensors do not say how they are used."""
    assert "config.json" in refused(("model.safetensors", weights(10)))["message"]


def test_the_first_bytes_of_weights_are_enough() -> None:
    """Of a long safetensors file the header alone is needed; a slice that ends inside it is told how much is."""
    whole = weights(PARAMETERS)
    header = 8 + int.from_bytes(whole[:8], "little")
    assert drop(("config.json", CONFIG), ("model.safetensors", whole[:header]), size=len(whole))[0] == 200
    error = refused(("config.json", CONFIG), ("model.safetensors", whole[: header - 1]), size=len(whole))
    assert error["needs"] == header
    assert refused(("config.json", CONFIG), ("model.safetensors", whole[:4]), size=len(whole))["needs"] == 8


def test_a_gguf_says_model_engine_and_format() -> None:
    """A GGUF file gives its config, llama.cpp as engine and its format of weights; a note says bytes and tensors."""
    status, answer = drop(("tiny.gguf", GGUF))
    assert status == 200, answer
    assert answer["name"] == "Tiny"
    assert answer["serve"] == {"engine": "llama.cpp", "weights": "q4_0"}
    assert answer["model"]["config"]["num_hidden_layers"] == 2
    assert any(f"{len(GGUF):,} bytes" in note and "4 tensors" in note for note in answer["notes"])


def test_slices_of_a_gguf_ask_for_more_until_it_is_enough() -> None:
    """From any first slice on, sending what is asked for ends with an answer, without ever asking for more than the head and a read ahead of 1 MiB."""
    padding = 3 * 2**20
    tensors = {**GGUF_LLAMA_TENSORS, "blk.1.ffn_up.weight": ("q8_0", [padding // 34, 32])}
    whole = gguf_bytes({**gguf_llama_metadata(), "general.file_type": 7}, tensors)
    for given_bytes in (1, 100, 5000):
        asked, rounds = given_bytes, 0
        while (answer := drop(("m.gguf", whole[:asked]), size=len(whole)))[0] == 400:
            assert asked < answer[1]["error"]["needs"] <= 2**20
            asked, rounds = answer[1]["error"]["needs"], rounds + 1
        assert answer[0] == 200
        assert rounds <= 2


def test_file_types_are_those_of_llama_cpp() -> None:
    """Each number stands for the format that gguf's own enumeration names, and each is a format that a job may state."""
    named = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_").casefold() for kind in gguf.LlamaFileType}
    other = {"f32": "fp32", "f16": "fp16", "mxfp4_moe": "mxfp4"}
    for number, ours in GGUF_FILE_TYPES.items():
        assert known_weight_format(ours), ours
        assert ours == other.get(named[number], named[number])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([("config.json", b"{}")], "model_type"),
        ([("config.json", b"[" * 100_000)], "deep"),
        ([("config.json", b"[1]")], "list"),
        ([("config.json", b"\xff")], "UTF-8"),
        ([("config.json", b'{"model_type": "llama", "hidden_size": 1e999}')], ""),
        ([("pytorch_model.bin", b"\x80\x04.")], "pickle"),
        ([("a.gguf", b"GGUF" + b"\xff" * 100)], "version"),
        ([("a.gguf", b"nope")], "GGUF"),
        ([("config.json", CONFIG), ("a.safetensors", header_bytes("{" * 1000))], "JSON"),
        ([("config.json", CONFIG), ("a.safetensors", b"\xff" * 16)], "header"),
        ([("a.yaml", b"a: &a [*a, *a]\nmodel: *a")], ""),
        ([("a.yaml", b"!!python/object/apply:os.system [id]")], ""),
        ([("readme.txt", b"hello")], "config.json"),
        ([("../../etc/passwd", b"x")], "config.json"),
        ([("config.json", CONFIG), ("sub/config.json", CONFIG)], "same name"),
        ([("model.safetensors.index.json", b'{"weight_map": {"a": "../../../etc/passwd.safetensors"}}')], "weight_map"),
        ([("<img src=x onerror=alert(1)>.gguf", b"GGUF")], "<img"),
    ],
    ids=lambda value: value[0][0][:20] if isinstance(value, list) else value,
)
def test_hostile_files_are_refused(files: list[tuple[str, bytes]], says: str) -> None:
    """What is damaged, of another kind or made to hurt gets one clear message."""
    assert says in str(refused(*files))


def test_what_is_no_base64_is_refused() -> None:
    """So is a file that is longer than it says."""
    reply = work("read", json.dumps({"files": [{"name": "config.json", "base64": "???"}]}).encode())
    assert (reply.status, "base64" in reply.body.decode()) == (400, True)
    assert "more than" in refused(("config.json", CONFIG), size=3)["message"]


@given(st.binary(max_size=300), st.integers(0, len(GGUF)), st.sampled_from(["m.gguf", "m.safetensors", "config.json", "j.yaml", "j.toml"]))
def test_damaged_files_never_break_the_server(noise: bytes, at: int, name: str) -> None:
    """A valid file with bytes overwritten anywhere is read or refused; nothing else happens."""
    whole = {"m.gguf": GGUF, "m.safetensors": weights(100), "config.json": CONFIG}.get(name, b"model: Qwen/Qwen2.5-7B\ntrain: {}\n")
    broken = whole[:at] + noise + whole[at + len(noise) :]
    files = [("config.json", CONFIG), (name, broken)] if name == "m.safetensors" else [(name, broken)]
    status, answer = drop(*files)
    assert status in (200, 400), answer


def test_a_configuration_is_imported() -> None:
    """Somebody's training configuration becomes a whole job; what was read and found stands in the notes."""
    axolotl = b"base_model: Qwen/Qwen2.5-7B\nsequence_len: 512\nadapter: lora\nlora_r: 8\nload_in_4bit: true\ndeepspeed: two.json\nodd_key_zz: 1\n"
    status, answer = drop(("tune.yaml", axolotl))
    assert status == 200
    assert answer["job"]["train"]["framework"] == "axolotl"
    assert answer["notes"][0] == "read as axolotl"
    assert any("two.json" in note for note in answer["notes"])
    assert any("odd_key_zz" in note for note in answer["notes"])


def test_configurations_that_belong_together() -> None:
    """Files that are dropped side by side complete each other; one without a model is a part of a job."""
    zero = b'{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'
    status, answer = drop(("tune.yaml", b"base_model: gpt2\nsequence_len: 512\ndeepspeed: cfg/two.json\n"), ("two.json", zero))
    assert status == 200
    assert answer["job"]["train"]["sharding"] == "zero2"
    status, answer = drop(("ds.json", zero))
    assert status == 200
    assert answer["train"]["sharding"] == "zero2"
    assert "job" not in answer
