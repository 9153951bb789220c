"""The catalogue resolves the names people use, and its data hold together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from everybyte.basics.errors import BadInput
from everybyte.basics.units import GiB, MiB
from everybyte.catalog import all_gpus, all_models, find_gpu, find_model, model_config
from everybyte.catalog.gpus import _index as gpu_index
from everybyte.catalog.gpus import _key as gpu_key
from everybyte.catalog.models import _index as model_index
from everybyte.catalog.names import DATA, fold, read_table
from everybyte.catalog.search import matches

GPU_NAMES = {
    # spellings of people
    "A100-80GB": "A100-SXM4-80GB",
    "a100-80gb": "A100-SXM4-80GB",
    "a100_80gb": "A100-SXM4-80GB",
    "A100 80 GB": "A100-SXM4-80GB",
    "A100-80G": "A100-SXM4-80GB",
    "A100-80": "A100-SXM4-80GB",
    "A100": "A100-SXM4-80GB",
    "A100-SXM4-80GB": "A100-SXM4-80GB",
    "A100-40GB": "A100-SXM4-40GB",
    "A100-40": "A100-SXM4-40GB",
    "A100-PCIe-40GB": "A100-PCIe-40GB",
    "A800": "A800-SXM4-80GB",
    "A800-80GB": "A800-SXM4-80GB",
    "H100": "H100-SXM5-80GB",
    "h100": "H100-SXM5-80GB",
    "H100-80": "H100-SXM5-80GB",
    "H100-80G": "H100-SXM5-80GB",
    "H100-NVL-94GB": "H100-NVL-94GB",
    "H200": "H200-SXM-141GB",
    "h200": "H200-SXM-141GB",
    "H20": "H20-96GB",
    "H20-3e": "H20-141GB",
    "B200": "B200-SXM-180GB",
    "b200": "B200-SXM-180GB",
    "GB200": "GB200-186GB",
    "GB300": "GB300-279GB",
    "GH200": "GH200-96GB",
    "B300": "B300-SXM-270GB",
    "V100": "V100-SXM2-16GB",
    "V100-32GB": "V100-SXM2-32GB",
    "V100-16": "V100-SXM2-16GB",
    "V100-32": "V100-SXM2-32GB",
    "T4": "T4",
    "t4": "T4",
    "L4": "L4",
    "L40S": "L40S",
    "A10": "A10",
    "A10G": "A10G",
    "A6000": "RTX-A6000",
    "a6000": "RTX-A6000",
    "4090": "RTX-4090",
    "RTX 4090 24GB": "RTX-4090",
    "RTX-4070-Ti-Super": "RTX-4070-Ti-Super",
    "rtx 4070 ti super": "RTX-4070-Ti-Super",
    "3060": "RTX-3060-12GB",
    "RTX3090-24GB": "RTX-3090",
    "RTX 6000 Ada": "RTX-6000-Ada",
    "RTX 5090": "RTX-5090",
    "RTX 5090 Laptop 24GB": "RTX-5090-Laptop",
    "MI300X": "MI300X",
    "MI355X": "MI355X",
    "RX-7900-XTX": "RX-7900-XTX",
    "7900 XTX": "RX-7900-XTX",
    "GB10": "GB10",
    "DGX Spark": "GB10",
    "4060 ti 8gb": "RTX-4060-Ti-8GB",
    # names in the measured records
    "RTX-A6000": "RTX-A6000",
    "B200-SXM-180GB": "B200-SXM-180GB",
    "GB200-186GB": "GB200-186GB",
    "RTX-3090": "RTX-3090",
    "RTX-4090": "RTX-4090",
    "RTX-5090": "RTX-5090",
    "H200-SXM-141GB": "H200-SXM-141GB",
    "V100-SXM2-16GB": "V100-SXM2-16GB",
    "H20-96GB": "H20-96GB",
    "Ascend-910B": "Ascend-910B",
    "RTX-3090-Ti": "RTX-3090-Ti",
    "RTX-6000-Ada": "RTX-6000-Ada",
    "RTX-4080": "RTX-4080",
    "RTX-4080-Super": "RTX-4080-Super",
    "Ascend-910C": "Ascend-910C",
    "Apple-M4-16GB": "Apple-M4-16GB",
    "RTX-4090-D": "RTX-4090-D",
    "H100-SXM5-80GB": "H100-SXM5-80GB",
    # what nvidia-smi prints
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "A100-SXM4-40GB": "A100-SXM4-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM5-80GB",
    "NVIDIA H100 PCIe": "H100-PCIe-80GB",
    "NVIDIA H100 NVL": "H100-NVL-94GB",
    "NVIDIA H200": "H200-SXM-141GB",
    "NVIDIA H200 NVL": "H200-NVL-141GB",
    "NVIDIA B200": "B200-SXM-180GB",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "RTX-4070-Ti-Super",
    "NVIDIA GeForce RTX 3080 12GB": "RTX-3080-12GB",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "RTX-4090-Laptop",
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "Tesla T4": "T4",
    "NVIDIA L40S": "L40S",
    "NVIDIA RTX A6000": "RTX-A6000",
    "NVIDIA RTX 6000 Ada Generation": "RTX-6000-Ada",
    "Quadro RTX 6000": "Quadro-RTX-6000",
    "NVIDIA GB10": "GB10",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX-PRO-6000-Blackwell-Workstation",
    "NVIDIA A10G": "A10G",
    "AMD Instinct MI300X": "MI300X",
}

# every catalogue name that the measured records use
MODEL_NAMES = """
Qwen/Qwen1.5-MoE-A2.7B Qwen/Qwen2-0.5B Qwen/Qwen2-7B Qwen/Qwen2-VL-7B-Instruct Qwen/Qwen2.5-0.5B Qwen/Qwen2.5-1.5B Qwen/Qwen2.5-14B Qwen/Qwen2.5-32B
Qwen/Qwen2.5-3B Qwen/Qwen2.5-72B Qwen/Qwen2.5-7B Qwen/Qwen2.5-7B-Instruct Qwen/Qwen2.5-VL-3B-Instruct Qwen/Qwen2.5-VL-7B-Instruct Qwen/Qwen3-0.6B Qwen/Qwen3-14B
Qwen/Qwen3-235B-A22B Qwen/Qwen3-235B-A22B-FP8 Qwen/Qwen3-30B-A3B Qwen/Qwen3-30B-A3B-FP8 Qwen/Qwen3-32B Qwen/Qwen3-4B Qwen/Qwen3-8B
Qwen/Qwen3-Next-80B-A3B-Instruct Qwen/Qwen3-VL-30B-A3B-Instruct Qwen/Qwen3.5-122B-A10B Qwen/Qwen3.5-27B TinyLlama/TinyLlama-1.1B-Chat-v1.0
XiaomiMiMo/MiMo-7B-Base bigcode/gpt_bigcode-santacoder bigcode/starcoder bigscience/T0_3B bigscience/mt0-xxl black-forest-labs/FLUX.1-dev::transformer
codellama/CodeLlama-13b-hf codellama/CodeLlama-7b-hf deepseek-ai/DeepSeek-R1 deepseek-ai/DeepSeek-R1-Distill-Llama-8B deepseek-ai/DeepSeek-R1-Distill-Qwen-14B
deepseek-ai/DeepSeek-R1-Distill-Qwen-7B deepseek-ai/DeepSeek-V2 deepseek-ai/DeepSeek-V2-Lite deepseek-ai/DeepSeek-V3 deepseek-ai/DeepSeek-V4-Flash
facebook/opt-125m facebook/opt-6.7b google/gemma-2-27b google/gemma-2-2b google/gemma-2-9b google/gemma-2b google/gemma-3-1b-it google/gemma-3-27b-it
google/gemma-4-12B-it google/gemma-4-26B-A4B google/gemma-4-31B google/gemma-7b google/vit-huge-patch14-224-in21k huggyllama/llama-13b huggyllama/llama-7b
meta-llama/Llama-2-13b-hf meta-llama/Llama-2-70b-hf meta-llama/Llama-2-7b-hf meta-llama/Llama-3.2-1B meta-llama/Llama-3.2-3B meta-llama/Llama-3.3-70B-Instruct
meta-llama/Llama-4-Scout-17B-16E-Instruct meta-llama/Meta-Llama-3-70B meta-llama/Meta-Llama-3-8B meta-llama/Meta-Llama-3.1-405B meta-llama/Meta-Llama-3.1-70B
meta-llama/Meta-Llama-3.1-8B microsoft/Phi-3-mini-4k-instruct microsoft/phi-1_5 microsoft/phi-2 microsoft/phi-4 mistralai/Ministral-8B-Instruct-2410
mistralai/Mistral-7B-Instruct-v0.3 mistralai/Mistral-7B-v0.1 mistralai/Mistral-Small-24B-Instruct-2501 mistralai/Mixtral-8x7B-v0.1 moonshotai/Kimi-K2-Instruct
moonshotai/Kimi-K2.5 nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 openai/gpt-oss-120b openai/gpt-oss-20b stabilityai/stablelm-3b-4e1t state-spaces/mamba-1.4b-hf
state-spaces/mamba-2.8b-hf tencent/Hunyuan-0.5B-Instruct tiiuae/falcon-7b zai-org/GLM-4.5-Air zai-org/GLM-4.7-Flash zai-org/GLM-5.2
"""

MODEL_SPELLINGS = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "Meta-Llama-3-8B": "meta-llama/Meta-Llama-3-8B",
    "META_LLAMA/llama 3.2 1b": "meta-llama/Llama-3.2-1B",
    "mistralai/Mistral-7B-v0.1": "mistralai/Mistral-7B-v0.1",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "gpt2": "openai-community/gpt2",
    "bert-base-uncased": "google-bert/bert-base-uncased",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "FLUX.1-dev::transformer": "black-forest-labs/FLUX.1-dev::transformer",
    "FLUX.1-dev": "black-forest-labs/FLUX.1-dev::transformer",
    "black-forest-labs/FLUX.1-dev": "black-forest-labs/FLUX.1-dev::transformer",
    "sdxl": "stabilityai/stable-diffusion-xl-base-1.0::unet",
    "opt-1.3b": "facebook/opt-1.3b",
    "opt-1-3b": "facebook/opt-1.3b",
    "opt-13b": "facebook/opt-13b",
    "opt13b": "facebook/opt-13b",
    "phi-1.5": "microsoft/phi-1_5",
    "llama31-8b": "meta-llama/Meta-Llama-3.1-8B",
    "qwen2_5_7b": "Qwen/Qwen2.5-7B",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-7b": "huggyllama/llama-7b",
}


@pytest.mark.parametrize(("spelling", "name"), GPU_NAMES.items())
def test_gpu_names_resolve(spelling: str, name: str) -> None:
    """Every spelling that people, records and nvidia-smi use finds its card."""
    assert find_gpu(spelling).name == name


@pytest.mark.parametrize("name", MODEL_NAMES.split())
def test_models_of_the_records_resolve(name: str) -> None:
    """Every model that a measured record names is in the catalogue under that name, with a config."""
    assert find_model(name).name == name
    assert model_config(name)


@pytest.mark.parametrize(("spelling", "name"), MODEL_SPELLINGS.items())
def test_model_names_resolve(spelling: str, name: str) -> None:
    """Models are found without regard to case and separators, and without the organisation."""
    assert find_model(spelling).name == name


def test_records_name_nothing_else() -> None:
    """The lists above are complete: where the measured records lie beside the package, every name in them resolves."""
    files = sorted((Path(__file__).parents[2] / "src" / "everybyte" / "measure" / "data").glob("*.jsonl"))
    assert files
    for line in (line for file in files for line in file.read_text().splitlines()):
        job = json.loads(line)["job"]
        gpu, model = (job.get("hardware") or {}).get("gpu"), job.get("model")
        if isinstance(gpu, str):
            find_gpu(gpu)
        if isinstance(model, str):
            find_model(model)


@pytest.mark.parametrize(("name", "near"), [("A100-81GB", "A100-SXM4-80GB"), ("RTX 4091", "RTX-4090"), ("H100-96GB", "H20-96GB"), ("zzz", None), ("", None)])
def test_unknown_gpu_names_three(name: str, near: str | None) -> None:
    """An unknown card is refused at its key with the three nearest names and a way out."""
    with pytest.raises(BadInput, match=r"^hardware\.gpu: unknown GPU .*the nearest are \S+, \S+, \S+; .*memory_bytes") as error:
        find_gpu(name)
    assert near is None or near in error.value.message


def test_unknown_model_names_three() -> None:
    """An unknown model is refused at the path that the caller states, with the three nearest names and a way out."""
    with pytest.raises(BadInput, match=r"^jobs\[2\]\.model: unknown model 'llama-3\.1-9b'; the nearest are \S+, \S+, \S+; .*config\.json") as error:
        find_model("llama-3.1-9b", "jobs[2].model")
    assert "meta-llama/Meta-Llama-3.1-8B" in error.value.message


def test_hostile_name_is_cut() -> None:
    """A name of a megabyte gives a short message in a short time."""
    begin = time.perf_counter()
    for find in (find_gpu, find_model):
        with pytest.raises(BadInput) as error:
            find("x1" * 500_000)
        assert len(str(error.value)) < 1000
    assert time.perf_counter() - begin < 5


def test_laptop_is_not_the_desktop() -> None:
    """A laptop card has less memory than the desktop card of its number, so the two must not be mixed up."""
    assert find_gpu("NVIDIA GeForce RTX 4090 Laptop GPU").capacity < find_gpu("4090").capacity


def test_no_gpu_name_has_two_meanings() -> None:
    """No catalogue name, printed name or alias of one card folds to that of another."""
    owner: dict[str, str] = {}
    spellings = [(g.name, g.name) for g in all_gpus()] + [(a, g.name) for g in all_gpus() for a in g.aliases]
    for spelling, name in spellings + [(alias, name) for alias, name, _ in read_table("gpu_aliases.csv")[1:]]:
        assert owner.setdefault(gpu_key(spelling), name) == name, spelling
    assert set(gpu_index()) == set(owner)


def test_aliases_lead_to_rows_with_a_reason() -> None:
    """Every alias has a reason and leads to the row that it names."""
    for alias, name, reason in read_table("gpu_aliases.csv")[1:]:
        assert reason
        assert find_gpu(alias).name == find_gpu(name).name == name
    for alias, name, reason in read_table("model_aliases.csv")[1:]:
        assert reason
        assert find_model(alias).name == find_model(name).name == name


def test_model_names_are_unique() -> None:
    """Full names of models differ when folded, so each finds its own row."""
    names = [m.name for m in all_models()]
    assert len({fold(n) for n in names}) == len(names)
    assert all(find_model(n).name == n for n in names)


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda g: g.name)
def test_gpu_row_is_sane(gpu) -> None:  # type: ignore[no-untyped-def]
    """Capacity comes from its best source and agrees with the other two sizes of the row; rates are positive; a source is named."""
    assert gpu.source
    assert gpu.confidence in {"high", "medium", "low"}
    assert gpu.segment in {"datacenter", "workstation", "consumer", "unified"}
    assert 2014 <= gpu.launch_year <= 2026
    assert type(gpu.capacity) is int
    assert all(rate is None or rate > 0 for rate in gpu[10:18])
    nominal = gpu.memory_gb_marketing * GiB
    assert 0.6 * nominal < gpu.capacity <= nominal
    if gpu.memory_usable_mib is not None:
        usable = gpu.memory_usable_mib * MiB
        assert 0.95 * usable <= gpu.capacity <= 1.001 * usable
    assert ("torch" in gpu.capacity_source) or ("nominal" in gpu.capacity_source)


def test_capacity_is_what_torch_sees() -> None:
    """Where PyTorch's own figure is known, it is the capacity; else the vendor's, else the nominal size, and the row says which."""
    a100, gb300, gh200 = find_gpu("A100-80GB"), find_gpu("GB300"), find_gpu("GH200-144GB")
    assert (a100.capacity, a100.capacity_source) == (round(79.15 * GiB), "total capacity as torch reports it")
    assert gb300.capacity == 284208 * MiB
    assert gb300.capacity_source.startswith("total of the vendor's tool")
    assert gh200.capacity == 144 * GiB
    assert gh200.capacity_source.startswith("nominal size")


def test_two_die_cards_are_counted_by_die() -> None:
    """Software sees each die of an MI250X as a device of its own: capacity and bandwidth are those of one."""
    gcd = find_gpu("MI250X")
    assert gcd.memory_gb_marketing == 64
    assert gcd.bandwidth_gb_s == pytest.approx(3277 / 2)


def test_every_model_file_is_used_and_parses() -> None:
    """Rows and files of the models correspond one to one, and the type of each row is that of its file."""
    rows = all_models()
    assert {row.file for row in rows} == {f"models/{p.name}" for p in (Path(DATA) / "models").glob("*.json")}
    for row in rows:
        config = model_config(row.name)
        assert row.config_origin in {"verbatim-copy", "copy-with-edits", "reconstructed"}
        assert row.model_type in {config.get("model_type"), "diffusers"}


def test_sources_speak_to_strangers() -> None:
    """Notes of the data use no internal ids or marks."""
    text = (Path(DATA) / "gpus.csv").read_text() + (Path(DATA) / "models.csv").read_text()
    assert not re.search(r"S:smi|\bids? \d{6,}", text)


def test_a_config_is_a_fresh_copy() -> None:
    """Changing the config that was handed out does not change the catalogue."""
    model_config("gpt2")["n_layer"] = 1
    assert model_config("gpt2")["n_layer"] == 12


def test_sliding_windows_of_mistral() -> None:
    """Mistral 7B slides over 4096 tokens in its first version and not at all in its third."""
    assert model_config("mistralai/Mistral-7B-v0.1")["sliding_window"] == 4096
    assert model_config("mistralai/Mistral-7B-Instruct-v0.3")["sliding_window"] is None


def test_first_lookup_is_quick() -> None:
    """A cold look-up of one GPU and one model config takes milliseconds: it must not read the 240 configs."""
    code = "import time; import everybyte.catalog as c; t=time.perf_counter(); c.find_gpu('H100'); c.model_config('llama-3.1-8b'); print(time.perf_counter()-t)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    assert min(times) < 0.02  # 4 ms on an idle machine; reading all configs takes 40


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("qwen3", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B"]),
        ("qwen3 32b", ["Qwen/Qwen3-32B"]),
        ("llama 8b", ["meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3.1-8B"]),
    ],
)
def test_a_search_puts_plain_names_and_small_numbers_first(words: str, names: list[str]) -> None:
    """Of models that match, those whose names are made of the words stand first, and 4B stands before 32B and 235B."""
    found = [row.name for row in matches(all_models(), words.split(), lambda row: (row.name,))]
    assert found[: len(names)] == names


@pytest.mark.parametrize("spelling", [str, str.lower, str.upper])
def test_a_name_as_it_is_written_needs_no_index(spelling: Callable[[str], str]) -> None:
    """A name or an alias that is looked up by its row alone is what the index of all forms says."""
    for name, *_ in (*read_table("models.csv")[1:], *read_table("model_aliases.csv")[1:]):
        assert find_model(spelling(name)).name == model_index()[fold(name)]
    for name, *_ in (*read_table("gpus.csv")[1:], *read_table("gpu_aliases.csv")[1:]):
        assert find_gpu(spelling(name)).name == gpu_index()[gpu_key(name)]
