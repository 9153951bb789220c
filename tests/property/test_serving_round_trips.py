"""Serving jobs survive the way through an engine's own words: job -> command -> job is the same in everything that memory depends on."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte.formats.finish import finish
from everybyte.formats.read import read
from everybyte.formats.serving.writing import flat_of
from everybyte.formats.source import Source
from everybyte.formats.writers import export
from everybyte.job.read import job_from_mapping
from everybyte.job.write import job_to_dict

Keys = dict[str, st.SearchStrategy[Any]]
powers = st.sampled_from([1, 2, 4, 8])
counts = st.integers(1, 512)
shares = st.sampled_from([0.5, 0.85, 0.9])
sizes = st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True).map(sorted)
COMMON: Keys = {"serve.context": st.integers(128, 262144), "serve.version": st.just("0.11.0")}

KEYS: dict[str, Keys] = {
    "vllm": {
        **COMMON,
        "serve.mesh.tp": powers,
        "serve.mesh.pp": powers,
        "serve.mesh.dp": powers,
        "serve.sequences": counts,
        "serve.batched_tokens": st.integers(512, 16384),
        "serve.memory_fraction": shares,
        "serve.kv_dtype": st.sampled_from(["auto", "fp8", "fp8_e5m2", "bf16"]),
        "serve.weights": st.sampled_from(["awq", "gptq", "fp8", "nf4", "bf16", "fp16", "mxfp4", "nvfp4"]),
        "serve.block_size": st.sampled_from([16, 32, 64]),
        "serve.cuda_graphs": st.one_of(st.just(False), st.fixed_dictionaries({"sizes": sizes})),
        "serve.attention": st.just("FLASHINFER"),
        "serve.draft": st.sampled_from([{"method": "mtp", "tokens": 2}, {"model": "a/b", "tokens": 3}, {"method": "ngram"}]),
        "serve.lora": st.sampled_from([True, {"rank": 32, "count": 2}]),
        "serve.multimodal": st.sampled_from([{"image": 2}, {"image": 0, "video": 1}]),
        "serve.extra.enable_prefix_caching": st.booleans(),
        "serve.extra.cpu_offload_gb": st.integers(1, 64),
        "serve.extra.max_cudagraph_capture_size": counts,
        "serve.extra.mamba_ssm_cache_dtype": st.just("float32"),
        "serve.extra.VLLM_ATTENTION_X": st.integers(0, 3),
        "serve.extra.kv_cache_memory_bytes": counts,
    },
    "sglang": {
        **COMMON,
        "serve.mesh.tp": powers,
        "serve.mesh.pp": powers,
        "serve.mesh.dp": powers,
        "serve.mesh.ep": powers,
        "serve.sequences": counts,
        "serve.memory_fraction": shares,
        "serve.kv_dtype": st.sampled_from(["fp8", "fp8_e5m2", "bf16"]),
        "serve.block_size": st.sampled_from([1, 16, 64]),
        "serve.weights": st.sampled_from(["awq", "gptq", "fp8", "int8", "bf16", "nvfp4"]),
        "serve.attention": st.sampled_from(["fa3", "flashinfer"]),
        "serve.cuda_graphs": st.one_of(st.just(False), st.fixed_dictionaries({"sizes": sizes})),
        "serve.draft": st.just({"method": "eagle", "model": "a/b", "tokens": 4}),
        "serve.lora": st.sampled_from([True, {"rank": 32, "count": 2}]),
        "serve.extra.enable_dp_attention": st.just(True),
        "serve.extra.max_total_tokens": counts,
        "serve.extra.cuda_graph_max_bs_decode": counts,
        "serve.extra.disable_radix_cache": st.just(True),
        "serve.extra.swa_full_tokens_ratio": shares,
    },
    "llama.cpp": {
        **COMMON,
        "serve.batched_tokens": counts,
        "serve.ubatch": counts,
        "serve.gpu_layers": st.integers(-1, 99),
        "serve.parallel_slots": powers,
        "serve.kv_dtype": st.one_of(st.sampled_from(["q8_0", "fp16"]), st.just({"k": "q8_0", "v": "q4_0"})),
        "serve.swa_full": st.just(True),
        "serve.unified_kv": st.booleans(),
        "serve.tensor_split": st.just([3.0, 1.0]),
        "serve.attention": st.sampled_from(["flash", "eager"]),
        "serve.draft": st.just({"model": "d.gguf", "tokens": 8}),
        "hardware.gpus": st.integers(2, 8),
        "serve.extra.override_tensor": st.just(["a=CPU", "b=CUDA0"]),
        "serve.extra.n_cpu_moe": counts,
        "serve.extra.no_kv_offload": st.just(True),
        "serve.extra.split_mode": st.just("row"),
    },
    "ollama": {
        "serve.context": counts,
        "serve.ubatch": counts,
        "serve.gpu_layers": st.integers(0, 99),
        "serve.parallel_slots": powers,
        "serve.kv_dtype": st.sampled_from(["q8_0", "q4_0", "fp16"]),
        "serve.attention": st.sampled_from(["flash", "eager"]),
        "hardware.gpus": st.integers(2, 4),
        "serve.extra.OLLAMA_GPU_OVERHEAD": counts,
    },
    "tgi": {
        **COMMON,
        "serve.mesh.tp": powers,
        "serve.batched_tokens": counts,
        "serve.sequences": counts,
        "serve.memory_fraction": shares,
        "serve.weights": st.sampled_from(["nf4", "fp4", "int8", "awq", "gptq", "fp8", "bf16", "fp16"]),
        "serve.kv_dtype": st.sampled_from(["fp8", "fp8_e5m2"]),
        "serve.cuda_graphs": st.one_of(st.just(False), st.fixed_dictionaries({"sizes": sizes})),
        "serve.extra.max_batch_total_tokens": counts,
    },
    "tensorrt-llm": {
        **COMMON,
        "serve.mesh.tp": powers,
        "serve.mesh.pp": powers,
        "serve.mesh.ep": powers,
        "serve.sequences": counts,
        "serve.batched_tokens": counts,
        "serve.memory_fraction": shares,
        "serve.kv_dtype": st.sampled_from(["fp8", "auto", "nvfp4"]),
        "serve.block_size": st.sampled_from([32, 64]),
        "serve.extra.enable_attention_dp": st.booleans(),
        "serve.extra.enable_block_reuse": st.booleans(),
        "serve.draft": st.just({"method": "MTP", "tokens": 2}),
    },
    "lmdeploy": {
        **COMMON,
        "serve.mesh.tp": powers,
        "serve.sequences": counts,
        "serve.batched_tokens": counts,
        "serve.memory_fraction": shares,
        "serve.kv_dtype": st.sampled_from(["int4", "int8"]),
        "serve.weights": st.sampled_from(["awq", "gptq", "fp8", "bf16"]),
        "serve.block_size": st.sampled_from([64, 128]),
        "serve.cuda_graphs": st.just(False),
        "serve.extra.backend": st.just("pytorch"),
        "serve.extra.enable_prefix_caching": st.just(True),
    },
}
"""Engine -> what a job for it can say, with values."""

MODELS = {"llama.cpp": "models/m-Q4_K_M.gguf", "ollama": "m-Q4_K_M.gguf"}


def jobs(engine: str) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings of jobs for an engine, with some of its keys."""
    flat = st.fixed_dictionaries({}, optional=KEYS[engine]).filter(is_possible)
    return flat.map(lambda keys: nested({"model": MODELS.get(engine, "org/m"), "serve.engine": engine, **keys}))


