"""Scripts of users run as they are: their data is shuffled, their models come from the hub, their checkpoints stay as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everybyte import estimate
from everybyte.ledger.answer import Answer
from everybyte.trace.request import TraceRequest
from everybyte.trace.results.answer import answer_of
from everybyte.trace.run import TraceFailed, run

PROGRAMS = Path(__file__).with_name("programs")
SMALL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "dtype": "float16",
}
pytestmark = pytest.mark.usefixtures("compiler")


@pytest.mark.cold
def test_a_loop_over_a_data_loader_is_traced(tmp_path: Path) -> None:
    """Workers, shuffling, guards against NaN and counts of right answers are followed; the checkpoint of an earlier run is not overwritten."""
    checkpoint = tmp_path / "model.pt"
    checkpoint.write_bytes(b"real weights")
    traced = run(TraceRequest(target=str(PROGRAMS / "loader.py"), arguments=(str(checkpoint),)))
    assert any(birth.shape == (32, 3, 32, 32) and birth.category == "input" for birth in traced.births)
    assert any("checkpoints are not written" in note for note in traced.notes)
    assert checkpoint.read_bytes() == b"real weights"


def test_a_trainer_over_a_packed_model_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A QLoRA script is traced without a file of its model, and has the size, weights, peak and static bytes of the estimate of its job."""
    monkeypatch.chdir(tmp_path)
    asked = TraceRequest(target=str(PROGRAMS / "qlora.py"))
    traced = run(asked)
    answer = answer_of(traced, asked)
    assert "Qwen/Qwen3-0.6B is built without its weights, from the catalogue's config" in traced.notes
    assert any("flash_attention" in birth.operation for birth in traced.births)
    quantization = {"format": "nf4", "double": True}
    adapter = {"kind": "lora", "rank": 8, "targets": "all-linear"}
    train = {"framework": "transformers", "micro_batch": 2, "seq_len": 256, "precision": "bf16-mixed", "quantization": quantization, "adapter": adapter}
    train["recompute"] = "full"  # as prepare_model_for_kbit_training turns it on
    estimated = estimate({"model": "qwen3-0.6b", "hardware": {"gpu": "h100-80gb"}, "train": train})
    assert answer.model.trainable_params == estimated.model.trainable_params
    assert answer.model.params == estimated.model.params + estimated.model.trainable_params
    # the estimate leaves out rests that are no block of their own, where small tensors take the places of larger ones
    pairs = [(answer.figures[figure], estimated.figures[figure]) for figure in ("static.allocated", "peak.allocated")]
    for traced_bytes, estimated_bytes in (*pairs, (weights(answer), weights(estimated))):
        assert 0 <= traced_bytes / estimated_bytes - 1 < 0.01


def weights(answer: Answer) -> int:
    """Bytes of the base's weights between two steps."""
    return sum(entry.bytes for entry in answer.ranks[0].ledger if entry.id.startswith("weights") and "between_steps" in entry.phases)


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    """A model is loaded from a folder that holds a config and no weights, in the number format that the config names."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL), encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(
        "from transformers import AutoModelForCausalLM\nimport torch\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}).cuda()\n"
        "def build():\n    tokens = torch.zeros(2, 16, dtype=torch.int64, device='cuda')\n    return model, {'input_ids': tokens, 'labels': tokens}\n",
        encoding="utf-8",
    )
    traced = run(TraceRequest(target=f"{program}:build", steps=1))
    parameters = [birth for birth in traced.births if birth.category == "parameter"]
    assert {birth.dtype for birth in parameters} == {"float16"}
    assert max(birth.shape for birth in parameters) == (1000, 64)


def test_what_is_not_on_this_machine_is_told(tmp_path: Path) -> None:
    """A model that neither this machine nor the catalogue knows is refused with a way round."""
    program = tmp_path / "program.py"
    program.write_text("from transformers import AutoModel\nAutoModel.from_pretrained('nobody/no-such-model')\n", encoding="utf-8")
    with pytest.raises(TraceFailed, match="a trace downloads nothing\na way round: download it before"):
        run(TraceRequest(target=str(program)))


def test_flex_attention_holds_no_scores() -> None:
    """Compiled flex_attention keeps its result and the sums of its rows, and never the scores of all pairs of tokens."""
    traced = run(TraceRequest(target=f"{PROGRAMS / 'flexible.py'}:build"))
    assert any("flex_attention" in birth.operation for birth in traced.births)
    assert max(birth.nbytes for birth in traced.births) == 2 * 4 * 1024 * 64 * 4
