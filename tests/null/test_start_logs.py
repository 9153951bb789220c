"""Figures are read from logs under the contract's names, with rank, unit and the last digit that was printed."""

from __future__ import annotations

import io
import json

import pytest
from click.testing import CliRunner

from everybyte.basics.errors import BadInput
from everybyte.basics.units import GiB, MiB
from everybyte.cli.app import group
from everybyte.measure.sizes import number, resolution, size
from everybyte.measure.start_logs.examples import Example, examples
from everybyte.measure.start_logs.figure import StartLog
from everybyte.measure.start_logs.read import read, wordings


def of(text: str) -> StartLog:
    """What a text states."""
    return read(io.BytesIO(text.encode()))


def figures(text: str) -> dict[tuple[str, str], float]:
    """(figure, rank) -> value."""
    return {(one.figure, one.rank): one.value for one in of(text).measured}


VLLM_V1 = """\
INFO 05-12 10:00:00 [api_server.py:1034] vLLM API server version 0.8.5
(VllmWorker rank=1 pid=11) INFO 05-12 10:00:01 [gpu_model_runner.py:1273] Model loading took 7.5123 GiB and 3.2 seconds
INFO 05-12 10:00:02 [gpu_worker.py:200] Available KV cache memory: 23.70 GiB
INFO 05-12 10:00:02 [kv_cache_utils.py:634] GPU KV cache size: 194,176 tokens
INFO 05-12 10:00:02 [kv_cache_utils.py:637] Maximum concurrency for 32,768 tokens per request: 5.93x
INFO 05-12 10:00:20 [gpu_model_runner.py:1600] Graph capturing finished in 18 secs, took 0.69 GiB
"""
VLLM_V0 = (
    "the current vLLM instance can use total_gpu_memory (44.42GiB) x gpu_memory_utilization (0.90) = 39.98GiB\n"
    "model weights take 14.99GiB; non_torch_memory takes 0.07GiB; PyTorch activation peak memory takes 1.19GiB; "
    "the rest of the memory reserved for KV Cache is 23.73GiB.\n# cuda blocks: 12,136, # CPU blocks: 2048\n"
)
SGLANG = """\
[2025-06-01 00:00:00 TP1] Load weight begin. avail mem=78.58 GB
[2025-06-01 00:00:09 TP1] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.43 GB, mem usage=15.09 GB.
[2025-06-01 00:00:09 TP1] KV Cache is allocated. #tokens: 412345, K size: 25.17 GB, V size: 25.17 GB
[2025-06-01 00:00:19 TP1] Capture cuda graph end. Time elapsed: 10.9 s. mem usage=1.23 GB. avail mem=7.40 GB.
"""
LLAMA_CPP = """\
build: 5432 (abcdef0) with cc
print_info: file size   = 4.58 GiB (4.89 BPW)
print_info: model params     = 8.03 B
load_tensors:        CUDA0 model buffer size =  4403.49 MiB
load_tensors:   CPU_Mapped model buffer size =   281,81 MiB
llama_kv_cache_iswa: creating non-SWA KV cache, size = 32768 cells
llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1536 cells
llama_kv_cache:      CUDA0 KV buffer size =   120.00 MiB
llama_context:      CUDA0 compute buffer size =   560.00 MiB
llama_context:  CUDA_Host  output buffer size =     0.49 MiB
"""


def test_vllm() -> None:
    """Both generations of vLLM: each figure by rank, counts with separators of thousands, facts that are no figures apart."""
    found = figures(VLLM_V1)
    assert found["weights", "1"] == round(7.5123 * GiB)
    assert found["kv.pool", "any"] == round(23.70 * GiB)
    assert (found["kv.tokens", "any"], found["kv.concurrency", "any"]) == (194_176, 5.93)
    assert found["cuda_graphs", "any"] == round(0.69 * GiB)
    old = of(VLLM_V0)
    assert {one.figure: one.value for one in old.measured}["non_torch"] == round(0.07 * GiB)
    assert {one.figure: one.value for one in old.measured}["kv.blocks"] == 12_136
    assert old.given == {"capacity": round(44.42 * GiB), "memory_fraction": 0.9, "budget": round(39.98 * GiB)}
    assert (of(VLLM_V1).engine, of(VLLM_V1).version) == ("vllm", "0.8.5")