def is_possible(flat: dict[str, Any]) -> bool:
    """Whether SGLang's groups of data-parallel attention lie inside the tensor-parallel ranks."""
    attention = flat.get("serve.extra.enable_dp_attention")
    return not attention or (flat.get("serve.mesh.tp", 1) % flat.get("serve.mesh.dp", 1) == 0 and flat.get("serve.mesh.pp", 1) == 1)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """`{"serve.mesh.tp": 2}` as a tree."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        parts = key.split(".")
        branch = tree
        for part in parts[:-1]:
            branch = branch.setdefault(part, {})
        branch[parts[-1]] = value
    return tree


def settings_of(mapping: dict[str, Any]) -> dict[str, Any]:
    """All settings of a job, flat, but for those that its engine's words never say."""
    flat = dict(flat_of(job_to_dict(job_from_mapping(mapping))))
    return {key: value for key, value in flat.items() if key not in ("everybyte", "serve.version")}


def came_back(mapping: dict[str, Any], to: str) -> dict[str, Any]:
    """The job that is read from what was written."""
    written = export(job_from_mapping(mapping), to)
    assert written.left_out == ()
    sources = [Source(file.text, file.name) for file in written.files if file.name != "Modelfile"]
    sources += [Source(file.text, file.name) for file in written.files if file.name == "Modelfile"]
    drafts = read(sources)
    return settings_of(finish(next(draft for draft in drafts if "model" in draft)).job)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), engine=st.sampled_from(list(KEYS)))
def test_a_job_comes_back_from_its_command(data: st.DataObject, engine: str) -> None:
    """Every setting that was written is read again with its value; nothing is added but the GPUs that follow from it."""
    mapping = data.draw(jobs(engine))
    before, after = settings_of(mapping), came_back(mapping, engine)
    inferred = {key: value for key, value in after.items() if key not in before}
    assert {key: after.get(key) for key in before} == before
    assert set(inferred) <= {"hardware.gpus", "hardware.gpus_per_node", "serve.weights.format"}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), engine=st.sampled_from([engine for engine in KEYS if engine not in ("ollama", "llama.cpp")]))
def test_a_job_comes_back_from_a_compose_file(data: st.DataObject, engine: str) -> None:
    """The same through one service of docker-compose."""
    mapping = data.draw(jobs(engine))
    before, after = settings_of(mapping), came_back(mapping, "docker-compose")
    assert {key: after.get(key) for key in before} == before
