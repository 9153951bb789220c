"""Broken and hostile files: whatever the bytes, reading them answers or raises BadInput, within bounded time and memory."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import pytest
from checkpoint_files import GGUF_LLAMA_TENSORS, LLAMA_CONFIG, gguf_bytes, gguf_llama_metadata, header_bytes, safetensors_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everybyte.basics.dtypes import dtype
from everybyte.basics.errors import BadInput
from everybyte.checkpoint import read_checkpoint

VALID = {
    "x.safetensors": safetensors_bytes({"a.weight": ("BF16", [8, 4]), "b": ("F32", [3]), "c": ("F4", [2, 2])}, {"format": "pt"}),
    "x.gguf": gguf_bytes(gguf_llama_metadata() | {"general.alignment": 32, "llama.list": [1, 2, 3], "llama.flag": True}, GGUF_LLAMA_TENSORS),
    "x.json": json.dumps(LLAMA_CONFIG | {"rope_scaling": {"factor": 8.0, "type": "x"}, "layer_types": ["a", "b"], "none": None}).encode(),
}
NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**60, 2**63 - 1, 2**63, 2**64 - 1]

MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("byte"), st.floats(0, 1), st.integers(0, 255)),
        st.tuples(st.just("number"), st.floats(0, 1), st.sampled_from(NUMBERS)),
        st.tuples(st.just("insert"), st.floats(0, 1), st.binary(max_size=20)),
        st.tuples(st.just("repeat"), st.floats(0, 1), st.integers(1, 200)),
        st.tuples(
            st.just("token"), st.floats(0, 1), st.sampled_from([b"NaN", b"[", b"{", b'"', b"-1", b"1e999", b"\\ud800", b"9" * 30, b"\xff", b",", b"null"])
        ),
    ),
    min_size=1,
    max_size=6,
)

FUZZ = settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])


def mutate(data: bytes, changes: list[tuple[object, ...]]) -> bytes:
    """`data` after the changes, each at a place given as a part of the length."""
    result = bytearray(data)
    for kind, *arguments in changes:
        at = int(arguments[0] * len(result))  # type: ignore[operator]
        value = arguments[-1]
        if kind == "cut":
            del result[at:]
        elif kind == "byte":
            result[at : at + 1] = bytes([value])  # type: ignore[list-item]
        elif kind == "number":
            result[at : at + 8] = struct.pack("<Q", value)
        elif kind == "repeat":
            result[at:at] = result[at : at + 4] * value  # type: ignore[operator]
        else:
            result[at:at] = value  # type: ignore[assignment]
    return bytes(result)


def read_or_refuse(path: Path, content: bytes) -> None:
    """Read `content`: an answer must hold together, and BadInput must be one printable message naming the file."""
    path.write_bytes(content)
    try:
        found = read_checkpoint(str(path))
    except BadInput as error:
        message = str(error)
        assert path.name in message
        assert message.isprintable()
        assert len(message) < 2000
    else:
        assert found.config is None or isinstance(found.config, dict)
        assert sum(t.nbytes for t in found.tensors) <= len(content)
        names = [t.name for t in found.tensors]
        assert len(set(names)) == len(names)
        for tensor in found.tensors:
            elements = 1
            for axis in tensor.shape:
                elements *= axis
            assert dtype(tensor.dtype).nbytes(elements) == tensor.nbytes


@pytest.mark.parametrize("name", VALID)
@FUZZ
@given(changes=MUTATIONS)
def test_mutated_files(name: str, changes: list[tuple[object, ...]], tmp_path: Path) -> None:
    """A valid file after random damage is read consistently or refused; nothing else is raised."""
    read_or_refuse(tmp_path / name, mutate(VALID[name], changes))


@pytest.mark.parametrize("name", VALID)
@FUZZ
@given(content=st.binary(max_size=400))
def test_random_bytes(name: str, content: bytes, tmp_path: Path) -> None:
    """Random bytes under any of the known names are refused or read, nothing else."""
    read_or_refuse(tmp_path / name, content)
    if name == "x.gguf":
        read_or_refuse(tmp_path / name, b"GGUF\3\0\0\0" + content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F4", "F6_E2M3", "U8", "F99"]) | JSON,
        "shape": st.lists(st.integers(-1, 2**62) | st.integers(0, 4), max_size=4) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40) | st.sampled_from(NUMBERS), min_size=2, max_size=2) | JSON,
    }
)


@FUZZ
@given(header=st.dictionaries(st.text(max_size=8) | st.just("__metadata__"), ENTRY | JSON, max_size=4), data=st.binary(max_size=40))
def test_safetensors_of_any_header(header: dict[str, object], data: bytes, tmp_path: Path) -> None:
    """Headers that are JSON of any content are refused or hold together with the data behind them."""
    read_or_refuse(tmp_path / "x.safetensors", header_bytes(json.dumps(header)) + data)


@FUZZ
@given(content=JSON)
def test_index_of_any_content(content: object, tmp_path: Path) -> None:
    """An index of any JSON is refused, or names files beside it."""
    read_or_refuse(tmp_path / "x.safetensors.index.json", json.dumps({"weight_map": content}).encode())


@FUZZ
@given(
    metadata=st.dictionaries(
        st.sampled_from([*gguf_llama_metadata(), "llama.expert_count", "llama.rope.freq_base", "general.alignment", "x"]),
        st.integers(0, 2**32 - 1)
        | st.booleans()
        | st.floats(width=32)
        | st.text(max_size=8)
        | st.sampled_from(["llama", "deepseek2", "gemma3", "mamba", "gpt2", "falcon"])
        | st.lists(st.integers(0, 9)),
    )
)
def test_gguf_of_any_metadata(metadata: dict[str, object], tmp_path: Path) -> None:
    """Settings of any kind and size in a well-formed GGUF become a config or are refused with their key."""
    read_or_refuse(tmp_path / "x.gguf", gguf_bytes(gguf_llama_metadata() | metadata, GGUF_LLAMA_TENSORS))


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("x.safetensors", struct.pack("<Q", 2**39)),
        ("x.safetensors", struct.pack("<Q", 8) + b'{"a": 1}'),
        ("x.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**35, 0)),
        ("x.gguf", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**38)),
        ("x.gguf", b"GGUF" + struct.pack("<IQQQ", 3, 0, 4096, 1) + b"k" + struct.pack("<IIQ", 9, 0, 2**36)),
        ("x.json", b"{"),
    ],
)
def test_memory_is_bounded(name: str, begin: bytes, tmp_path: Path) -> None:
    """Claims of terabytes in a file that is (sparsely) that large are refused without reading it."""
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(2**40)
    tracemalloc.start()
    with pytest.raises(BadInput):
        read_checkpoint(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
