"""Files that are dropped: configs, headers of weights, job files; and what is none of them."""

from __future__ import annotations

import json
import struct

import pytest
import shared_jobs as jobs
import yaml
from checkpoint_files import GGUF_LLAMA_TENSORS, LLAMA_CONFIG, gguf_bytes, gguf_llama_metadata, safetensors_bytes
from visitor import Visitor

OTHER = {**LLAMA_CONFIG, "hidden_size": 1024, "num_hidden_layers": 7, "intermediate_size": 3072, "vocab_size": 50_000, "_name_or_path": "lab/llama-of-ours"}
WEIGHTS = safetensors_bytes({"model.embed_tokens.weight": ("BF16", [96, 64])}, {"format": "pt"})
BROKEN = {
    "no JSON": ({"config.json": b"{nonsense"}, "config.json"),
    "a list": ({"config.json": b"[1, 2]"}, "config.json"),
    "no model": ({"config.json": b'{"colour": "blue"}'}, ""),
    "unknown family": ({"config.json": b'{"model_type": "abacus", "architectures": ["AbacusForCounting"]}'}, "Abacus"),
    "empty": ({"config.json": b""}, "config.json"),
    "no GGUF": ({"model.gguf": b"hello there, this is text"}, "model.gguf"),
    "cut GGUF": ({"model.gguf": gguf_bytes(gguf_llama_metadata(), GGUF_LLAMA_TENSORS)[:200]}, "model.gguf"),
    "alone": ({"model.safetensors": WEIGHTS}, "config.json"),
    "lying header": ({"model.safetensors": struct.pack("<Q", 2**60) + b"{}", "config.json": json.dumps(LLAMA_CONFIG).encode()}, "model.safetensors"),
    "no job": ({"job.yaml": b"model: [unclosed"}, "job.yaml"),
    "a picture": ({"cat.png": b"\x89PNG\r\n\x1a\n"}, ""),
    "nothing known": ({"notes.txt": b"hello"}, ""),
}


def _told(visitor: Visitor, words: str) -> str:
    """What stands below the field of the model once it has these words."""
    line = visitor.page.locator("#ask .picker [role=status]", has_text=words)
    line.wait_for()
    return str(line.inner_text())


def test_config_of_a_model_that_no_catalogue_has(visitor: Visitor) -> None:
    """A dropped config.json becomes the model: it is answered, named after itself, and stands in the address with all its settings."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.drop({"config.json": json.dumps(OTHER).encode()})
    _told(visitor, "in 7 layers")
    answer = visitor.settle()
    assert visitor.job == {**{key: value for key, value in jobs.SMALL.items() if key != "name"}, "model": {"config": OTHER}}
    assert answer["model"]["layers"] == 7
    assert visitor.field("Model").input_value() == "lab/llama-of-ours"
    visitor.page.go_back()
    visitor.settle()
    assert visitor.field("Model").input_value() == jobs.SMALL["model"]


def test_chosen_instead_of_dropped(visitor: Visitor) -> None:
    """The button opens the system's dialog for files, and what is chosen there is read like what is dropped; the same file can be chosen twice."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    for _ in range(2):
        with visitor.page.expect_file_chooser() as chooser:
            visitor.page.get_by_role("button", name="choose a file").click()
        chooser.value.set_files({"name": "config.json", "mimeType": "application/json", "buffer": json.dumps(OTHER).encode()})
        _told(visitor, "in 7 layers")
        assert visitor.settle()["model"]["layers"] == 7
        visitor.page.get_by_role("button", name="Serve with vLLM").click()
        visitor.settle()


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_job_file(visitor: Visitor, ending: str) -> None:
    """A dropped job file takes the place of the whole job."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    text = yaml.safe_dump(jobs.VLLM) if ending == "yaml" else json.dumps(jobs.VLLM)
    visitor.drop({f"served.{ending}": text.encode()})
    _told(visitor, "all its settings")
    visitor.settle()
    assert visitor.job["serve"]["context"] == 32768
    assert visitor.job["name"] == jobs.VLLM["name"]
    assert visitor.field("Engine").input_value() == "vllm"


def test_safetensors_with_its_config(visitor: Visitor) -> None:
    """A safetensors file and its config.json together make the model, with a note on what the weights hold."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.drop({"model.safetensors": WEIGHTS, "config.json": json.dumps(LLAMA_CONFIG).encode()})
    assert "safetensors" in _told(visitor, "in 2 layers")
    assert visitor.settle()["model"]["layers"] == 2
    assert visitor.job["model"] == {"config": LLAMA_CONFIG}


