"""Headers of safetensors files and their index: names, dtypes, shapes and bytes of every tensor; the weights stay unread.

Format: https://github.com/huggingface/safetensors#format (8 bytes little endian: length of the header; the header as JSON; the data without holes).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from everybyte.basics.dtypes import dtype
from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.checkpoint.json_file import INDEX_LIMIT, parse_json, read_json
from everybyte.checkpoint.source import Folder, Source
from everybyte.checkpoint.stored import StoredTensor, shown

INDEX_SUFFIX = ".safetensors.index.json"

# safetensors src/tensor.rs, enum Dtype -> names of everybyte.basics.dtypes
_DTYPES = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "F8_E4M3FNUZ": "fp8",
    "F8_E5M2FNUZ": "fp8",
    "F8_E8M0": "e8m0",
    "F6_E2M3": "fp6",
    "F6_E3M2": "fp6",
    "F4": "fp4",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
_MOST_AXES = 64  # numpy's limit; PyTorch has none that matters
_LENGTH_BYTES = 8


class _Placed(NamedTuple):
    """A tensor and where its data lie, counted from the end of the header."""

    begin: int
    end: int
    tensor: StoredTensor


def read_header(source: Source) -> tuple[tuple[StoredTensor, ...], dict[str, str]]:
    """Tensors of one safetensors file in the order of their data, and its `__metadata__`.

    Raises BadInput naming file and tensor for anything that the format forbids: sizes beyond the file, overlaps, holes, unknown dtypes, shapes that do not
    give the bytes, a file that ends early or late.
    """
    header_bytes = _header_length(source)
    header = parse_json(source.read(_LENGTH_BYTES, header_bytes), f"{source.place}, header")
    metadata = _metadata(header.pop("__metadata__", {}), source.place)
    data_bytes = source.size - _LENGTH_BYTES - header_bytes
    placed = sorted(_tensor(name, entry, data_bytes, source.place) for name, entry in header.items())
    _check_layout(placed, data_bytes, source.place)
    return tuple(p.tensor for p in placed), metadata


def read_index(folder: Folder, index_name: str) -> tuple[tuple[StoredTensor, ...], dict[str, Any], list[str]]:
    """Tensors of the files that an index names, the index' metadata, and the files. Raises BadInput where index and files disagree."""
    index = folder.open(index_name)
    content = read_json(index, INDEX_LIMIT)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadInput(f"{index.place}, weight_map", "an object {tensor name: file name} is expected")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or "/" in file or "\\" in file:
            raise BadInput(f"{index.place}, weight_map, {shown(name)}", f"{shown(str(file))} is not the name of a .safetensors file beside the index")
    files = sorted(set(weight_map.values()))
    present = set(folder.names())
    missing = [file for file in files if file not in present]
    if missing:
        raise BadInput(
            index.place, f"names {len(files)} files of which {len(missing)} are missing, the first {shown(missing[0])}; give the config.json instead"
        )
    stored = {tensor.name: tensor for file, tensor in _all_tensors(folder, files) if weight_map.get(tensor.name) == file}
    absent = next((name for name in weight_map if name not in stored), None)
    if absent is not None:
        raise BadInput(f"{index.place}, weight_map, {shown(absent)}", f"the tensor is not in {shown(weight_map[absent])}")
    metadata = content.get("metadata")
    return tuple(stored[name] for name in weight_map), metadata if isinstance(metadata, dict) else {}, files


def read_files(folder: Folder, files: list[str]) -> tuple[StoredTensor, ...]:
    """Tensors of files without an index. Raises BadInput if a tensor stands in two of them."""
    first_file: dict[str, str] = {}
    tensors = []
    for file, tensor in _all_tensors(folder, files):
        if tensor.name in first_file:
            where = f"{folder.place}, tensor {shown(tensor.name)}"
            raise BadInput(where, f"stands in {first_file[tensor.name]} and in {file}; give the one file or the index that you mean")
        first_file[tensor.name] = file
        tensors.append(tensor)
    return tuple(tensors)


def _all_tensors(folder: Folder, files: list[str]) -> Iterable[tuple[str, StoredTensor]]:
    """(file, tensor) of all files. Headers are read side by side, since on the hub each costs a round trip."""
    if len(files) == 1:
        return [(files[0], tensor) for tensor in read_header(folder.open(files[0]))[0]]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=8) as pool:
        headers = pool.map(lambda file: read_header(folder.open(file)), files)
        return [(file, tensor) for file, (tensors, _) in zip(files, headers, strict=True) for tensor in tensors]


def _header_length(source: Source) -> int:
    if source.size < _LENGTH_BYTES:
        raise BadInput(source.place, f"has {source.size} bytes, too few for a safetensors file")
    length = int.from_bytes(source.read(0, _LENGTH_BYTES), "little")
    if length > INDEX_LIMIT:
        raise BadInput(f"{source.place}, byte 0", f"claims a header of {length:,} bytes; the format allows {INDEX_LIMIT:,}. Not a safetensors file, or damaged")
    if _LENGTH_BYTES + length > source.size:
        raise BadInput(f"{source.place}, byte 0", f"claims a header of {length:,} bytes, and the file has {source.size:,}: truncated")
    return length


def _metadata(value: Any, place: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise BadInput(f"{place}, header, __metadata__", "an object of texts is expected")
    return value


def _tensor(name: str, entry: Any, data_bytes: int, file: str) -> _Placed:
    place = f"{file}, tensor {shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadInput(place, "an object of dtype, shape and data_offsets is expected")
    shape = _whole_numbers(entry["shape"], f"{place}, shape")
    offsets = _whole_numbers(entry["data_offsets"], f"{place}, data_offsets")
    kind = entry["dtype"]
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise BadInput(f"{place}, dtype", f"{shown(str(kind))} is not a dtype of safetensors{did_you_mean(str(kind)[:20], _DTYPES)}")
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise BadInput(f"{place}, data_offsets", f"{list(offsets)[:4]} is not [begin, end] within the {data_bytes:,} bytes of data that the file has")
    begin, end = offsets
    elements = prod(shape)
    stored = dtype(_DTYPES[kind])
    if elements % stored.block_elements or stored.nbytes(elements) != end - begin:
        raise BadInput(place, f"shape {list(shape)[:8]} of {kind} does not take the {end - begin:,} bytes from {begin} to {end}")
    return _Placed(begin, end, StoredTensor(name, stored.name, shape, end - begin))


def _whole_numbers(value: Any, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_AXES or not all(type(v) is int and v >= 0 for v in value):
        raise BadInput(place, f"a list of at most {_MOST_AXES} whole numbers from 0 is expected")
    return tuple(value)


def _check_layout(placed: list[_Placed], data_bytes: int, file: str) -> None:
    """Data follow one another without overlap or hole and fill the file, as the format demands."""
    expected = 0
    for begin, end, tensor in placed:
        if begin != expected:
            what = "overlaps the tensor before it" if begin < expected else "leaves a hole after the tensor before it"
            raise BadInput(f"{file}, tensor {shown(tensor.name)}", f"begins at byte {begin:,} of the data, where {expected:,} is expected: {what}")
        expected = end
    if expected != data_bytes:
        raise BadInput(file, f"the tensors take {expected:,} bytes of data, and the file has {data_bytes:,}")
