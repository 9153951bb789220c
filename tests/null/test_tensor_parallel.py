"""Which part of weights and caches one rank of a serving engine holds."""

from __future__ import annotations

import pytest

from everybyte.layers.recording.setup import Kernels, Packed, Setup
from everybyte.models.count import parameter_count
from everybyte.models.source import network_of
from everybyte.rules.serving.pages import layer_caches, prices
from everybyte.rules.serving.tensor_parallel import Cut, stages_of
from everybyte.rules.step.cache import Format
from everybyte.rules.step.persistent_state import weight_lines

PLAIN = Setup(grad=False, trainable=(), kernels=Kernels(loss="logits"))
DIVISIBLE = (
    "meta-llama/Meta-Llama-3.1-8B",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen/Qwen3.5-27B",
    "THUDM/chatglm3-6b",
    "bigscience/bloom-7b1",
    "tiiuae/falcon-7b",
    "google/gemma-3-12b-it",
    "openai/gpt-oss-20b",
)


def whole(ranks: int) -> Cut:
    return Cut(ranks, ranks, 1, ranks, ranks, ranks)


def bytes_of(name: str, cut: Cut, setup: Setup = PLAIN) -> int:
    return sum(line.bytes for line in weight_lines(network_of(name, "model"), setup, cut))


@pytest.mark.parametrize("name", DIVISIBLE)
def test_one_rank_holds_everything(name: str) -> None:
    """Without parallel ranks only the vocabulary's rounding and buffers are more than the parameters."""
    network = network_of(name, "model")
    stored = bytes_of(name, Cut(padded_to=1))
    assert 0 <= stored / (2 * parameter_count(network)) - 1 < 0.005


@pytest.mark.parametrize("name", DIVISIBLE)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_hold_together_what_the_network_has(name: str, ranks: int) -> None:
    """Each rank has at least its share, and little more: norms, routers, latents, KV heads that are repeated, towers of images."""
    try:
        part, all_of_it = bytes_of(name, whole(ranks)), bytes_of(name, Cut())
    except ZeroDivisionError:  # pragma: no cover
        pytest.fail(f"{name}: a size that is divided is not known")
    assert all_of_it / ranks * 0.995 <= part <= all_of_it / ranks * 1.09


def test_experts_are_dealt_out_whole_or_divided() -> None:
    """Expert parallel ranks hold as many bytes of experts as ranks that divide each of them."""
    dealt, divided = bytes_of("Qwen/Qwen3-30B-A3B", Cut(4, 4, 4, 1, 4, 4)), bytes_of("Qwen/Qwen3-30B-A3B", whole(4))
    assert dealt == pytest.approx(divided, rel=1e-3)


def test_a_packed_matrix_is_cut_before_it_is_packed() -> None:
    """Scales belong to groups of the inputs that a rank has."""
    packed = Setup(grad=False, trainable=(), packed=Packed("gptq", ("lm_head",), 128), kernels=Kernels(loss="logits"))
    one, half = (bytes_of("meta-llama/Meta-Llama-3.1-8B", cut, packed) for cut in (Cut(), whole(2)))
    assert half == pytest.approx(one / 2, rel=0.01)


@pytest.mark.parametrize(
    ("name", "ranks", "token"),
    [
        ("meta-llama/Meta-Llama-3.1-8B", 1, 2 * 8 * 128 * 2 * 32),
        ("meta-llama/Meta-Llama-3.1-8B", 16, 2 * 1 * 128 * 2 * 32),
        ("Qwen/Qwen3-235B-A22B-FP8", 4, 2 * 1 * 128 * 2 * 94),
        ("deepseek-ai/DeepSeek-V3", 8, (512 + 64) * 2 * 61),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 4, 2 * 1 * 128 * 2 * 6),
        ("tiiuae/falcon-7b", 4, 2 * 1 * 64 * 2 * 32),
    ],
)
def test_price_of_a_token(name: str, ranks: int, token: int) -> None:
    """2·max(k/t, 1)·d·e·L; MLA's latents are whole everywhere."""
    assert prices(layer_caches(network_of(name, "model"), whole(ranks), Format(PLAIN.weights))).token == token


def test_states_are_divided_by_heads() -> None:
    """Convolution: one column less than the kernel, in 16 bits; SSM in fp32 unless the engine says otherwise."""
    network = network_of("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "model")
    found = [prices(layer_caches(network, whole(4), Format(PLAIN.weights), size)).state for size in (0, 2)]
    assert found == [23 * (1536 * 3 * 2 + 16 * 64 * 128 * e) for e in (4, 2)]


def test_stages_hold_all_layers_once() -> None:
    """The last stages have one layer more where they do not divide evenly."""
    network = network_of("meta-llama/Meta-Llama-3.1-8B", "model")
    found = stages_of(network, 3)
    assert [stage.layers for stage in found] == [10, 11, 11]
    assert [stage.runs[0].label for stage in found] == ["layers.0-9", "layers.10-20", "layers.21-31"]
    assert sum(bytes_of_network(stage) for stage in found) == bytes_of_network(network)


def bytes_of_network(network: object) -> int:
    return sum(line.bytes for line in weight_lines(network, PLAIN, Cut()))  # type: ignore[arg-type]