def test_sglang_means_gib_by_gb() -> None:
    """SGLang's GB are 2^30; keys and values are printed apart and are one pool."""
    found = of(SGLANG)
    values = {one.figure: one.value for one in found.measured}
    assert values["weights"] == round(15.09 * GiB)
    assert values["kv.pool"] == 2 * round(25.17 * GiB)
    assert values["cuda_graphs"] == round(1.23 * GiB)
    assert found.given["free_before_load"] == round(78.58 * GiB)
    assert {one.rank for one in found.measured} == {"TP1"}


def test_llama_cpp_by_device() -> None:
    """Buffers by device; the caches of sliding and full layers are one cache, of which the sliding part is a figure too; decimal commas."""
    found = of(LLAMA_CPP)
    values = {(one.figure, one.rank): one.value for one in found.measured}
    assert values["kv.bytes", "CUDA0"] == 632 * MiB
    assert values["kv.swa_bytes", "CUDA0"] == 120 * MiB
    assert values["weights", "CPU_Mapped"] == round(281.81 * MiB)
    assert values["compute_buffer", "CUDA0"] == 560 * MiB
    assert found.given["params"] == 8_030_000_000
    assert (found.engine, found.version) == ("llama.cpp", "5432")


def test_training_logs_keep_the_highest_step() -> None:
    """Of several steps the peak of the run counts; torchtitan's share gives the capacity."""
    titan = of("".join(f"[titan] step: {i} loss: 8.0 memory: {45 + i % 3}.16GiB(57.04%) tps: 7,000\n" for i in range(9)))
    assert {one.figure: one.value for one in titan.measured}["peak.reserved"] == round(47.16 * GiB)
    megatron = of("[Rank 3] (after 2 iterations) memory (MB) | allocated: 12345.5 | max allocated: 23456.75 | reserved: 25000.0 | max reserved: 25001.0\n")
    values = {one.figure: (one.value, one.rank) for one in megatron.measured}
    assert values["peak.allocated"] == (23456.75 * MiB, "3")
    assert values["peak.reserved"] == (25001 * MiB, "3")


def test_nvidia_smi() -> None:
    """The table and the CSV of nvidia-smi: used memory by device."""
    row = "| {fan}%   45C    P0   50W / 300W |  {used}MiB / 81920MiB |      0%      Default |\n"
    table = row.format(fan=" 0", used=12345) + row.format(fan="30", used="  555")
    assert figures(table) == {("device.used", "0"): 12345 * MiB, ("device.used", "1"): 555 * MiB}
    csv = "index, name, memory.total [MiB], memory.used [MiB]\n0, NVIDIA H100, 81559 MiB, 70000 MiB\n1, NVIDIA H100, 81559 MiB, [N/A]\n"
    assert figures(csv) == {("device.used", "0"): 70000 * MiB}
    assert of(csv).given["capacity"] == 81559 * MiB
    bare = "index, memory.used [MiB]\n0, 70000\n"
    assert figures(bare) == {("device.used", "0"): 70000 * MiB}


def test_mlx_means_powers_of_ten() -> None:
    """mlx's GB are 10^9."""
    assert figures("Peak memory: 4.321 GB\n") == {("peak.allocated", "any"): 4_321_000_000}


def test_estimates_are_no_measured_figures() -> None:
    """What an engine expects of its graphs is a plain fact, not a measured figure."""
    found = of("INFO CUDA graph pool memory: 0.69 GiB (actual), 0.90 GiB (estimated), difference: 0.21 GiB (30.4%).")
    assert {one.figure for one in found.measured} == {"cuda_graphs"}
    assert found.given == {"cuda_graphs_estimate": round(0.9 * GiB)}


