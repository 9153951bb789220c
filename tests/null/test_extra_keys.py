"""Keys of `extra`: typed where they are read, known where they are not, refused where nobody has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import everybyte
from everybyte import estimate
from everybyte.basics.errors import BadInput
from everybyte.catalog.extra_keys import ELSEWHERE, INCLUDE, NO_EFFECT, NOT_COUNTED, known_keys, tables_of_keys
from everybyte.catalog.names import read_table
from everybyte.engines.registry import SERVE, SERVE_TABLES, TRAIN, sections_of, unread_of
from everybyte.job import Job, read_job
from everybyte.job.extra import Section, canonical, keys_of, section
from everybyte.job.framework import OWN, trainer_of, with_own_framework
from everybyte.measure.truth import load_records

FORMATS = Path(everybyte.__file__).parent / "formats"
TABLES = sorted(tables_of_keys())


class Some(Section, frozen=True, kw_only=True):
    """A section of three keys."""

    lora_dropout: float = 0.5
    NVTE_FUSED_ATTN: str | None = None
    many: tuple[str, ...] = ()


def job(**train: Any) -> dict[str, Any]:
    """A small job."""
    return {"model": "Qwen/Qwen2.5-0.5B", "hardware": {"gpu": "h100"}, "train": {"micro_batch": 1, "seq_len": 128, **train}}


@pytest.mark.parametrize("written", ["lora_dropout", "--lora-dropout", "lora-dropout", "Lora Dropout"])
def test_spellings(written: str) -> None:
    """Hyphens, spaces, leading hyphens and case mean the same; environment variables stay as they are."""
    assert canonical(written) == "lora_dropout"
    assert section({written: 0.25}, Some).lora_dropout == 0.25
    assert canonical("NVTE_FUSED_ATTN") == "NVTE_FUSED_ATTN"


def test_what_a_section_reads() -> None:
    """Keys of other sections are left alone, null counts as not given, and a list may stand for a tuple."""
    found = section({"other": 1, "lora_dropout": None, "many": ["a", "b"]}, Some)
    assert (found.lora_dropout, found.many) == (0.5, ("a", "b"))


@pytest.mark.parametrize(
    ("extra", "path", "words"),
    [({"--lora-dropout": "much"}, "train.extra.--lora-dropout", "expected a number"), ({"many": ["a", 1]}, "train.extra.many[1]", "expected text")],
)
def test_wrong_types_are_refused_at_the_key_as_it_is_written(extra: dict[str, Any], path: str, words: str) -> None:
    """The message has the key of the job, what was given and what is allowed."""
    with pytest.raises(BadInput, match=words) as refused:
        section(extra, Some)
    assert refused.value.path == path


@pytest.mark.parametrize("name", TABLES)
def test_every_framework_has_a_table(name: str) -> None:
    """Each row has an effect that the code knows, and a key in the form in which keys are compared; what has no effect says why."""
    assert known_keys(name)
    for key, effect, reason in read_table(f"extra_keys/{name}.csv")[1:]:
        assert effect in (NO_EFFECT, ELSEWHERE, NOT_COUNTED, INCLUDE), key
        assert effect == INCLUDE or canonical(key.rstrip("*")) == key.rstrip("*"), key
        assert effect == NOT_COUNTED or reason, key


def test_no_key_is_both_read_and_without_effect() -> None:
    """A key that an engine reads is not told to change nothing."""
    for name, folder in TRAIN.items():
        read = {key for kind in sections_of(folder, "train") for key in keys_of(kind)}
        own = {key for key, effect, _ in read_table(f"extra_keys/{name}.csv")[1:] if effect == NO_EFFECT}
        assert not read & own, name


@pytest.mark.parametrize(
    ("section_of", "key", "nearest"),
    [
        ({"framework": "transformers"}, "lora_droput", "lora_dropout"),
        ({"framework": "megatron"}, "moe-groupd-gemm", "moe_grouped_gemm"),
        ({"framework": "deepspeed", "sharding": "zero2"}, "overlap_com", "overlap_comm"),
        ({"framework": "torchtitan"}, "float9.recipe", "float8"),
        ({}, "keeps_output", "keeps_outputs"),
        ({"framework": "litgpt"}, "chunk_sizes", "chunk_size"),
        ({"framework": "nanogpt"}, "anything", ""),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest(section_of: dict[str, Any], key: str, nearest: str) -> None:
    """A slip of the pen has no silent effect."""
    with pytest.raises(BadInput, match=rf"train\.extra\.{key}: .*{nearest}"):
        estimate(job(**section_of, extra={key: 1}))


def test_a_key_without_end_is_refused_at_once() -> None:
    """The nearest names are looked for by the beginning of a key, which a stranger's file may make as long as it likes."""
    with pytest.raises(BadInput, match="unknown key") as refused:
        estimate(job(framework="transformers", extra={"x" * 1_000_000: 1}))
    assert len(str(refused.value)) < 1000


