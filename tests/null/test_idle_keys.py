"""No key of a job is ignored in silence: a walk over all keys of all frameworks and engines."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from everybyte import estimate as answer_of
from everybyte.basics.errors import BadInput
from everybyte.basics.origin import USER
from everybyte.catalog.extra_keys import NO_EFFECT, NOT_COUNTED
from everybyte.catalog.names import read_table
from everybyte.engines.idle_keys import ALWAYS, FOREIGN
from everybyte.engines.registry import SERVE, TRAIN, sections_of
from everybyte.job.form import Serve, Train

estimate = partial(answer_of, tells_idle_keys=True)

SERVED: dict[str, list[Any]] = {
    "kv_dtype": ["fp8", "q8_0", "int8", "fp32"],
    "weights": ["int8", "fp32"],
    "context": [2048],
    "sequences": [3],
    "batched_tokens": [777],
    "ubatch": [64],
    "memory_fraction": [0.5],
    "mesh": [{"tp": 2}, {"ep": 2}],
    "cuda_graphs": [False, {"sizes": [1, 2]}],
    "attention": ["eager", "triton"],
    "block_size": [16, 64],
    "gpu_layers": [3],
    "parallel_slots": [7],
    "swa_full": [True],
    "unified_kv": [True],
    "tensor_split": [[1.0, 2.0]],
    "draft": [{"method": "eagle", "tokens": 3}],
    "lora": [{"rank": 8, "count": 2}],
    "multimodal": [False, {"image": 1}],
}
"""Values of each key of `serve`."""
TRAINED: dict[str, list[Any]] = {
    "grad_accum": [8],
    "dtypes": [{name: "fp32"} for name in ("weights", "grads", "reduce", "master", "optimizer")] + [{"compute": "fp16"}],
    "optimizer": ["sgd", {"name": "adamw", "impl": "for-loop"}, {"name": "adamw", "state_dtype": "bf16"}, {"name": "adamw", "in_backward": True}],
    "adapter": [{"kind": "lora", "rank": 8, "alpha": 16, "targets": "all-linear"}],
    "quantization": [{"format": "nf4"}],
    "freeze": [["embed_tokens"]],
    "added_tokens": [3],
    "mesh": [{"tp": 2}, {"cp": 2}],
    "sharding": ["zero2", "fsdp2"],
    "pipeline": [{"schedule": "gpipe", "microbatches": 7}],
    "recompute": ["full", "selective"],
    "offload": [{"optimizer": "cpu"}, {"params": "cpu"}, {"activations": "cpu"}, {"fraction": 0.5}],
    "attention": ["eager", "flash2", "flash3", "te", "flex", "unfused"],
    "loss": ["chunked", "compiled", "fused-linear", "vocab-parallel", {"kind": "standard", "logits_dtype": "bf16"}],
    "kernels": [["liger"], ["apex"], ["te"]],
    "compile": [True],
    "buckets": [{name: 1_000_000} for name in ("reduce", "gather", "prefetch", "live")],
    "dropout": [0.1],
    "zero_grad_set_to_none": [False],
    "grad_clip": [1.0],
}
"""Values of each key of `train`."""
BASES = {
    "deepspeed": ({"precision": "bf16-master", "sharding": "zero2"}, 8),
    "megatron": ({"precision": "bf16-master"}, 1),
    "nemo": ({"precision": "bf16-master"}, 1),
    "nanogpt": ({"precision": "bf16-mixed"}, 1),
}


def job(part: str, engine: str, **more: Any) -> dict[str, Any]:
    """A small job of an engine."""
    if part == "serve":
        served = "black-forest-labs/FLUX.1-dev::transformer" if engine == "diffusers" else "meta-llama/Meta-Llama-3.1-8B"
        return {"model": served, "hardware": {"gpu": "a100-80gb"}, "serve": {"engine": engine, **more}}
    base, gpus = BASES.get(engine, ({"precision": "bf16"}, 1))
    model = "openai-community/gpt2" if engine == "nanogpt" else "Qwen/Qwen2.5-0.5B"
    train = {"framework": engine, "micro_batch": 2, "seq_len": 512, **base, **more}
    return {"model": model, "hardware": {"gpu": "a100-80gb", "gpus": gpus}, "train": train}


def answer(asked: dict[str, Any]) -> tuple[Any, ...]:
    """What an answer says: figures and rows; assumptions; warnings; settings that are more than the repeated value. Or the error."""
    try:
        found = estimate(asked)
    except BadInput as error:
        return (str(error),)
    rows = [[(entry.id, entry.bytes) for entry in rank.ledger] for rank in found.ranks]
    told = [setting for setting in found.settings if setting.origin.startswith(f"{USER};")]
    return dict(found.figures), rows, found.assumptions, found.warnings, told


def default(asked: dict[str, Any], path: str) -> Any:
    """What the settings of an answer say of a key."""
    return next((setting.value for setting in estimate(asked).settings if setting.key.startswith(path)), None)


def is_default(asked: dict[str, Any], path: str, value: Any) -> bool:
    """Whether a value says what is so without it: then nothing changes, and nothing needs to be said."""
    written = next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value
    return default(asked, path) in (value, written) or (isinstance(value, dict) and value.get("name") is not None)


@pytest.mark.parametrize("engine", SERVE)
def test_every_key_of_serve_is_answered(engine: str) -> None:
    """Each key of the form changes the answer, its assumptions or warnings, or is refused; for every engine."""
    base = answer(job("serve", engine))
    assert len(base) > 1
    for key, values in SERVED.items():
        for value in values:
            changed = answer(job("serve", engine, **{key: value})) != base
            assert changed or is_default(job("serve", engine), f"serve.{key}", value), (key, value)


@pytest.mark.parametrize("framework", TRAIN)
def test_every_key_of_train_is_answered(framework: str) -> None:
    """The same for training, for every framework."""
    base = answer(job("train", framework))
    assert len(base) > 1
    for key, values in TRAINED.items():
        for value in values:
            changed = answer(job("train", framework, **{key: value})) != base
            assert changed or is_default(job("train", framework), f"train.{key}", value), (key, value)


def values_of(kind: Any) -> Iterator[Any]:
    """A value or two of a type."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        for part in typing.get_args(kind):
            yield from values_of(part)
    elif origin is typing.Annotated:
        yield from values_of(typing.get_args(kind)[0])
    elif origin is typing.Literal:
        yield from typing.get_args(kind)
    elif kind not in (type(None), msgspec.UnsetType):
        yield from {bool: (True, False), int: (2,), float: (0.37,), tuple: (["xyz"],)}.get(origin or kind, ("xyz",))