@pytest.mark.parametrize(("text", "value", "last"), [("1,234.5 MiB", 1234.5 * MiB, MiB / 10), ("1900,00 MiB", 1900 * MiB, MiB / 100), ("103,760", 103_760, 1)])
def test_numbers_of_all_countries(text: str, value: float, last: float) -> None:
    """Separators of thousands and decimal commas are told apart, and the last digit is known."""
    assert size(text) == round(value)
    assert resolution(text) == int(last)
    assert number("5,93") == 5.93


def test_every_wording_has_its_hint() -> None:
    """A hint is part of its pattern's own words: a row whose hint never occurs would never be read."""
    for row in wordings():
        assert row.hints
        assert row.pattern.groups


def test_nothing_known_is_refused() -> None:
    """A text without a figure is refused with its place, exit code 2."""
    with pytest.raises(BadInput, match="no memory figure"):
        of("hello\n")


def test_the_command() -> None:
    """`read --json` prints the contract's form."""
    result = CliRunner().invoke(group, ["read", "-", "--json"], input=VLLM_V1, standalone_mode=False)
    answer = json.loads(result.stdout)
    assert answer["schema"] == 1
    assert {"figure": "kv.tokens", "rank": "any", "value": 194176, "unit": "tokens", "resolution": 1, "line": 4} in answer["measured"]


@pytest.mark.parametrize("example", examples(), ids=lambda one: f"{one.engine} {one.line[:24]}")
def test_the_table_of_what_is_read(example: Example) -> None:
    """Each printed line of the documentation's table gives a figure or fact, and is known as its tool's."""
    found = example.found()
    assert found.engine == example.engine
    assert found.measured or found.given


def test_the_table_has_a_line_for_every_wording() -> None:
    """No wording is read that the table does not show."""
    shown = examples()
    unseen = [
        row.pattern.pattern
        for row in wordings()
        if not any(one.engine == row.engine and any(hint in one.line for hint in row.hints) and row.pattern.search(one.line) for one in shown)
    ]
    assert unseen == []


@pytest.mark.parametrize(
    ("text", "found", "capacity"),
    [
        ("GPU[0]\t\t: VRAM Total Memory (B): 1000\nGPU[0]\t\t: VRAM Total Used Memory (B): 300\n", {"0": 300}, 1000),
        ("device,VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard0,1000,300\n", {"card0": 300}, 1000),
        ("GPU: 0\n    TOTAL_VRAM: 100 MB\n    USED_VRAM: 3 MB\nGPU: 1\n    USED_VRAM: 4 MB\n", {"0": 3 * MiB, "1": 4 * MiB}, 100 * MiB),
        ("gpu,total_vram,used_vram,free_vram\n0,100,3,97\n", {"0": 3 * MiB}, 100 * MiB),
        ("| GPU Memory Used (MiB)  | 2178  |\n", {"0": 2178 * MiB}, None),
        ("Timestamp, DeviceId, GPU Memory Used (MiB)\n06:14:46.000,    1, 45.5\n", {"1": 45.5 * MiB}, None),
    ],
    ids=["rocm-smi", "rocm-smi csv", "amd-smi", "amd-smi csv", "xpu-smi", "xpu-smi dump"],
)
def test_tools_of_other_drivers(text: str, found: dict[str, float], capacity: int | None) -> None:
    """AMD's and Intel's tools: used memory by device; amd-smi's MB are 2^20 bytes."""
    assert figures(text) == {("device.used", rank): value for rank, value in found.items()}
    assert of(text).given.get("capacity") == capacity


def test_the_trainers_stages_add_up() -> None:
    """The peak of a Trainer's run is what was there, what each stage added and how far the peak lay above the end."""
    text = "  before_init_mem_gpu        =       10MB\n  init_mem_gpu_alloc_delta   =      230MB\n"
    text += "  train_mem_gpu_alloc_delta  =     3075MB\n  train_mem_gpu_peaked_delta =     5083MB\n"
    assert figures(text) == {("peak.allocated", "any"): 8398 * MiB}
