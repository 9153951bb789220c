"""The mesh of a training job: what is filled in, and which combinations are refused with which rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte.basics.errors import BadInput
from everybyte.job import Train, read_job
from everybyte.job.form import Hardware
from everybyte.layers.network import Network
from everybyte.models.source import network_of
from everybyte.models.widths import widths_of
from everybyte.rules.accounting.conventions import CORE, PLAIN, Conventions
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.parallel.mesh import Mesh, mesh_of
from everybyte.rules.parallel.schedules import plan_of
from everybyte.rules.parallel.stages import stages_of

DENSE = {"family": "llama", "layers": 12, "hidden": 1024, "ffn": 2816, "heads": 16, "kv_heads": 4, "vocab": 32000}
MIXTURE = {**DENSE, "family": "moe", "experts": 8, "top_k": 2, "moe_ffn": 1408}
MODELS: dict[str, Any] = {
    "dense": {"shape": DENSE},
    "moe": {"shape": MIXTURE},
    "hybrid": {
        "shape": {
            "family": "hybrid",
            "layers": 4,
            "hidden": 512,
            "ffn": 1024,
            "heads": 8,
            "kv_heads": 2,
            "vocab": 1000,
            "pattern": "M*-M",
            "ssm": {"heads": 16, "head_dim": 64, "state": 64, "groups": 2},
        }
    },
    "mamba": "state-spaces/mamba-1.4b-hf",
    "vision": "Qwen/Qwen3-VL-30B-A3B-Instruct",
}


def network(name: str) -> Network:
    """One of the networks above."""
    return network_of(MODELS[name])


def train(**keys: Any) -> Train:
    """The train section with these keys."""
    job = read_job({"model": "m", "train": keys})
    assert job.train is not None
    return job.train


def ways(keys: dict[str, Any]) -> Conventions:
    """The conventions that the engine of these keys hands."""
    return CORE if keys.get("framework") in ("megatron", "nemo") else PLAIN


def mesh(gpus: int | None = 8, model: str = "dense", per_node: int | None = None, **keys: Any) -> Mesh:
    """The mesh of a job; `keys` belong to its train section."""
    return mesh_of(train(**keys), Hardware(gpus=gpus, gpus_per_node=per_node), network(model), ResolvedSettings(), conventions=ways(keys))


@pytest.mark.parametrize(
    ("sharding", "filled"),
    [(s, (1, 8)) for s in ("zero1", "zero2", "zero3", "fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-no-reshard", "distributed-optimizer", "megatron-fsdp")]
    + [("ddp", (8, 1)), ("none", (8, 1)), ("hsdp", (1, 8)), (None, (8, 1))],
)
def test_what_is_left_goes_to_data_parallel(sharding: str | None, filled: tuple[int, int]) -> None:
    """Without a mesh, eight GPUs are eight data-parallel ranks: shards where the job shards, replicas where it does not."""
    keys = {} if sharding is None else {"sharding": sharding}
    found = mesh(**keys)
    assert (found.dp_replicate, found.dp_shard) == filled
    assert (found.dp, found.gpus, found.model_parallel) == (8, 8, 1)


@pytest.mark.parametrize(
    ("gpus", "per_node", "asked", "filled"),
    [
        (64, 8, {}, (8, 8)),
        (64, 4, {}, (16, 4)),
        (64, 8, {"tp": 4}, (8, 2)),
        (64, 8, {"dp_shard": 16}, (4, 16)),
        (6, None, {}, (1, 6)),
        (8, 8, {"tp": 8}, (1, 1)),
    ],
)
def test_hybrid_sharding_stays_in_a_node(gpus: int, per_node: int | None, asked: dict[str, int], filled: tuple[int, int]) -> None:
    """HSDP shards over the data-parallel ranks of one node and replicates over the nodes, unless the job says otherwise."""
    found = mesh_of(
        train(sharding="hsdp", mesh=asked), Hardware(gpus=gpus, gpus_per_node=per_node), network_of({"shape": {**DENSE, "kv_heads": 8}}), ResolvedSettings()
    )
    assert (found.dp_replicate, found.dp_shard) == filled


def test_derived_sizes_are_told_with_their_reason() -> None:
    """Each size that follows from others is among the settings with why, and each given one as given."""
    choices = ResolvedSettings()
    asked = train(sharding="distributed-optimizer", mesh={"tp": 2, "ep": 4})
    mesh_of(asked, Hardware(gpus=16), network("moe"), choices, conventions=CORE)
    told = {setting.key.removeprefix("train.mesh."): (setting.value, setting.origin) for setting in choices.settings}
    assert told["tp"] == (2, "given")
    assert told["ep"] == (4, "given")
    assert told["dp_shard"] == (8, "inferred: what the other axes leave of the GPUs, 8, over which distributed-optimizer shards")
    assert told["dp_replicate"][0] == 1
    assert told["etp"][0] == 2
    alone = ResolvedSettings()
    mesh_of(train(), Hardware(gpus=1), network("dense"), alone)
    assert alone.settings == []


def test_gpus_follow_from_a_mesh() -> None:
    """A job that names no number of GPUs has as many as its mesh."""
    assert mesh(None, mesh={"tp": 2, "cp": 2, "pp": 3, "dp_shard": 4}).gpus == 48
    assert mesh(None).gpus == 1


def test_ranks_that_share_states() -> None:
    """States lie over shards, context-parallel and Ulysses ranks; those of an expert over the ranks that hold it inside a replica."""
    found = mesh(64, "moe", sharding="distributed-optimizer", seq_len=4096, mesh={"tp": 2, "cp": 2, "pp": 2, "ep": 4, "etp": 1, "dp_replicate": 2})
    assert (found.dp_shard, found.shards, found.dp) == (4, 8, 8)
    assert (found.expert_dp, found.expert_shards) == (8, 4)
    assert mesh(4, sharding="zero3", mesh={"ulysses": 4}).shards == 4


@pytest.mark.parametrize(
    ("framework", "asked", "etp"),
    [("megatron", {"tp": 4, "ep": 2}, 4), ("nemo", {"tp": 4, "ep": 2, "etp": 1}, 1), ("torchtitan", {"tp": 4, "ep": 2}, 1), ("torchtitan", {"tp": 4}, 4)],
)
def test_experts_are_divided_as_the_framework_does(framework: str, asked: dict[str, int], etp: int) -> None:
    """Megatron-LM cuts experts as all layers unless told otherwise; torchtitan keeps them whole where ranks share them out."""
    assert mesh(16, "moe", framework=framework, mesh=asked).etp == etp


REFUSED: list[tuple[int | None, str, dict[str, Any], str, str]] = [
    (8, "dense", {"mesh": {"tp": 3}}, "train.mesh", "tp 3 does not divide hardware.gpus = 8"),
    (8, "dense", {"mesh": {"tp": 2, "dp_shard": 2, "dp_replicate": 1}, "sharding": "fsdp2"}, "train.mesh", "= 4"),
    (8, "dense", {"mesh": {"dp_shard": 8}, "sharding": "ddp"}, "train.mesh.dp_shard", "shards nothing"),
    (8, "dense", {"mesh": {"dp_replicate": 2}, "sharding": "none"}, "train.mesh.dp_shard", "shards nothing"),
    (32, "dense", {"mesh": {"tp": 32}}, "train.mesh.tp", "32 does not divide the 16 attention heads"),
    (12, "dense", {"mesh": {"tp": 3}}, "train.mesh.tp", "3 does not divide the 16 attention heads"),
    (8, "dense", {"mesh": {"ulysses": 3}}, "train.mesh", "does not divide"),
    (32, "dense", {"mesh": {"tp": 8, "ulysses": 4}}, "train.mesh.ulysses", "tp 8 × ulysses 4 = 32 does not divide the 16 attention heads"),
    (8, "dense", {"mesh": {"cp": 8}, "seq_len": 4100}, "train.mesh.cp", "8 does not divide train.seq_len = 4,100"),
    (8, "dense", {"mesh": {"tp": 4, "sp": True}, "seq_len": 4098}, "train.mesh.sp", "4 does not divide train.seq_len = 4,098"),
    (8, "dense", {"mesh": {"tp": 4, "cp": 2, "sp": True}, "seq_len": 4100}, "train.mesh.sp", "train.seq_len / cp = 2,050"),
    (8, "dense", {"mesh": {"ep": 2}}, "train.mesh.ep", "the model has no experts"),
    (8, "dense", {"mesh": {"tp": 2, "etp": 2}}, "train.mesh.etp", "the model has no experts"),
    (12, "moe", {"mesh": {"ep": 3}}, "train.mesh.ep", "3 does not divide the 8 experts"),
    (4, "moe", {"mesh": {"ep": 8}}, "train.mesh.ep", "does not divide the 4 ranks of a pipeline stage"),
    (8, "moe", {"mesh": {"tp": 2, "pp": 2, "ep": 4, "etp": 2}}, "train.mesh.ep", "ep 4 × etp 2 = 8 does not divide the 4 ranks"),
    (24, "moe", {"mesh": {"etp": 3}}, "train.mesh.etp", "3 does not divide the experts' width 1,408"),
    (16, "dense", {"mesh": {"pp": 16}}, "train.mesh.pp", "16 stages cannot share 12 layers"),
    (8, "dense", {"pipeline": {"virtual": 2}}, "train.pipeline.virtual", "need train.mesh.pp > 1"),
    (8, "dense", {"mesh": {"pp": 2}, "pipeline": {"schedule": "1f1b", "virtual": 2}}, "train.pipeline.virtual", "1f1b, which has one; interleaved"),
    (8, "dense", {"mesh": {"pp": 2}, "pipeline": {"schedule": "zb-v", "virtual": 3}}, "train.pipeline.virtual", "must be 2 with zb-v"),
    (8, "dense", {"mesh": {"pp": 2}, "pipeline": {"schedule": "interleaved", "virtual": 1}}, "train.pipeline.virtual", "at least 2"),
    (6, "dense", {"mesh": {"pp": 3}, "pipeline": {"schedule": "dualpipe", "microbatches": 12}}, "train.mesh.pp", "must be even"),
    (8, "dense", {"mesh": {"pp": 2}, "pipeline": {"schedule": "dualpipe", "microbatches": 7}}, "train.pipeline.microbatches", "must be even"),
    (8, "dense", {"mesh": {"pp": 4}, "pipeline": {"schedule": "dualpipe-v", "microbatches": 6}}, "train.pipeline.microbatches", "2·pp = 8"),
    (8, "dense", {"mesh": {"pp": 4}, "pipeline": {"microbatches": 3}}, "train.pipeline.microbatches", "at least pp = 4 with 1f1b"),
    (
        8,
        "dense",
        {"framework": "megatron", "mesh": {"pp": 4}, "pipeline": {"schedule": "interleaved", "virtual": 3, "microbatches": 6}},
        "train.pipeline.microbatches",
        "multiple of pp = 4",
    ),
    (
        8,
        "dense",
        {"framework": "megatron", "mesh": {"pp": 4}, "pipeline": {"schedule": "interleaved", "virtual": 3, "microbatches": 3}},
        "train.pipeline.microbatches",
        "at least pp = 4",
    ),
    (
        8,
        "dense",
        {
            "framework": "megatron",
            "mesh": {"pp": 4},
            "pipeline": {"schedule": "interleaved", "virtual": 3, "microbatches": 8},
            "extra": {"microbatch-group-size-per-virtual-pipeline-stage": 3},
        },
        "train.extra.microbatch-group-size-per-virtual-pipeline-stage",
        "between pp = 4 and the 8 micro-batches",
    ),
    (
        8,
        "dense",
        {"framework": "torchtitan", "mesh": {"pp": 4}, "pipeline": {"schedule": "interleaved", "virtual": 3, "microbatches": 9}},
        "train.pipeline.microbatches",
        "multiple of the 2 rounds",
    ),
]


@pytest.mark.parametrize(("gpus", "model", "keys", "path", "words"), REFUSED)
def test_impossible_meshes_are_refused(gpus: int | None, model: str, keys: dict[str, Any], path: str, words: str) -> None:
    """Every impossible combination is refused at the key that breaks a rule, and the message says which."""
    with pytest.raises(BadInput) as refused:
        mesh_of(Train(**_forms(keys)), Hardware(gpus=gpus), network(model), ResolvedSettings(), conventions=ways(keys))
    assert refused.value.path == path
    assert words in refused.value.message


def _forms(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys as a form reads them, without the refusals of the reading itself."""
    read = train(**{**keys, "mesh": {}, "pipeline": {}})
    asked = {name: train(**{name: keys[name]}) for name in ("mesh", "pipeline") if name in keys}
    return {**{name: getattr(read, name) for name in keys}, **{name: getattr(part, name) for name, part in asked.items()}}


