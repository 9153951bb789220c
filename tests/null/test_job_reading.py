"""Jobs: the contract's form is read in full, shorthand means what it says, and every refusal names its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everybyte.basics.errors import BadInput
from everybyte.job import CudaGraphs, InlineModel, Job, job_to_dict, job_to_text, load, read_job, write_job

DATA = Path(__file__).parent / "data" / "jobs_of_all_kinds.jsonl"
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def train(**keys):
    return {"model": "m", "train": keys}


def serve(**keys):
    return {"model": "m", "serve": keys}


def refusal(raw) -> BadInput:
    with pytest.raises(BadInput) as caught:
        read_job(raw)
    return caught.value


def all_kinds() -> list[dict]:
    return [json.loads(line) for line in DATA.read_text().splitlines()]


@pytest.mark.parametrize("raw", all_kinds(), ids=lambda raw: raw["name"][:60])
def test_every_kind_of_measured_job_is_read_and_written_back(raw: dict) -> None:
    """Jobs of public runs, which between them hold every key and word in use, survive a round trip unchanged."""
    job = read_job(raw)
    assert read_job(job_to_dict(job)) == job


@pytest.mark.parametrize("raw", all_kinds()[:20], ids=lambda raw: raw["name"][:60])
def test_text_forms_hold_the_same_job(raw: dict, tmp_path: Path) -> None:
    """YAML and JSON files that are written hold the job they were written from."""
    job = read_job(raw)
    for ending in (".yaml", ".json"):
        write_job(job, tmp_path / f"job{ending}")
        assert read_job(tmp_path / f"job{ending}") == job


def test_toml_is_read(tmp_path: Path) -> None:
    """TOML holds the same form as YAML."""
    (tmp_path / "job.toml").write_text('model = "m"\n[train]\nmicro_batch = 2\noptimizer = "adamw"\n')
    assert read_job(tmp_path / "job.toml") == read_job(train(micro_batch=2, optimizer="adamw"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_jobs(path: Path) -> None:
    """The shipped examples are of the form."""
    assert read_job(path).name


def test_unset_is_not_a_default() -> None:
    """A key that is left out is None, so that the engines can record where its value comes from."""
    job = read_job(train())
    assert job.train is not None
    assert job.train.optimizer is None
    assert job.train.recompute is None
    assert job_to_dict(job) == {"model": "m", "train": {}}


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (train(optimizer="adamw"), train(optimizer={"name": "adamw"})),
        (train(optimizer="none"), train(optimizer={"name": "none"})),
        (train(adapter="ia3"), train(adapter={"kind": "ia3"})),
        (train(quantization="nf4"), train(quantization={"format": "nf4"})),
        (train(recompute="full"), train(recompute={"policy": "full"})),
        (train(recompute="none"), train(recompute={"policy": "none"})),
        (train(loss="chunked"), train(loss={"kind": "chunked"})),
        (train(pipeline="1f1b"), train(pipeline={"schedule": "1f1b"})),
        (train(kernels="liger"), train(kernels=["liger"])),
        (train(adapter="none", offload="none", quantization="none"), train()),
        (serve(weights="q4_k_m"), serve(weights={"format": "q4_k_m"})),
        (serve(kv_dtype="fp8"), serve(kv_dtype={"k": "fp8", "v": "fp8"})),
        (serve(draft="mtp"), serve(draft={"method": "mtp"})),
    ],
)
def test_shorthand_means_its_long_form(short: dict, long: dict) -> None:
    """One word stands for the part of which it is the head key."""
    assert read_job(short) == read_job(long)


def test_written_yaml_is_short() -> None:
    """What one word can say is written as one word."""
    text = job_to_text(read_job(train(optimizer={"name": "adamw"}, recompute={"policy": "full", "every": 2})))
    assert "optimizer: adamw" in text
    assert "policy: full" in text


def test_unions_keep_their_kind() -> None:
    """Keys that take a word, a switch or a mapping give back what was written."""
    job = read_job(serve(cuda_graphs={"sizes": [1, 2]}, lora=True))
    assert job.serve is not None
    assert job.serve.cuda_graphs == CudaGraphs(sizes=(1, 2))
    assert job.serve.lora is True
    assert read_job({"model": {"shape": {"layers": 2}}, "train": {}}).model == InlineModel(shape={"layers": 2})


def test_jobs_without_mappings_are_hashable() -> None:
    """A job can be the key of a cache."""
    assert len({read_job(train(kernels=["te"])), read_job(train(kernels=["te"]))}) == 1


FAULTS = [
    (train(micro_bach=4), "train.micro_bach", "did you mean micro_batch"),
    ({"modle": "m"}, "modle", "did you mean model"),
    ({"gpu": "H100"}, "gpu", "its place is hardware.gpu"),
    (train(rank=8), "train.rank", "its place is train.optimizer.rank or train.adapter.rank"),
    ({}, "model", "missing"),
    (train(micro_batch="4"), "train.micro_batch", "without quotes"),
    (train(micro_batch=0), "train.micro_batch", "whole number from 1"),
    (train(micro_batch=-1), "train.micro_batch", "got -1"),
    (train(micro_batch=1e30), "train.micro_batch", "whole number"),
    (train(micro_batch=2.5), "train.micro_batch", "got 2.5"),
    (train(micro_batch=float("nan")), "train.micro_batch", "not a finite number"),
    (train(micro_batch=True), "train.micro_batch", "got true"),
    (train(micro_batch=10**40), "train.micro_batch", "64 bits"),
    (train(seq_len=10**12), "train.seq_len", "1,000,000,000"),
    (train(precision="bf17"), "train.precision", "did you mean bf16"),
    (train(precision=16), "train.precision", "one of"),
    (train(optimizer={"nme": "adamw"}), "train.optimizer.nme", "did you mean name"),
    (train(optimizer={"name": "adamw", "impl": "forech"}), "train.optimizer.impl", "did you mean foreach"),
    (train(optimizer=3), "train.optimizer", "mapping with name"),
    (train(recompute=True), "train.recompute", "got true"),
    (train(kernels=["ligr"]), "train.kernels[0]", "did you mean liger"),
    (train(adapter={"targets": "all_linear"}), "train.adapter.targets", "did you mean all-linear"),
    (train(adapter={"targets": ["q", 1]}), "train.adapter.targets[1]", "put it in quotes"),
    (train(compile="yes"), "train.compile", "true or false"),
    (train(dropout=1.5), "train.dropout", "from 0 to 1"),
    (train(offload={"optimizer": "gpu"}), "train.offload.optimizer", "cpu"),
    (train(quantization={"format": "nf4", "bits": 8}), "train.quantization.bits", "contradicts"),
    (train(tokens=5, micro_batch=2, seq_len=2), "train.tokens", "contradicts"),
    (train(precision="fp16-mixed", dtypes={"compute": "bf16"}), "train.dtypes.compute", "contradicts"),
    (train(pipeline={"layers": [1, 2, 3]}, mesh={"pp": 2}), "train.pipeline.layers", "3 numbers"),
    ({**train(mesh={"tp": 3}), "hardware": {"gpus": 8}}, "train.mesh", "does not divide"),
    ({**train(mesh={"tp": 2, "dp_shard": 3}), "hardware": {"gpus": 8}}, "train.mesh", "= 6"),
    ({**train(mesh={"tp": 2, "dp_shard": 2, "dp_replicate": 1}), "hardware": {"gpus": 8}}, "train.mesh", "= 4"),
    ({**train(), "hardware": {"gpus": 0}}, "hardware.gpus", "CPU only"),
    ({**train(), "hardware": {"gpus": 12, "gpus_per_node": 8}}, "hardware.gpus_per_node", "whole nodes"),
    ({**train(), "hardware": {"gpu": 4090}}, "hardware.gpu", "put it in quotes"),
    ({**train(), "hardware": {"gpu": {"name": "x"}}}, "hardware.gpu.memory_bytes", "missing"),
    ({**train(), "hardware": "a100"}, "hardware", "mapping with gpu"),
    ({**serve(mesh={"tp": 1}), "hardware": {"gpus": 2}}, "serve.mesh", "hardware.gpus = 2"),
    (serve(weights="q4_kk!"), "serve.weights.format", "did you mean q4_k"),
    (serve(kv_dtype="f8"), "serve.kv_dtype.k", "did you mean fp8"),
    (serve(cuda_graphs={"size": [1]}), "serve.cuda_graphs.size", "did you mean sizes"),
    (serve(memory_fraction=1.5), "serve.memory_fraction", "up to 1"),
    (serve(tensor_split=[1, "a"]), "serve.tensor_split[1]", "a number"),
    ({**serve(), "given": {"kv.pol": 1}}, "given.kv.pol", "did you mean kv.pool"),
    ({**serve(), "given": {"kv.pool": "1"}}, "given.kv.pool", "number"),
    ({"model": "m"}, "train", "neither"),
    ({"model": "m", "train": {}, "serve": {}}, "train", "both"),
    ({"model": {"conf": {}}, "train": {}}, "model.conf", "did you mean config"),
    ({"model": {"config": {}, "shape": {}}, "train": {}}, "model", "exactly one"),
    ({"model": "", "train": {}}, "model", "empty"),
    ({"model": "m", "train": {}, "everybyte": 2}, "everybyte", "expected 1"),
    ({"model": "m", "train": [1]}, "train", "got a list"),
    ({1: 2}, "job", "not text"),
    (train(extra={"a": {2: 3}}), "train.extra.a", "not text"),
    (train(extra={"a": float("inf")}), "train.extra.a", "finite"),
    (train(extra={"a": {1, 2}}), "train.extra.a", "a set"),
    ({"model": "m\0", "train": {}}, "model", "NUL"),
    ({"model": "\ud800", "train": {}}, "model", "surrogate"),
]


@pytest.mark.parametrize(("raw", "path", "words"), FAULTS, ids=[f"{i}-{fault[1]}" for i, fault in enumerate(FAULTS)])
def test_refusals_name_the_key_and_the_way_out(raw: dict, path: str, words: str) -> None:
    """Each fault is refused at its full key path, with what is allowed or the nearest known name."""
    error = refusal(raw)
    assert error.path == path
    assert words in error.message


def test_shares_with_sum_of_axes_that_fill_the_gpus_are_accepted() -> None:
    """A mesh that leaves GPUs to data parallel, or fills them exactly, is no contradiction."""
    for mesh in ({"tp": 2}, {"tp": 2, "dp_shard": 4}, {"tp": 2, "dp_replicate": 2, "dp_shard": 2}, {"ulysses": 4, "dp_shard": 2}):
        assert isinstance(read_job({**train(mesh=mesh), "hardware": {"gpus": 8}}), Job)


def test_values_that_contain_themselves_are_refused() -> None:
    """A mapping without end is refused, not followed."""
    endless: dict = {}
    endless["a"] = endless
    assert "nested" in refusal(train(extra=endless)).message


def test_reading_does_not_change_its_input() -> None:
    """The mapping that a caller hands over stays as it was."""
    raw = train(optimizer="adamw", recompute="full")
    before = json.dumps(raw)
    read_job(raw)
    assert json.dumps(raw) == before


def test_name_is_known_even_if_the_job_is_refused(tmp_path: Path) -> None:
    """An error line can carry the name that a bad job gives itself."""
    path = tmp_path / "job.yaml"
    path.write_text("name: mine\nmodel: m\ntrain: {micro_batch: 0}\n")
    assert load(path).name == "mine"
