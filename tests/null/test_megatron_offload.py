"""Fine-grained offload of activations under Megatron-LM: what leaves the device, what comes back twice, and when."""

from __future__ import annotations

from typing import Any

from everybyte.engines.megatron.layers.block import TransformerLayer
from everybyte.engines.megatron.layers.linear import offloaded_size
from everybyte.engines.megatron.sizes import Dense, Heads, Sizes, Split
from everybyte.engines.megatron.stage import StageBill
from everybyte.engines.megatron.style import Style
from everybyte.estimator import accounted
from everybyte.job import read_job
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import TOKENS, Batch, Dim, Point
from everybyte.layers.recording.tape import Tape
from everybyte.ledger.entry import Phase

SHAPE: dict[str, Any] = {
    "family": "gpt",
    "layers": 8,
    "hidden": 1024,
    "ffn": 4096,
    "heads": 16,
    "kv_heads": 16,
    "head_dim": 64,
    "vocab": 32000,
    "activation": "gelu",
    "norm": "layernorm",
    "position": "learned",
    "max_positions": 4096,
    "bias": True,
    "tied": False,
}
OFFLOAD: dict[str, Any] = {"offload": {"activations": "cpu"}, "extra": {"fine-grained-activation-offloading": True, "offload-modules": ["core_attn"]}}
HEADS, LENGTH, BATCH = 16, 4096, 2
SCORES = 2 * BATCH * HEADS * LENGTH**2


def rows(**train: Any) -> dict[Phase, dict[str, int]]:
    """The rows of the last stage by phase."""
    base = {"framework": "megatron", "micro_batch": BATCH, "seq_len": LENGTH, "grad_accum": 8, "dropout": 0.0, "attention": "unfused"}
    found = accounted(read_job({"model": {"shape": SHAPE}, "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 8}, "train": base | train}))[2]
    bill = found.ranks[-1].bill
    assert isinstance(bill, StageBill)
    ledger = bill.ledger()
    return {phase.name: {e.id: e.bytes for e in ledger.living(phase.name)} for phase in ledger.phases()}


def layer_parked(*modules: str) -> int:
    """Bytes that one layer has in host memory."""
    sizes = Sizes(1024, Heads(HEADS, HEADS, 64, False, True, True), Dense(4096, "gelu", False, True), "layer")
    tape = Tape(Setup())
    layer = TransformerLayer(sizes, Split(), Style(attention="unfused", offloaded=modules))
    layer.forward(tape, tape.given("hidden states", (TOKENS, Dim("h", 1024)), Setup().weights, grad=True, persistent=False))
    return offloaded_size(tape).at(Point(Batch(BATCH, LENGTH, LENGTH)))


def test_a_tensor_that_two_operations_keep_is_copied_twice() -> None:
    """The softmax and the product with the values both keep the shares: two copies of them come back, and one of queries, keys and values."""
    assert layer_parked("core_attn") == 2 * SCORES + 3 * 2 * BATCH * LENGTH * 1024
    assert layer_parked() == 0


def test_the_layer_that_goes_back_next_is_fetched_while_another_micro_batch_goes_forward() -> None:
    """In a pipeline with micro-batches in flight a whole layer's copies are on the device in forward too."""
    found = rows(mesh={"pp": 2}, pipeline={"schedule": "interleaved", "virtual": 2}, **OFFLOAD)
    assert found["forward"]["activations/fetched ahead"] == found["backward"]["activations/fetched ahead"] == layer_parked("core_attn")


def test_without_a_pipeline_the_last_layer_stays() -> None:
    """A micro-batch that goes back at once leaves its last layer's tensors on the device, and nothing is fetched in forward."""
    found = rows(**OFFLOAD)
    assert "activations/fetched ahead" not in found["forward"]
    kept = {name: size for name, size in found["loss"].items() if name.startswith("activations/layers.") and name.endswith("self_attention")}
    assert kept["activations/layers.7/self_attention"] - kept["activations/layers.0-6/self_attention"] // 7 >= SCORES


def test_offload_saves_most_of_what_attention_keeps() -> None:
    """Eight layers keep their scores without it; with it one layer's are there, twice where they were fetched."""
    whole = rows()
    offloaded = rows(**OFFLOAD)
    assert max(sum(phase.values()) for phase in whole.values()) - max(sum(phase.values()) for phase in offloaded.values()) >= 4 * SCORES