def test_heads_of_keys_may_be_repeated() -> None:
    """More tensor-parallel ranks than heads of keys and values are allowed where each head goes to equally many."""
    assert mesh(16, mesh={"tp": 16}).tp == 16
    assert mesh(8, mesh={"tp": 2, "ulysses": 4}).sequence_parallel == 4


def test_settings_without_effect_are_said() -> None:
    """Sequence parallel without tensor parallel, and a pipeline section without stages, are warned of and do nothing."""
    choices = ResolvedSettings()
    found = mesh_of(train(mesh={"sp": True}, pipeline={"microbatches": 4}), Hardware(gpus=2), network("dense"), choices)
    assert not found.sp
    assert [text.split(" has no effect")[0] for text in choices.warnings] == ["train.pipeline", "train.mesh.sp"]


@pytest.mark.parametrize(
    ("name", "heads", "experts"), [("dense", ((16, 4),), 0), ("moe", ((16, 4),), 8), ("hybrid", ((8, 2),), 0), ("mamba", (), 0), ("vision", ((32, 4),), 128)]
)
def test_widths_of_any_network(name: str, heads: tuple[tuple[int, int], ...], experts: int) -> None:
    """Heads and experts are found in dense models, mixtures, hybrids and the text part of vision models; a network without attention has none."""
    widths = widths_of(network(name))
    assert (widths.heads, widths.experts) == (heads, experts)


