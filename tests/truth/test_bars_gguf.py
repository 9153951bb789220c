"""How near the sizes of GGUF files come to published ones: exact sizes from catalogues, tensor bytes from llama.cpp's logs."""

from __future__ import annotations

import statistics
from functools import cache

from everybyte.basics.errors import BadInput
from everybyte.job import read_job
from everybyte.measure.truth import load_records
from everybyte.models.source import network_of
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.gguf.size import gguf_weights

# What stays open, by record. Files of q4_0 made with an importance matrix hold Q4_1 in an eighth of ffn_down: -0.25 to -0.32 % where the job
# does not say imatrix (I1061, I1062, I1101, I1102, I1104, I1105); the README's iq4_nl was made without one (I1155, -0.53 %). Builds of 2023 quantised
# StarCoder's positions (I1094, +1.9 %) and raised 4 layers in Q4_K_S (I1124, I1129, +0.12 %), which a job states as serve.version. Conversions of the fork
# hold MLA's latents twice though the job does not name the fork (I1030, I1064: -0.15 %; I1082: -0.05 %). The README's and the logs' sizes have no head.
# BitNet's shape (I1073) counts fewer parameters than its file. Mpt and nomic-bert have no family here.


@cache
def errors() -> tuple[dict[str, float], list[str]]:
    """(relative errors beyond the rounding of the printed size, refused records)."""
    found, refused = {}, []
    for record in load_records():
        for measured in record["measured"]:
            if measured["figure"] != "file_bytes":
                continue
            job = read_job(record["job"])
            assert job.serve is not None
            try:
                size = gguf_weights(job.serve, network_of(job.model), ResolvedSettings()).file_bytes
            except BadInput:
                refused.append(record["id"])
                continue
            off = abs(size - measured["value"]) - measured["resolution"] / 2
            found[record["id"]] = max(off, 0) / measured["value"]
    return found, refused


def test_sizes_are_near_the_published_ones() -> None:
    """Half within 0.02 %, nine of ten within 0.5 %, and nearly all are answered."""
    found, refused = errors()
    ordered = sorted(found.values())
    assert len(found) >= 90
    assert len(refused) <= 0.06 * (len(found) + len(refused)), refused
    assert statistics.median(ordered) <= 0.0002
    assert ordered[int(0.9 * (len(ordered) - 1))] <= 0.005


def test_a_build_of_2023_is_said_by_the_job() -> None:
    """With serve.version, the files of old builds are within 0.05 %: StarCoder with quantised positions, Q4_K_S that raises four layers."""
    for name, version in (("I1094", "b1400"), ("I1124", "b1400"), ("I1129", "b1400")):
        record = next(r for r in load_records() if r["id"].endswith(f"/{name}"))
        job = read_job(record["job"] | {"serve": record["job"]["serve"] | {"version": version}})
        assert job.serve is not None
        size = gguf_weights(job.serve, network_of(job.model), ResolvedSettings()).file_bytes
        assert abs(size / record["measured"][0]["value"] - 1) < 0.0005, name


def test_an_importance_matrix_is_said_by_the_job() -> None:
    """With extra.imatrix, the files of q4_0 and iq4_nl that were off for the want of it are within 0.2 %."""
    for name, imatrix in (("I1061", True), ("I1062", True), ("I1101", True), ("I1102", True), ("I1104", True), ("I1105", True), ("I1155", False)):
        record = next(r for r in load_records() if r["id"].endswith(f"/{name}"))
        job = read_job(record["job"] | {"serve": record["job"]["serve"] | {"extra": {"imatrix": imatrix}}})
        assert job.serve is not None
        size = gguf_weights(job.serve, network_of(job.model), ResolvedSettings()).file_bytes
        assert abs(size / record["measured"][0]["value"] - 1) < 0.002, name
