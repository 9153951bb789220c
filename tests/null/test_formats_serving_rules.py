"""Findings of serving jobs: every trap of the table and every rule is told where it holds, and not where it does not."""

from __future__ import annotations

import pytest

from everybyte.formats.draft import JobDraft
from everybyte.formats.finish import finish
from everybyte.formats.read import read
from everybyte.formats.serving import rules
from everybyte.formats.serving.flag_table import flag_table
from everybyte.formats.serving.reading import Reading
from everybyte.formats.source import Source, command_source

FILES = {
    "vllm": "vllm.csv",
    "sglang": "sglang.csv",
    "tensorrt-llm": "tensorrt_llm.csv",
    "lmdeploy": "lmdeploy.csv",
    "tgi": "tgi.csv",
    "llama.cpp": "llamacpp.csv",
    "ollama": "ollama.csv",
}


def told(text: str, name: str = "") -> dict[str, str]:
    """Findings of a command or file: id -> severity."""
    source = Source(text, name) if name else command_source(text)
    return {finding.id: finding.severity for draft in read([source]) for finding in finish(draft).findings}


def value_that_holds(when: str) -> object:
    """A value for which a trap holds."""
    if not when:
        return 1
    if when[0] == "=":
        return {"True": True, "False": False}.get(when[1:], when[1:])
    return float(when[1:]) + (0.01 if when[0] == ">" else -0.01)


@pytest.mark.parametrize("trap", rules.traps(), ids=lambda trap: f"{trap.engine}-{trap.id}-{trap.key}")
def test_every_trap_is_told_when_its_setting_is_stated(trap: rules.Trap) -> None:
    """The finding has the place of the setting; a default is no trap."""
    draft = JobDraft(trap.engine)
    draft.state(trap.key, value_that_holds(trap.when), "x.sh:3")
    rules.check(Reading(trap.engine, draft, flag_table(FILES[trap.engine]), flag_table(FILES[trap.engine]).settled({}, draft)))
    assert (trap.id, trap.severity, "x.sh:3") in [(each.id, each.severity, each.place) for each in draft.findings]
    other = JobDraft(trap.engine)
    other.default(trap.key, value_that_holds(trap.when))
    rules.check(Reading(trap.engine, other, flag_table(FILES[trap.engine]), flag_table(FILES[trap.engine]).settled({}, other)))
    assert trap.id not in [each.id for each in other.findings]


@pytest.mark.parametrize(
    "trap", [trap for trap in rules.traps() if trap.key.startswith("serve.extra.") and trap.key[12].islower()], ids=lambda trap: f"{trap.engine}-{trap.key}"
)
def test_every_trap_is_about_a_flag_of_its_engine(trap: rules.Trap) -> None:
    """A trap on a flag that the table does not keep could never be told."""
    name = trap.key.removeprefix("serve.extra.")
    kept = {flag.job.partition(":")[2] or flag.name for flag in flag_table(FILES[trap.engine]).flags.values() if flag.job.startswith(("extra", "fork", "*"))}
    assert name in kept


@pytest.mark.parametrize(
    ("command", "id_", "severity"),
    [
        ("vllm serve m/m --max-num-batched-tokens 64 --max-num-seqs 128", "batch-below-sequences", "error"),
        ("vllm serve m/m --no-enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096", "batch-below-context", "error"),
        ("vllm serve m/m --enforce-eager --cudagraph-capture-sizes 1 2 4", "graphs-off", "note"),
        ("vllm serve m/m", "context-unset", "note"),
        ('vllm serve m/m --max-model-len 1k --speculative-config \'{"model": "d/d", "num_speculative_tokens": 3}\'', "draft-model", "note"),
        ("docker run vllm/vllm-openai:latest --model m/m", "version-unstated", "note"),
        ("python -m sglang.launch_server --model-path m/m --dp 2", "whole-replicas", "note"),
        ("python -m sglang.launch_server --model-path m/m --cuda-graph-max-bs 256 --max-running-requests 64", "graphs-above-requests", "note"),
        ("text-generation-launcher --model-id m/m --max-input-tokens 4096 --max-total-tokens 4096", "input-above-total", "error"),
        ("text-generation-launcher --model-id m/m --max-input-tokens 4096 --max-batch-prefill-tokens 2048", "prefill-below-input", "error"),
        ("llama-server -m m.gguf -ctv q8_0 -fa off", "packed-cache-without-flash", "error"),
        ("OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve", "packed-cache-without-flash", "warning"),
        ("llama-server -m m.gguf -c 8192 -np 4", "context-shared", "note"),
        ("OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=4096 ollama serve", "context-per-request", "note"),
        ("llama-server -m m.gguf -b 512 -ub 2048", "ubatch-above-batch", "note"),
        ("CUDA_VISIBLE_DEVICES=0 llama-server -m m.gguf -ts 1,1", "split-against-devices", "error"),
        ("docker run --gpus 2 vllm/vllm-openai:v0.11.0 --model m/m", "idle-gpus", "warning"),
        ("CUDA_VISIBLE_DEVICES=0 vllm serve m/m -tp 2", "too-few-gpus", "error"),
        ("OLLAMA_NUM_GPU=99 ollama serve", "variable-without-effect", "warning"),
        ("vllm serve m/m --compilation-config '{\"a\": '", "broken-json", "error"),
        ("vllm serve m/m --quantization nothing", "unknown-quantization", "warning"),
        ("vllm serve m/m --max-num-seqs many", "impossible-value", "error"),
        ("vllm serve m/m --max-num-seqs $(nproc)", "unknown-value", "warning"),
        ("vllm serve m/m --config c.yaml", "file-missing", "warning"),
        ("vllm serve m/m --max-num-seqs 1 --max-num-seqs 2", "flag-twice", "warning"),
        ("llama-server -m m.gguf --swa-full", "swa-full", "warning"),
    ],
)
def test_rules(command: str, id_: str, severity: str) -> None:
    """A contradiction has its severity, by which `import` exits with 1 or 0."""
    assert told(command).get(id_) == severity


def test_a_good_command_is_quiet() -> None:
    """Nothing is told of a command in which nothing is odd; flags without effect on memory may be unknown to the run."""
    assert told("vllm serve m/m --max-model-len 8192 -tp 2 --max-num-seqs 64 --port $PORT --served-model-name $NAME --api-key $KEY\n") == {}


def test_pods_of_one_engine_on_several_nodes() -> None:
    """A container with half of the GPUs that the engine needs is one node of two."""
    container = "{image: 'vllm/vllm-openai:v0.11.0', args: [--model, m/m, -tp, '16'], resources: {limits: {nvidia.com/gpu: 8}}}"
    text = f"kind: Pod\napiVersion: v1\nspec: {{containers: [{container}]}}\n"
    draft = read([Source(text, "p.yaml")])[0]
    assert (draft.value("hardware.gpus"), draft.value("hardware.gpus_per_node")) == (16, 8)
    assert "several-nodes" in [finding.id for finding in draft.findings]