def test_gguf(visitor: Visitor) -> None:
    """A GGUF file makes a job for llama.cpp with its own model and kind of weights; that is no training any more."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.drop({"tiny.gguf": gguf_bytes({**gguf_llama_metadata(), "general.file_type": 7, "general.name": "Tiny"}, GGUF_LLAMA_TENSORS)})
    assert "Tiny" in _told(visitor, "in 2 layers")
    assert visitor.settle()["fits"]
    assert visitor.job["serve"] == {"engine": "llama.cpp", "weights": "q8_0"}
    assert "train" not in visitor.job
    assert visitor.field("Weights").input_value() == "q8_0"


def test_gguf_with_a_long_header(visitor: Visitor) -> None:
    """Of a GGUF file only the beginning is sent; where the vocabulary makes the header longer, more of it is, and never the weights."""
    words = [f"word {number} of a long vocabulary".ljust(50) for number in range(50_000)]
    content = gguf_bytes({**gguf_llama_metadata(), "general.file_type": 7, "tokenizer.ggml.tokens": words}, GGUF_LLAMA_TENSORS)
    assert len(content) > 2.5 * 2**20
    visitor.open(jobs.SMALL)
    visitor.settle()
    sent: list[int] = []
    visitor.page.on("request", lambda request: "/api/read" in request.url and sent.append(len(request.post_data_buffer or b"")))
    visitor.drop({"long.gguf": content}, zeros=64 * 2**20)
    _told(visitor, "in 2 layers")
    visitor.settle()
    assert len(sent) == 2, "once the usual beginning, once what the server said it needs"
    assert max(sent) < 12 * 2**20


def test_what_cannot_be_read_changes_nothing(visitor: Visitor) -> None:
    """A file that is no model and no job gives one message that names it or what is missing; job, address and answer stay; the next file is read."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    before, length = visitor.page.url, visitor.page.evaluate("history.length")
    status = visitor.page.locator("#ask .picker [role=status]")
    for kind, (files, named) in BROKEN.items():
        status.evaluate("status => status.replaceChildren()")
        visitor.drop(files)
        message = status.locator(".bad")
        message.wait_for()
        assert named in message.inner_text(), kind
        assert len(message.inner_text()) < 400, kind
        assert (visitor.page.url, visitor.page.evaluate("history.length")) == (before, length), kind
    visitor.settle()
    visitor.drop({"config.json": json.dumps(OTHER).encode()})
    _told(visitor, "in 7 layers")
    assert status.locator(".bad").count() == 0


def test_text_that_is_dragged_is_no_file(visitor: Visitor) -> None:
    """Dragging text over the page is left to the browser: nothing lights up and nothing is read."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.evaluate(
        """() => {
          const carrier = new DataTransfer();
          carrier.setData("text/plain", "hello");
          for (const kind of ["dragover", "drop"]) document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: carrier, bubbles: true, cancelable: true }));
        }"""
    )
    assert not visitor.page.evaluate("document.body.classList.contains('dropping')")
    assert visitor.page.locator("#ask .picker [role=status]").inner_text() == ""


def test_the_page_lights_up_while_a_file_is_over_it(visitor: Visitor) -> None:
    """While a file is dragged over the page it says what may be dropped; when the file leaves, it no longer does."""
    visitor.open(jobs.SMALL)
    drag = """kind => {
      const carrier = new DataTransfer();
      carrier.items.add(new File(["{}"], "config.json"));
      document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: carrier, bubbles: true, cancelable: true }));
      return getComputedStyle(document.body, "::after").content;
    }"""
    visitor.settle()
    assert "config.json" in visitor.page.evaluate(drag, "dragover")
    assert visitor.page.evaluate(drag, "dragleave") == "none"


@pytest.mark.parametrize("kind", ["yaml", "json", "toml"])
def test_job_as_text(visitor: Visitor, kind: str) -> None:
    """The job is there as text; another one in YAML, JSON or TOML, put in its place, is taken over."""
    texts = {
        "yaml": yaml.safe_dump(jobs.VLLM),
        "json": json.dumps(jobs.VLLM),
        "toml": 'model = "meta-llama/Meta-Llama-3.1-8B"\n[hardware]\ngpu = "l40s"\n[serve]\nengine = "vllm"\ncontext = 32768\n',
    }
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.paste(texts[kind])
    visitor.page.wait_for_function("() => document.querySelector('#ask textarea').closest('details').querySelector('button').disabled")
    visitor.settle()
    assert visitor.job["serve"]["context"] == 32768


def test_job_text_with_a_fault(visitor: Visitor) -> None:
    """A text that is no job is told with its place, and the job stays."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    before = visitor.page.url
    visitor.paste("model: Qwen/Qwen2.5-0.5B\ntrain: {micro_batch: 1, seq_len: 512, colour: blue}\n")
    visitor.page.locator("#ask .bad", has_text="train.colour").wait_for()
    assert visitor.page.url == before