RARE = st.sampled_from([*[None] * 24, 1, 2, 2, 3, 4, 8, 16, 1000])
AXES = st.fixed_dictionaries(
    {**dict.fromkeys(("tp", "cp", "ep", "etp", "ulysses", "dp_replicate", "dp_shard"), RARE), "pp": st.sampled_from([None, 2, 3, 4, 4, 20])}
)
LAYOUTS = st.one_of(
    *[st.none()] * 6, st.lists(st.integers(0, 6), min_size=1, max_size=8), st.text("Etm L|()*23,x", max_size=24), st.sampled_from(["Et*6|t*6L", "Et|(t|)*10tL"])
)


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from(list(MODELS)),
    st.sampled_from([None, None, None, 1, 8, 48]),
    AXES,
    st.booleans(),
    st.sampled_from([None, "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"]),
    RARE,
    st.sampled_from([None, 4, 8, 12]),
    LAYOUTS,
    st.sampled_from([None, "ddp", "fsdp2", "hsdp"]),
    st.sampled_from([None, "megatron", "torchtitan"]),
)
def test_any_mesh_is_answered_or_refused(
    model: str,
    gpus: int | None,
    axes: dict[str, int | None],
    sp: bool,
    schedule: str | None,
    virtual: int | None,
    microbatches: int | None,
    layers: Any,
    sharding: str | None,
    framework: str | None,
) -> None:
    """Any combination gives a mesh whose axes fill the GPUs and stages that hold every layer, or is refused by BadInput; nothing else is raised."""
    pipeline = {"schedule": schedule, "virtual": virtual, "microbatches": microbatches, "layers": layers}
    keys = {"mesh": {**axes, "sp": sp}, "pipeline": pipeline, "sharding": sharding, "framework": framework, "seq_len": 4096}
    network_ = network(model)
    try:
        read = Train(**_forms(_given(keys)))
        found = mesh_of(read, Hardware(gpus=gpus), network_, ResolvedSettings())
        stages = stages_of(read, network_, plan_of(read, found.pp, ResolvedSettings())) if found.pp > 1 else ()
    except BadInput:
        return
    assert found.gpus == (gpus or found.gpus) == found.tp * found.cp * found.ulysses * found.pp * found.dp
    assert found.gpus % (found.ep * found.etp * found.pp) == 0
    held = sorted(layer for stage in stages for layer in stage.layers)
    assert held in ([], sorted([*range(network_.layers)] * (2 if schedule == "dualpipe" else 1)))


def _given(keys: dict[str, Any]) -> dict[str, Any]:
    """Only what is stated, as a file would hold it."""
    inner = {name: {k: v for k, v in value.items() if v is not None} for name, value in keys.items() if isinstance(value, dict)}
    return {**{name: value for name, value in keys.items() if value is not None and name not in inner}, **inner}
