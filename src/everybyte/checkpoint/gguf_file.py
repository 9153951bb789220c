"""GGUF files: metadata and tensor table, read with every claim checked against the file; the weights stay unread.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the checks follow llama.cpp, ggml/src/gguf.cpp.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any, NamedTuple

from everybyte.basics.dtypes import DType, dtype
from everybyte.basics.errors import BadInput
from everybyte.basics.units import round_up
from everybyte.checkpoint.source import Folder, Source
from everybyte.checkpoint.stored import StoredTensor, shown

# ggml/include/ggml.h, enum ggml_type
_GGML_TYPES = {
    0: "fp32",
    1: "fp16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    9: "q8_1",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "fp64",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4",
    41: "q1_0",
    42: "q2_0",
}

# enum gguf_metadata_value_type -> struct format
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_HEAD_LIMIT = 64 * 2**20
"""Bytes of metadata and tensor table that are read at most; the largest published tokenizers take some 20 MB."""
_CHUNK = 2**20
_LONGEST_LIST = 4096
"""Numbers of an array that are kept; per-layer settings are shorter, token tables longer."""
_MOST_PAIRS, _MOST_TENSORS = 4096, 500_000
"""Far above what any published file has (some 60 pairs, some 2,000 tensors); they bound the memory that a hostile file can take."""
_MOST_AXES = 4  # GGML_MAX_DIMS
_SMALLEST_PAIR = 8 + 4 + 1  # key length, value type, a value of one byte
_SMALLEST_TENSOR = 8 + 4 + 4 + 8  # name length, axes, type, offset
_SPLIT_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")


class SkippedArray(NamedTuple):
    """An array of the metadata that is counted, not kept: all arrays of texts, and long ones of numbers."""

    length: int


class GgufFile(NamedTuple):
    """Metadata and tensors of one GGUF file."""

    metadata: dict[str, Any]
    tensors: tuple[StoredTensor, ...]


def read_gguf(source: Source) -> GgufFile:
    """Metadata and tensor table of one file. Raises BadInput naming file, byte and tensor for whatever llama.cpp would not load.

    Shapes are turned round to PyTorch's order.
    """
    cursor = _Cursor(source)
    tensor_count, pair_count = _counts(cursor)
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        at = cursor.place
        key = cursor.text("key")
        if key in metadata:
            raise BadInput(at, f"key {shown(key)} stands twice")
        metadata[key] = _value(cursor, cursor.number("I"), key)
    tensors = _tensor_table(cursor, tensor_count, _alignment(metadata, source.place))
    return GgufFile(metadata, tensors)


def split_names(name: str) -> list[str]:
    """All parts of the split file that `name` is a part of: `m-00002-of-00003.gguf` -> three names; else the name alone."""
    match = _SPLIT_NAME.fullmatch(name)
    if match is None or int(match[3]) < 1:
        return [name]
    return [f"{match[1]}-{part:05d}-of-{match[3]}.gguf" for part in range(1, int(match[3]) + 1)]


def read_split(folder: Folder, names: list[str]) -> GgufFile:
    """The parts of a split file together: metadata of the first, tensors of all. Raises BadInput for a missing part or a tensor that stands twice."""
    present = set(folder.names())
    missing = [name for name in names if name not in present]
    if missing:
        raise BadInput(folder.place, f"{len(missing)} of {len(names)} parts of the split file are missing, the first {shown(missing[0])}")
    parts = [read_gguf(folder.open(name)) for name in names]
    tensors = [tensor for part in parts for tensor in part.tensors]
    _refuse_twice(tensors, folder.place)
    return GgufFile(parts[0].metadata, tuple(tensors))


class _Cursor:
    """Reads a source from its beginning, in chunks, up to `_HEAD_LIMIT`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._data = bytearray()
        self._limit = min(source.size, _HEAD_LIMIT)
        self.position = 0

    @property
    def place(self) -> str:
        return f"{self._source.place}, byte {self.position:,}"

    @property
    def source(self) -> Source:
        return self._source

    @property
    def left(self) -> int:
        """Bytes that may still be read."""
        return self._limit - self.position

    def need(self, length: int, what: str) -> None:
        """Make sure that `length` bytes follow."""
        if length > self.left:
            limited = self._limit < self._source.size
            limit = f"only {_HEAD_LIMIT:,} bytes of head are read" if limited else f"the file ends at byte {self._source.size:,}"
            raise BadInput(self.place, f"{what} takes {length:,} bytes, and {limit}: truncated, or not a GGUF file")
        while self.position + length > len(self._data):
            self._data += self._source.read(len(self._data), min(max(_CHUNK, length), self._limit - len(self._data)))

    def take(self, length: int, what: str) -> bytes:
        self.need(length, what)
        begin = self.position
        self.position += length
        return bytes(self._data[begin : self.position])

    def numbers(self, code: str, count: int, what: str = "a number") -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{code}", self.take(struct.calcsize(f"<{code}") * count, what))

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def text(self, what: str) -> str:
        at = self.place
        raw = self.take(self.number("Q"), f"a {what}")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise BadInput(at, f"a {what} is not UTF-8 text") from None

    def skip_texts(self, count: int) -> None:
        """Pass over an array of texts. Written without calls in the loop: tokenizers hold half a million."""
        for _ in range(count):
            if self.position + 8 > len(self._data):
                self.need(8, "a text of an array")
            length = int.from_bytes(self._data[self.position : self.position + 8], "little")
            if self.position + 8 + length > len(self._data):
                self.need(8 + length, "a text of an array")
            self.position += 8 + length


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """Numbers of tensors and of metadata pairs, each possible in what is left of the file."""
    source = cursor.source
    if cursor.take(4, "the mark GGUF") != b"GGUF":
        raise BadInput(f"{source.place}, byte 0", "is not a GGUF file: it does not begin with the letters GGUF")
    version = cursor.number("I")
    if version not in (2, 3):
        reason = "big endian" if version >= 2**16 else "no version that llama.cpp still reads"
        raise BadInput(f"{source.place}, byte 4", f"GGUF version {version} is {reason}; versions 2 and 3, little endian, are read")
    tensor_count, pair_count = cursor.numbers("Q", 2)
    if tensor_count > _MOST_TENSORS or pair_count > _MOST_PAIRS or tensor_count * _SMALLEST_TENSOR + pair_count * _SMALLEST_PAIR > cursor.left:
        raise BadInput(
            f"{source.place}, byte 8", f"claims {tensor_count:,} tensors and {pair_count:,} metadata pairs, more than the file can hold or any model has"
        )
    return tensor_count, pair_count


