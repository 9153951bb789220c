"""Commands and files of serving engines become jobs; each setting knows where it was written."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from everybyte.basics.errors import BadInput
from everybyte.catalog.extra_keys import known_keys
from everybyte.engines.registry import sections_of
from everybyte.formats.finish import Imported, finish
from everybyte.formats.read import read
from everybyte.formats.serving.flag_table import flag_table
from everybyte.formats.serving.writing import TARGETS
from everybyte.formats.source import Source, command_source
from everybyte.formats.writers import export
from everybyte.job.extra import canonical, keys_of
from everybyte.job.read import job_from_mapping


def jobs(text: str, name: str = "", **files: str) -> list[Imported]:
    """The answers of a command, or of a file of that name with others beside it."""
    source = Source(textwrap.dedent(text).lstrip("\n"), name) if name else command_source(text)
    others = [Source(content, path.replace("__", ".")) for path, content in files.items()]
    return [finish(draft) for draft in read([source, *others])]


def one(text: str, name: str = "", **files: str) -> Imported:
    """The only answer."""
    found = jobs(text, name, **files)
    assert len(found) == 1
    return found[0]


def told(answer: Imported) -> set[str]:
    """Ids of its findings."""
    return {finding.id for finding in answer.findings}


def at(job: dict[str, Any], key: str) -> Any:
    """The value at a path of keys."""
    for part in key.split("."):
        job = job.get(part, {})
    return job


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve org/m -tp 2 --max-model-len 32k", {"model": "org/m", "serve.mesh.tp": 2, "serve.context": 32000, "hardware.gpus": 2}),
        ("vllm serve --model org/m --max-model-len 32K --max-num-seq 8", {"serve.context": 32768, "serve.sequences": 8}),
        ("vllm serve org/m --enforce-eager --dtype half", {"serve.cuda_graphs": False, "serve.weights": {"format": "fp16"}}),
        ("vllm serve org/m --quantization awq_marlin --dtype half", {"serve.weights": {"format": "awq"}}),
        ("vllm serve org/m --no-enable-prefix-caching", {"serve.extra.enable_prefix_caching": False}),
        ("vllm serve org/m --limit-mm-per-prompt.video 0 --limit-mm-per-prompt.image 2", {"serve.multimodal": {"video": 0, "image": 2}}),
        ("vllm serve org/m --limit-mm-per-prompt image=4", {"serve.multimodal": {"image": 4}}),
        ('vllm serve org/m --speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'', {"serve.draft": {"method": "mtp", "tokens": 2}}),
        ("vllm serve org/m -dp 8 --enable-expert-parallel", {"serve.mesh": {"dp": 8, "ep": 8}, "hardware.gpus": 8}),
        ("vllm serve org/m --kv-cache-dtype fp8_e4m3 --block-size 32", {"serve.kv_dtype": "fp8", "serve.block_size": 32}),
        ("vllm serve org/m --enable-lora --max-lora-rank 64 --max-loras 4", {"serve.lora": {"rank": 64, "count": 4}}),
        ('vllm serve org/m -O0 --compilation-config \'{"cudagraph_mode": "NONE"}\'', {"serve.cuda_graphs": False}),
        ("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve org/m", {"serve.attention": "FLASHINFER"}),
        ("python -m sglang.launch_server --model-path org/m --tp 4 --mem-frac 0.7 --context-len 8192", {"serve.memory_fraction": 0.7, "serve.context": 8192}),
        ("python -m sglang.launch_server --model-path m/m --tp 8 --dp 4 --enable-dp-attention", {"serve.mesh": {"tp": 8, "dp": 4}, "hardware.gpus": 8}),
        ("python -m sglang.launch_server --model-path m/m --tp 2 --dp 4", {"hardware.gpus": 8}),
        ("python -m sglang.launch_server --model-path m/m --disable-cuda-graph --page-size 64", {"serve.cuda_graphs": False, "serve.block_size": 64}),
        ("llama-server -hf org/m-GGUF:Q5_K_M -c 0 -ngl all -fa", {"serve.weights": {"format": "q5_k_m"}, "serve.gpu_layers": -1, "serve.attention": "flash"}),
        ("llama-server -m m-Q4_0.gguf -c 8192 -fa off -ts 3,1 -np 4", {"serve.attention": "eager", "serve.tensor_split": [3, 1], "serve.parallel_slots": 4}),
        ("LLAMA_ARG_CTX_SIZE=4096 LLAMA_ARG_N_GPU_LAYERS=20 llama-server -m m.gguf", {"serve.context": 4096, "serve.gpu_layers": 20}),
        ("./ik_llama.cpp/build/bin/llama-server -m m.gguf -mla 2 -fmoe", {"serve.extra": {"mla": 2, "fmoe": True, "fork": "ik_llama.cpp"}}),
        ("OLLAMA_NUM_PARALLEL=2 OLLAMA_CONTEXT_LENGTH=8192 ollama serve", {"serve.parallel_slots": 2, "serve.context": 8192}),
        ("ollama run llama3.1:8b-instruct-q4_K_M", {"serve.weights": {"format": "q4_k_m"}}),
        ("MAX_TOTAL_TOKENS=4096 text-generation-launcher --model-id org/m --num-shard 2 --quantize eetq", {"serve.context": 4096, "hardware.gpus": 2}),
        ("text-generation-launcher --model-id org/m --cuda-graphs 0", {"serve.cuda_graphs": False}),
        ("trtllm-serve org/m --tp_size 4 --max_batch_size 8 --free_gpu_memory_fraction 0.5", {"serve.memory_fraction": 0.5, "serve.sequences": 8}),
        ("lmdeploy serve api_server org/m --tp 2 --quant-policy 8 --cache-max-entry-count 0.5", {"serve.kv_dtype": "int8", "serve.memory_fraction": 0.5}),
        ("lmdeploy serve api_server org/m --model-format awq --session-len 4096", {"serve.weights": {"format": "awq"}, "serve.context": 4096}),
    ],
)
def test_flags_of_engines(command: str, expected: dict[str, Any]) -> None:
    """Each flag sets the job key that it means."""
    job = one(command).job
    got = {key: at(job, key) for key in expected}
    for key, value in expected.items():
        if key == "serve.extra":
            got[key] = {name: got[key].get(name) for name in value}
        if isinstance(got[key], str) and isinstance(value, dict):
            got[key] = {"format": got[key]}
    assert got == expected


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "ollama", "tgi", "tensorrt-llm", "lmdeploy"])
def test_what_an_import_keeps_is_known_to_the_engine(engine: str) -> None:
    """A key of `extra` that the engine does not know would make the job refused."""
    table, folder = flag_table(TARGETS[engine].table), {"ollama": "llamacpp"}.get(engine, engine.replace(".", "").replace("-", "_"))
    kept = [flag.job.partition(":")[2] or flag.name for flag in table.flags.values() if flag.job.startswith(("extra", "fork"))]
    read_by_engine = frozenset[str]().union(*map(keys_of, sections_of(folder, "serve")))
    known = known_keys(engine)
    assert [key for key in kept if canonical(key) not in read_by_engine and known.find(canonical(key)) is None] == []


def test_a_flag_that_no_table_has_is_told() -> None:
    """Nothing is dropped."""
    answer = one("vllm serve org/m --frobnicate 3 --port 8000")
    assert [(each.key, each.value) for each in answer.unknown] == [("--frobnicate", "3")]


def test_the_command_line_goes_before_the_file() -> None:
    """`--config` of vLLM is beneath the flags, further options of TensorRT-LLM are above them."""
    vllm = one("vllm serve org/m --config c.yaml --max-num-seqs 8\n", "run.sh", c__yaml="max-num-seqs: 4\nmax-model-len: 2048\n").job
    assert (vllm["serve"]["sequences"], vllm["serve"]["context"]) == (8, 2048)
    trt = one("trtllm-serve org/m --max_batch_size 8 --config c.yaml\n", "run.sh", c__yaml="max_batch_size: 4\nkv_cache_config: {dtype: fp8}\n").job
    assert (trt["serve"]["sequences"], trt["serve"]["kv_dtype"]) == (4, "fp8")


def test_a_modelfile_and_its_quoted_texts() -> None:
    """Words inside triple quotes are no instructions."""
    answer = one(
        'FROM ./m-Q4_K_M.gguf\nSYSTEM """x\nPARAMETER num_ctx 1\n"""\nparameter num_ctx 4096\nPARAMETER stop "</s>"\nPARAMETER num_gpu 20\n', "Modelfile"
    )
    assert answer.job["serve"]["context"] == 4096
    assert answer.job["serve"]["gpu_layers"] == 20
    assert answer.unknown == ()


def test_compose_services_are_jobs_of_their_own() -> None:
    """Anchors, defaults, entry points, images that are programs, and counted devices."""
    answers = jobs(
        """
        x-gpu: &gpu
          deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
        services:
          a:
            <<: *gpu
            image: vllm/vllm-openai:v0.11.0
            command: --model ${M:-org/m} -tp 2
            environment: {PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:True"}
          b:
            image: lmsysorg/sglang:v0.5.1.post3-cu126
            entrypoint: python3 -m sglang.launch_server
            command: ["--model-path", "${MODEL}"]
          db: {image: "postgres:16"}
        """,
        "docker-compose.yml",
    )
    first, second = (answer.job for answer in answers)
    assert first["serve"]["version"] == "0.11.0"
    assert first["hardware"]["gpus"] == 2
    assert first["env"] == {"alloc_conf": "expandable_segments:True"}
    assert second["serve"]["version"] == "0.5.1.post3"
    assert "model" not in second
    assert any("MODEL" in finding.message for finding in answers[1].findings)


MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  replicas: 3
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}
      initContainers: [{name: i, image: "vllm/vllm-openai:v1", args: ["--model", "no/no"]}]
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.22.1
          args: ["--model=$(MODEL)", "--max-model-len 8192", "--max-num-seqs", "16"]
          env: [{name: MODEL, value: org/m}, {name: T, valueFrom: {secretKeyRef: {name: a, key: b}}}]
          resources: {limits: {nvidia.com/gpu: "1"}}
"""


def test_a_manifest() -> None:
    """Arguments, environment, resources and the node's label; replicas and init containers are no job."""
    job = one(MANIFEST, "d.yaml").job
    assert job["model"] == "org/m"
    assert job["hardware"] == {"gpu": "l4", "gpus": 1}
    assert (job["serve"]["context"], job["serve"]["sequences"], job["serve"]["version"]) == (8192, 16, "0.22.1")


KUBEAI = """
apiVersion: kubeai.org/v1
kind: Model
spec: {url: 'hf://org/m', engine: VLLM, args: [--max-model-len=8192], resourceProfile: 'nvidia-gpu-l4:2'}
"""
STACK = """
servingEngineSpec:
  modelSpec:
  - {modelURL: org/m, requestGPU: 2, vllmConfig: {maxModelLen: 8192, enablePrefixCaching: false}}
"""
KSERVE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      args: ['--model_id=org/m', '--model_name=x', '--max_model_len=8192']
      resources: {limits: {nvidia.com/gpu: 2}}
"""
RAY = """
applications:
- args:
    llm_configs:
    - model_loading_config: {model_id: x, model_source: org/m}
      engine_kwargs: {max_model_len: 8192, tensor_parallel_size: 2}
"""
LLM_D = """
modelArtifacts: {uri: 'hf://org/m'}
decode:
  parallelism: {tensor: 2}
  containers: [{image: 'ghcr.io/llm-d/llm-d:v0.2', modelCommand: vllmServe, args: [--max-model-len, '8192']}]
"""
SHELL = """
apiVersion: v1
kind: Pod
spec:
  containers:
  - {name: a, image: x, command: [/bin/sh, -c], args: ['vllm serve org/m --max-model-len 8192 $X'], env: [{name: X, value: '-tp 2'}]}
"""


@pytest.mark.parametrize("text", [KUBEAI, STACK, KSERVE, RAY, LLM_D, SHELL])
def test_other_kinds_of_kubernetes(text: str) -> None:
    """KubeAI, production-stack, KServe, Ray Serve, llm-d and a shell inside a pod come to the same job."""
    job = one(text, "k.yaml").job
    assert (job["model"], job["serve"]["engine"], job["serve"]["context"], job["hardware"]["gpus"]) == ("org/m", "vllm", 8192, 2)


def test_llama_swap() -> None:
    """Every model is a job; macros are put in."""
    answers = jobs(
        """
        macros: {srv: "/opt/llama-server --port ${PORT}"}
        models:
          a:
            cmd: |
              ${srv}
              # the model
              -m /m/a-Q4_K_M.gguf -c 4096
          b: {cmd: "${srv} -m /m/b-Q8_0.gguf", env: ["CUDA_VISIBLE_DEVICES=0,1"]}
        """,
        "swap.yaml",
    )
    assert [answer.job["model"] for answer in answers] == ["/m/a-Q4_K_M.gguf", "/m/b-Q8_0.gguf"]
    assert answers[1].job["hardware"]["gpus"] == 2


def test_a_unit_of_systemd() -> None:
    """ExecStart over several lines with the unit's environment."""
    job = one('[Service]\nEnvironment="CTX=8192" A=b\nExecStart=/usr/bin/llama-server \\\n  -m /m/x-Q4_0.gguf -c ${CTX}\n', "l.service").job
    assert (job["serve"]["context"], job["serve"]["weights"]) == (8192, {"format": "q4_0"})


def test_a_program_of_python() -> None:
    """Lists of words and calls of engines are read by their syntax."""
    listed = one('import subprocess\nM = "org/m"\ncmd = ["vllm", "serve", M]\ncmd += ["--max-model-len", str(2 * 1024)]\nsubprocess.run(cmd)\n', "a.py")
    called = one('from vllm import LLM\nllm = LLM(model="org/m", max_model_len=2048, enforce_eager=False)\n', "b.py")
    assert listed.job["serve"]["context"] == called.job["serve"]["context"] == 2048


def test_a_training_program_of_python() -> None:
    """The arguments of a trainer, an adapter and a loader are settings of one job, each with its line."""
    text = """
    import torch
    M = "org/m"
    bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained(M, quantization_config=bnb, torch_dtype=torch.bfloat16)
    peft = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"])
    args = SFTConfig(per_device_train_batch_size=2, bf16=True, max_length=1024, report_to=unknown())
    """
    answer = one(text, "train.py")
    train = answer.job["train"]
    assert (answer.job["model"], train["framework"], train["micro_batch"], train["seq_len"]) == ("org/m", "trl", 2, 1024)
    assert (train["adapter"]["rank"], train["adapter"]["targets"]) == (16, ["q_proj", "v_proj"])
    assert (train["quantization"]["format"], train["quantization"]["double"]) == ("nf4", True)
    assert next(row.origin for row in answer.settings if row.key == "train.adapter.rank") == "--lora_r (train.py:5)"


def test_flags_are_written_as_the_version_has_them() -> None:
    """SGLang renamed the sizes of its graphs; a job for an older release gets the older name."""
    job = {"model": "org/m", "serve": {"engine": "sglang", "extra": {"cuda_graph_max_bs_decode": 8}}}
    old = {**job, "serve": {**job["serve"], "version": "0.5.1.post3"}}
    assert "--cuda-graph-max-bs-decode 8" in export(job_from_mapping(job), "sglang").files[0].text
    assert "--cuda-graph-max-bs 8" in export(job_from_mapping(old), "sglang").files[0].text


def test_the_version_that_is_asked_for() -> None:
    """`--framework-version` is the engine's version where nothing else says one."""
    drafts = [read([command_source(text)], version="0.9.0")[0] for text in ("vllm serve m/m", "docker run vllm/vllm-openai:v0.11.0 --model m/m")]
    assert [draft.value("serve.version") for draft in drafts] == ["0.9.0", "0.11.0"]


@pytest.mark.parametrize(
    ("job", "to", "part"),
    [
        ({"model": "m/m", "train": {}}, "vllm", "trains"),
        ({"model": "m/m", "serve": {"engine": "sglang"}}, "vllm", "job is for sglang"),
        ({"model": {"shape": {"layers": 1}}, "serve": {"engine": "vllm"}}, "vllm", "name or path"),
        ({"model": "m/m", "serve": {"engine": "transformers"}}, "docker-compose", "compose file needs"),
        ({"model": "m/m", "serve": {}}, "nothing", "no target"),
    ],
)
def test_what_cannot_be_written_is_refused(job: dict[str, Any], to: str, part: str) -> None:
    """An export says why it cannot be, and the way out."""
    with pytest.raises(BadInput, match=part):
        export(job_from_mapping(job), to)


def test_what_a_target_has_no_word_for_is_told() -> None:
    """Nothing of a job is dropped in silence."""
    job = job_from_mapping({"model": "m/m", "serve": {"engine": "tgi", "block_size": 16, "weights": "q4_k_m"}})
    assert [key for key, _ in export(job, "tgi").left_out] == ["serve.weights.format", "serve.block_size"]


def test_a_launch_as_text_inside_a_file_of_another_tool() -> None:
    """The text that starts a known program is read, with the environment and the accelerator that the file states."""
    text = """
    base_image: {image: "vllm/vllm-openai:v0.9.0"}
    environment_variables: {VLLM_ATTENTION_BACKEND: FLASHINFER, HF_TOKEN: x}
    docker_server:
      start_command: sh -c "vllm serve org/m --max-model-len 4096 -tp 2"
    resources: {accelerator: "H100:2"}
    """
    job = one(text, "config.yaml").job
    assert job["hardware"] == {"gpus": 2, "gpu": "h100"}
    assert (job["serve"]["context"], job["serve"]["attention"]) == (4096, "FLASHINFER")
    block = one("resources: {accelerators: 'L4:1'}\nrun: |\n  cd x\n  vllm serve org/m \\\n    --max-num-seqs 4\n", "sky.yaml")
    assert next(row.origin for row in block.settings if row.key == "serve.sequences") == "--max-num-seqs (sky.yaml:5)"


def test_flags_of_several_engines_in_one_file() -> None:
    """A recipe with flags for prefill and decode is two jobs with one model."""
    text = """
    model: {path: org/m}
    resources: {gpu_type: b200}
    backend:
      vllm_config:
        prefill: {tensor-parallel-size: 1, max-model-len: 9472, max-num-batched-tokens: 16384}
        decode: {tensor-parallel-size: 4, max-model-len: 9472, max-num-seqs: 64}
    """
    first, second = (answer.job for answer in jobs(text, "recipe.yaml"))
    assert (first["model"], first["hardware"]["gpu"], first["serve"]["batched_tokens"]) == ("org/m", "b200", 16384)
    assert (second["model"], second["serve"]["mesh"]["tp"], second["serve"]["sequences"]) == ("org/m", 4, 64)


@pytest.mark.parametrize(
    "text", ["$ X=1 vllm serve org/m --dtype half\n", "export A=b\nvllm serve org/m --dtype half\n", "llama-server -m org/m \\\n -ot 'a=CPU' \\\n -ot 'b: c'\n"]
)
def test_a_command_that_is_yaml_by_chance_is_a_command(text: str) -> None:
    """One line of text is YAML too; it is read as what it starts."""
    assert one(text).job["model"] == "org/m"