def test_keys_that_nothing_reads_are_told() -> None:
    """Without effect on memory: a setting with the reason. Not worked out, or said by another key of the job: a warning."""
    found = estimate(job(framework="transformers", extra={"packing": True, "accelerator_config": {}, "per_device_train_batch_size": 8}))
    assert any(s.key == "train.extra.packing" and s.origin.startswith("given; no effect on memory: ") for s in found.settings)
    assert any("train.extra.accelerator_config" in text for text in found.warnings)
    assert "train.extra.per_device_train_batch_size is not read: the job says it with train.micro_batch" in found.warnings


@pytest.mark.parametrize("name", OWN)
def test_old_job_files_name_their_framework_in_extra(name: str) -> None:
    """The one place that translates them moves it to train.framework, and the figures are those of a job that says it there."""
    old = job(framework="transformers" if name == "ms-swift" else "pytorch", sharding="fsdp2", extra={"framework": name})
    old["hardware"]["gpus"] = 2
    moved = with_own_framework(read_job(old))
    assert moved.train is not None
    assert moved.train.framework == name
    new = {**old, "train": {**old["train"], "framework": name, "extra": dict(moved.train.extra or {})}}
    assert estimate(old).figures == estimate(new).figures
    assert with_own_framework(moved) == moved


@pytest.mark.parametrize(
    ("more", "trainer"),
    [({}, "transformers"), ({"mesh": {"tp": 2}}, "megatron"), ({"sharding": "distributed-optimizer"}, "megatron"), ({"extra": {"trainer": "trl"}}, "trl")],
)
def test_ms_swift_runs_the_trainer_that_the_job_needs(more: dict[str, Any], trainer: str) -> None:
    """Divided layers are Megatron's; otherwise the Trainer of transformers steps, unless the job says another."""
    found = read_job(job(framework="ms-swift", **more))
    assert found.train is not None
    assert trainer_of(found.train) == trainer


def test_every_framework_and_engine_has_a_table() -> None:
    """A new one needs a table, though it may be empty."""
    assert {*TRAIN, "ms-swift", *(SERVE_TABLES.get(name, name) for name in SERVE)} <= tables_of_keys()


def test_what_importers_keep_by_its_own_name_is_known() -> None:
    """A configuration that is read as a job gives a job that is answered: every key that a table of formats sends to extra has a place."""
    tables = [known_keys(name) for name in tables_of_keys()]
    folders = [(folder, "train") for folder in {*TRAIN.values()}] + [(folder, "serve") for folder in {*SERVE.values()}]
    read = {key for folder, part in folders for kind in sections_of(folder, part) for key in keys_of(kind)}
    names = {name for path in FORMATS.rglob("*.csv") for name in re.findall(r"(?:train|serve)\.extra\.([\w.-]+)", path.read_text(encoding="utf-8"))}
    assert len(names) > 200
    assert sorted(name for name in names if canonical(name) not in read and not any(table.find(canonical(name)) for table in tables)) == []


def test_every_measured_job_has_keys_that_are_known() -> None:
    """No record is refused for a key of its extra."""
    jobs = [read_job(record["job"]) for record in load_records()]
    answered = [job for job in jobs if job.train is None or trainer_of(job.train) in TRAIN]
    told = [key for job in answered if not preference(job) for key in unread_of(job)]
    assert len(told) > 1000


def preference(job: Job) -> bool:
    """Whether a job asks for an algorithm, which some frameworks refuse."""
    return job.train is not None and "rlhf_type" in (job.train.extra or {})