def _value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind in _SCALARS:
        return _finite(cursor.number(_SCALARS[kind]), key, cursor.place)
    if kind == _STRING:
        return cursor.text("text")
    if kind != _ARRAY:
        raise BadInput(cursor.place, f"value type {kind} of key {shown(key)} is unknown")
    element, length = cursor.number("I"), cursor.number("Q")
    if element == _STRING:
        if 8 * length > cursor.left:
            raise BadInput(cursor.place, f"key {shown(key)} claims {length:,} texts, more than the file can hold")
        cursor.skip_texts(length)
        return SkippedArray(length)
    if element not in _SCALARS:
        raise BadInput(cursor.place, f"key {shown(key)} is an array of value type {element}; arrays hold numbers or texts")
    code = _SCALARS[element]
    cursor.need(struct.calcsize(f"<{code}") * length, f"the array of {length:,} values of key {shown(key)}")
    if length > _LONGEST_LIST:
        cursor.position += struct.calcsize(f"<{code}") * length
        return SkippedArray(length)
    return [_finite(value, key, cursor.place) for value in cursor.numbers(code, length)]


def _finite(value: Any, key: str, place: str) -> Any:
    if not math.isfinite(value):
        raise BadInput(place, f"the value of key {shown(key)} is {value}")
    return value


def _alignment(metadata: dict[str, Any], place: str) -> int:
    alignment = metadata.get("general.alignment", 32)  # GGUF_DEFAULT_ALIGNMENT
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > _CHUNK:
        raise BadInput(f"{place}, general.alignment", f"{alignment!r} is not a power of two")
    return alignment


def _tensor_table(cursor: _Cursor, count: int, alignment: int) -> tuple[StoredTensor, ...]:
    place = cursor.source.place
    tensors: list[StoredTensor] = []
    offset = 0
    for _ in range(count):
        tensor, begin = _tensor(cursor)
        where = f"{place}, tensor {shown(tensor.name)}"
        # llama.cpp refuses files whose data are not laid one after another in the order of the table
        if begin != offset:
            raise BadInput(where, f"its data begin at byte {begin:,}, where {offset:,} is expected: overlap, hole, or damage")
        offset += round_up(tensor.nbytes, alignment)
        tensors.append(tensor)
    _refuse_twice(tensors, place)
    end = round_up(cursor.position, alignment) + sum(round_up(t.nbytes, alignment) for t in tensors[:-1]) + (tensors[-1].nbytes if tensors else 0)
    if tensors and end > cursor.source.size:
        raise BadInput(place, f"the tensors end at byte {end:,}, and the file has {cursor.source.size:,}: truncated")
    return tuple(tensors)


def _tensor(cursor: _Cursor) -> tuple[StoredTensor, int]:
    """One entry of the table, and the offset of its data."""
    name = cursor.text("tensor name")
    where = f"{cursor.source.place}, tensor {shown(name)}"
    axes = cursor.number("I")
    if axes > _MOST_AXES:
        raise BadInput(where, f"claims {axes:,} axes; GGUF allows {_MOST_AXES}")
    shape = cursor.numbers("Q", axes)
    kind, offset = cursor.number("I"), cursor.number("Q")
    if kind not in _GGML_TYPES:
        raise BadInput(where, f"ggml type {kind} is unknown")
    stored = dtype(_GGML_TYPES[kind])
    row, elements = (shape[0] if shape else 1), math.prod(shape)
    if row % _block(stored) or elements >= 2**63:
        raise BadInput(where, f"shape {list(shape)} does not go with {stored.name}: rows of a multiple of {_block(stored)}, fewer than 2^63 elements in all")
    return StoredTensor(name, stored.name, tuple(reversed(shape)), stored.nbytes(elements)), offset


def _block(stored: DType) -> int:
    return 64 if stored.name == "nvfp4" else stored.block_elements  # ggml packs four blocks of 16 into one, ggml-common.h QK_NVFP4


def _refuse_twice(tensors: list[StoredTensor], place: str) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise BadInput(f"{place}, tensor {shown(tensor.name)}", "stands twice")
        seen.add(tensor.name)