@pytest.mark.parametrize(("part", "engine"), [*(("serve", name) for name in SERVE), *(("train", name) for name in TRAIN)])
def test_every_key_of_extra_is_answered(part: str, engine: str) -> None:
    """Each key of `extra` that an engine's sections read changes what is said, or is refused; `auto` and a default say what is so anyway."""
    base = answer(job(part, engine))
    folder = (SERVE if part == "serve" else TRAIN)[engine]
    for kind in sections_of(folder, part):
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            for value in values_of(hints[field.name]):
                if value in (field.default, "auto") or field.encode_name in SAME:
                    continue
                assert answer(job(part, engine, extra={field.encode_name: value})) != base, (field.encode_name, value)


SAME = ("overlap_comm", "pin_memory")
"""Keys whose default the framework's own settings decide; both values of each are met by other frameworks."""


def test_the_walk_knows_every_key() -> None:
    """A key that is added to the form is added here."""
    skipped = {"extra", "load", "version", "engine", "framework", "micro_batch", "seq_len", "tokens", "precision"}
    assert set(SERVED) == set(Serve.__struct_fields__) - skipped
    assert set(TRAINED) == set(Train.__struct_fields__) - skipped


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (job("serve", "tgi", ubatch=64), "serve.ubatch is not read: tgi has no such setting"),
        (job("serve", "tgi", lora=True), "not worked out, so not counted: serve.lora"),
        (job("train", "litgpt", kernels=["liger"]), "given without effect: train.kernels.liger; litgpt does not have that"),
        (job("train", "pytorch", extra={"forward_prefetch": True}), "given without effect: train.extra.forward_prefetch"),
    ],
)
def test_what_changes_nothing_is_warned_of(asked: dict[str, Any], words: str) -> None:
    """The warning names the key and why it is not heard."""
    assert any(words in text for text in estimate(asked).warnings)


def test_known_reasons_are_assumptions() -> None:
    """What has no effect by its nature says why, and is no warning."""
    found = estimate(job("train", "pytorch", grad_clip=1.0))
    assert any("train.grad_clip changes nothing here: gradients are scaled" in text for text in found.assumptions)
    assert not found.warnings


def test_what_another_value_would_change_is_an_assumption() -> None:
    """The key is read, and this value of it says what holds without it."""
    found = estimate(job("train", "pytorch", dtypes={"optimizer": "bf16"}))
    assert "the answer is the same without train.dtypes.optimizer" in found.assumptions
    assert not found.warnings


def test_a_default_that_is_stated_is_not_commented() -> None:
    """Saying what is so anyway is not a fault."""
    plain, stated = estimate(job("train", "pytorch")), estimate(job("train", "pytorch", recompute="none", attention="sdpa", compile=False))
    assert (stated.warnings, stated.assumptions) == (plain.warnings, plain.assumptions)


def test_the_table_of_reasons() -> None:
    """Keys are of the form, engines and effects are known, and a reason stands where it is shown."""
    for key, engines, effect, reason in read_table("idle_keys.csv")[1:]:
        part, name, *_ = key.split(".")
        assert name in {"serve": Serve, "train": Train}[part].__struct_fields__
        assert name not in ALWAYS[part]
        assert set(engines.split()) <= {"*", *SERVE, *TRAIN}
        assert effect == NOT_COUNTED or (effect in (NO_EFFECT, FOREIGN) and reason)
