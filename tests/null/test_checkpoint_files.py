"""Configs, safetensors files and folders are read by header alone, and refused with their place when they are wrong."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import LLAMA_CONFIG, header_bytes, safetensors_bytes, write_sharded

from everybyte.basics.dtypes import dtype
from everybyte.basics.errors import BadInput
from everybyte.checkpoint import StoredTensor, read_checkpoint
from everybyte.checkpoint.safetensors import _DTYPES

TWO = {"a.weight": ("BF16", [8, 4]), "b.weight": ("F32", [3])}


def refused(where: Path | str, *parts: str) -> None:
    """Reading `where` raises BadInput whose text holds all `parts`."""
    with pytest.raises(BadInput) as error:
        read_checkpoint(str(where))
    assert all(part in str(error.value) for part in parts), str(error.value)


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# ---- what is read


def test_config_json(tmp_path: Path) -> None:
    """A config.json is its fields, without tensors, and is called by its folder."""
    path = written(tmp_path / "config.json", json.dumps(LLAMA_CONFIG))
    found = read_checkpoint(str(path))
    assert (found.name, found.config, found.tensors) == (tmp_path.name, LLAMA_CONFIG, ())
    assert found.metadata["format"] == "config"


def test_any_json_of_that_form(tmp_path: Path) -> None:
    """Another .json is read as a config and is called by its own name."""
    assert read_checkpoint(str(written(tmp_path / "tiny.json", json.dumps(LLAMA_CONFIG)))).name == "tiny"


def test_infinity_in_a_config_is_kept(tmp_path: Path) -> None:
    """Published Mamba-2 configs hold Infinity, which is read as such."""
    found = read_checkpoint(str(written(tmp_path / "config.json", '{"time_step_limit": [0.0, Infinity]}')))
    assert found.config == {"time_step_limit": [0.0, float("inf")]}


def test_safetensors_file(tmp_path: Path) -> None:
    """A file gives dtype, shape and bytes of every tensor, its own metadata, and the config beside it if there is one."""
    path = written(tmp_path / "model.safetensors", safetensors_bytes(TWO, {"made_by": "a test"}))
    found = read_checkpoint(str(path))
    assert found.tensors == (StoredTensor("a.weight", "bf16", (8, 4), 64), StoredTensor("b.weight", "fp32", (3,), 12))
    assert (found.config, found.metadata["made_by"]) == (None, "a test")
    written(tmp_path / "config.json", json.dumps(LLAMA_CONFIG))
    assert read_checkpoint(str(path)).config == LLAMA_CONFIG


def test_same_as_the_library(tmp_path: Path) -> None:
    """Headers of files that the safetensors library writes are read as torch sees the tensors, for every dtype that both know."""
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    names = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu complex64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
    tensors = {name: torch.zeros((2, 3), dtype=getattr(torch, name)) for name in names.split()} | {"empty": torch.zeros((0, 5)), "scalar": torch.zeros(())}
    save_file(tensors, tmp_path / "x.safetensors")
    found = {t.name: t for t in read_checkpoint(str(tmp_path / "x.safetensors")).tensors}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].shape == tuple(tensor.shape)
        assert found[name].nbytes == tensor.numel() * tensor.element_size() == dtype(found[name].dtype).nbytes(tensor.numel())


def test_dtypes_are_ours() -> None:
    """Every dtype of safetensors leads to a number format of ours."""
    assert {dtype(name).name for name in _DTYPES.values()} == set(_DTYPES.values())


def test_sharded_folder(tmp_path: Path) -> None:
    """A folder with an index gives the tensors of all shards, in the order of the index."""
    write_sharded(tmp_path, {"model-00001-of-00002.safetensors": {"a": ("F16", [4])}, "model-00002-of-00002.safetensors": {"b": ("F4", [2, 4])}})
    found = read_checkpoint(str(tmp_path))
    assert found.name == tmp_path.name
    assert found.config == LLAMA_CONFIG
    assert found.tensors == (StoredTensor("a", "fp16", (4,), 8), StoredTensor("b", "fp4", (2, 4), 4))
    assert found.metadata["total_size"] == 1
    assert read_checkpoint(str(tmp_path / "model.safetensors.index.json"))[1:] == found[1:]


def test_index_decides_about_copies(tmp_path: Path) -> None:
    """Where an index is present, files that it does not name are not read: Mistral ships its weights twice."""
    write_sharded(tmp_path, {"model-00001-of-00001.safetensors": {"a": ("F16", [4])}})
    written(tmp_path / "consolidated.safetensors", safetensors_bytes({"other": ("F16", [4])}))
    assert [t.name for t in read_checkpoint(str(tmp_path)).tensors] == ["a"]


@pytest.mark.parametrize(
    ("files", "tensors"),
    [
        ({"model.safetensors": "a", "adapter_model.safetensors": "lora"}, ["a"]),
        ({"consolidated.safetensors": "a"}, ["a"]),
        ({"part1.safetensors": "a", "part2.safetensors": "b", "consolidated.safetensors": "c"}, ["a", "b"]),
        ({"x-00001-of-00002.safetensors": "a", "x-00002-of-00002.safetensors": "b", "y.safetensors": "c"}, ["a", "b"]),
        ({"diffusion_pytorch_model.safetensors": "a", "model.fp16.safetensors": "b"}, ["a"]),
    ],
)
def test_folder_without_index(tmp_path: Path, files: dict[str, str], tensors: list[str]) -> None:
    """Without an index the usual name, the numbered set, or all plain files are the weights; adapters and second copies are left out."""
    for file, tensor in files.items():
        written(tmp_path / file, safetensors_bytes({tensor: ("F32", [1])}))
    assert [t.name for t in read_checkpoint(str(tmp_path)).tensors] == tensors


def test_pickles_beside_a_config_are_left_alone(tmp_path: Path) -> None:
    """With a config.json, a folder of pickles is answered by the config; the pickles are named, not opened."""
    written(tmp_path / "config.json", json.dumps(LLAMA_CONFIG))
    os.mkfifo(tmp_path / "pytorch_model.bin")  # opening it would hang
    found = read_checkpoint(str(tmp_path))
    assert found.tensors == ()
    assert found.metadata["unread"] == ["pytorch_model.bin"]


# ---- what is refused: paths and folders


def test_wrong_places(tmp_path: Path) -> None:
    """Paths that lead nowhere, to no file, or to the wrong kind are told apart."""
    refused(tmp_path / "none" / "config.json", "config.json", "No such file")
    refused(tmp_path / "none", "none", "No such file")
    refused(tmp_path, tmp_path.name, "holds no config.json")
    refused(written(tmp_path / "x.txt", "hello"), "x.txt", "is none of config.json")
    refused(written(tmp_path / "x.bin", b"\x80\x02"), "x.bin", "pickle", "safetensors")
    refused("", "no path")
    refused("a\0b.json", "no path")
    refused("~nobody-of-that-name/config.json", "~nobody")
    refused(tmp_path / ("x" * 5000), "too long")
    os.mkfifo(tmp_path / "pipe.json")
    refused(tmp_path / "pipe.json", "not a regular file")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    refused(tmp_path / "loop.json", "loop.json")


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (["pytorch_model.bin"], "pickles only"),
        (["adapter_model.safetensors"], "adapter alone"),
        (["model_index.json"], "diffusers pipeline"),
        (["a.gguf", "b.gguf"], "2 .gguf files"),
        (["a.safetensors.index.json", "b.safetensors.index.json"], "2 index files"),
    ],
)
def test_folders_without_an_answer(tmp_path: Path, files: list[str], part: str) -> None:
    """Folders of pickles, adapters, pipelines, or several models are refused with the way out."""
    for file in files:
        written(tmp_path / file, b"{}")
    refused(tmp_path, tmp_path.name, part)


# ---- what is refused: JSON


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("line 1, column 1", "not JSON")),
        (b'{"a": 1,}', ("line 1, column", "not JSON")),
        (b'\n{"a" 1}', ("line 2, column 6", "not JSON")),
        (b"[1, 2]", ("a list",)),
        (b"null", ("null",)),
        (b'"text"', ("a text",)),
        (b"3", ("a number",)),
        (b"true", ("true or false",)),
        (b'{"a": "\xff"}', ("byte 7", "UTF-8")),
        ('{"a": 1}'.encode("utf-16"), ("UTF-8",)),
        (b'\xef\xbb\xbf{"a": 1}', ("line 1, column 1", "not JSON")),
        (b'{"a": 1, "a": 2}', ("'a' stands twice",)),
        (b'{"x": {"b": 1, "b": 2}}', ("'b' stands twice",)),
        (b'{"a": NaN}', ("NaN",)),
        (b'{"a": 1' + b"0" * 100 + b"}", ("101 digits",)),
        (b'{"a": 1' + b"0" * 10_000 + b"}", ("10001 digits",)),
        (b'{"a": "\\ud800"}', ("surrogate",)),
        (b'{"\\udfff": 1}', ("surrogate",)),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ("nested too deeply",)),
        (b'{"a": [' + b"[]," * 2_000_001 + b"[]]}", ("2,000,000 lists",)),
    ],
)
def test_json_that_is_none(tmp_path: Path, content: bytes, parts: tuple[str, ...]) -> None:
    """Whatever is not one bounded JSON object of plain values is refused with file and position."""
    refused(written(tmp_path / "config.json", content), "config.json", *parts)


def test_gigantic_config(tmp_path: Path) -> None:
    """A config of a terabyte (a sparse file) is refused by its size, unread."""
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    refused(tmp_path / "config.json", "1,099,511,627,776 bytes")


def test_surrogate_pairs_are_text(tmp_path: Path) -> None:
    """A full surrogate pair in an escape is one character, as JSON has it."""
    assert read_checkpoint(str(written(tmp_path / "c.json", '{"a": "\\ud83d\\ude00"}'))).config == {"a": "\U0001f600"}


# ---- what is refused: safetensors


def entry(kind: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets, **more}


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        ({"t": entry(kind="F99")}, ("tensor 't', dtype", "'F99'")),
        ({"t": entry(kind=7)}, ("tensor 't', dtype",)),
        ({"t": entry(kind=["F32"])}, ("tensor 't', dtype",)),
        ({"t": entry(shape=[3])}, ("tensor 't'", "does not take the 8 bytes")),
        ({"t": entry(shape=[-2])}, ("tensor 't', shape",)),
        ({"t": entry(shape=[2.0])}, ("tensor 't', shape",)),
        ({"t": entry(shape=[True, 2])}, ("tensor 't', shape",)),
        ({"t": entry(shape="2")}, ("tensor 't', shape",)),
        ({"t": entry(shape=[2**63] * 64)}, ("tensor 't'", "does not take")),
        ({"t": entry(shape=[1] * 65)}, ("tensor 't', shape", "64")),
        ({"t": entry(offsets=[-8, 0])}, ("tensor 't', data_offsets",)),
        ({"t": entry(offsets=[8, 0])}, ("tensor 't', data_offsets", "[8, 0]")),
        ({"t": entry(offsets=[0, 16], shape=[4])}, ("tensor 't', data_offsets", "within the 8 bytes")),
        ({"t": entry(offsets=[0, 2**63], shape=[2**61])}, ("tensor 't', data_offsets",)),
        ({"t": entry(offsets=[0])}, ("tensor 't', data_offsets",)),
        ({"t": entry(offsets=None)}, ("tensor 't', data_offsets",)),
        ({"t": entry(extra=1)}, ("tensor 't'", "an object of dtype")),
        ({"t": [1]}, ("tensor 't'", "an object of dtype")),
        ({"t": entry(), "u": entry()}, ("tensor 'u'", "overlaps")),
        ({"t": entry(shape=[1], offsets=[4, 8])}, ("tensor 't'", "hole")),
        ({"t": entry(shape=[1], offsets=[0, 4])}, ("take 4 bytes of data, and the file has 8",)),
        ({"t": entry(kind="F4", shape=[3], offsets=[0, 2])}, ("tensor 't'", "does not take the 2 bytes")),
        ({"__metadata__": {"a": 1}, "t": entry()}, ("__metadata__",)),
        ({"__metadata__": [], "t": entry()}, ("__metadata__",)),
        ({"evil\x1b[2J" + "x" * 500: entry(kind="?")}, ("evil\\x1b[2J", "...'")),
    ],
)
def test_safetensors_headers_that_lie(tmp_path: Path, header: dict[str, Any], parts: tuple[str, ...]) -> None:
    """Headers that contradict themselves or the 8 bytes of data behind them are refused with file and tensor."""
    path = written(tmp_path / "x.safetensors", header_bytes(json.dumps(header)) + bytes(8))
    refused(path, "x.safetensors", *parts)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("0 bytes, too few",)),
        (b"1234567", ("7 bytes, too few",)),
        (struct.pack("<Q", 2**40) + b"{}", ("byte 0", "1,099,511,627,776 bytes", "the format allows")),
        (struct.pack("<Q", 2**64 - 1), ("byte 0", "the format allows")),
        (struct.pack("<Q", 1000) + b"{}", ("byte 0", "1,000 bytes", "truncated")),
        (header_bytes("not json"), ("header, line 1", "not JSON")),
        (header_bytes("[]"), ("header", "a list")),
        (header_bytes('{"t": {}, "t": {}}'), ("header", "'t' stands twice")),
        (safetensors_bytes(TWO)[:-1], ("data_offsets", "within the 75 bytes")),
        (safetensors_bytes(TWO) + b"\0", ("take 76 bytes of data, and the file has 77",)),
    ],
)
def test_safetensors_files_that_are_none(tmp_path: Path, content: bytes, parts: tuple[str, ...]) -> None:
    """Files that end early or late, or claim a header that cannot be, are refused with file and position."""
    refused(written(tmp_path / "x.safetensors", content), "x.safetensors", *parts)


def test_terabyte_header_of_a_sparse_file(tmp_path: Path) -> None:
    """A header that claims terabytes is refused even where the file (sparse) is that large."""
    with (tmp_path / "x.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 2**40))
        file.truncate(2**41)
    refused(tmp_path / "x.safetensors", "the format allows")


@pytest.mark.parametrize(
    ("weight_map", "parts"),
    [
        (None, ("weight_map", "expected")),
        ({}, ("weight_map", "expected")),
        ({"a": "../secret.safetensors"}, ("weight_map, 'a'", "'../secret.safetensors'")),
        ({"a": "/etc/passwd"}, ("weight_map, 'a'",)),
        ({"a": "model.bin"}, ("weight_map, 'a'", "'model.bin'")),
        ({"a": 5}, ("weight_map, 'a'", "'5'")),
        ({"a": "gone.safetensors"}, ("1 are missing", "'gone.safetensors'")),
        ({"b": "s.safetensors"}, ("weight_map, 'b'", "not in 's.safetensors'")),
    ],
)
def test_indices_that_lie(tmp_path: Path, weight_map: Any, parts: tuple[str, ...]) -> None:
    """An index that names files outside its folder, missing files or missing tensors is refused with its place."""
    written(tmp_path / "s.safetensors", safetensors_bytes({"a": ("F32", [1])}))
    path = written(tmp_path / "model.safetensors.index.json", json.dumps({"weight_map": weight_map}))
    refused(path, "model.safetensors.index.json", *parts)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    """Without an index, a tensor that two files hold leaves open which one counts."""
    for name in ("a.safetensors", "b.safetensors"):
        written(tmp_path / name, safetensors_bytes({"same": ("F32", [1])}))
    refused(tmp_path, "tensor 'same'", "a.safetensors", "b.safetensors")
