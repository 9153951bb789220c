"""Runs a job: the plain training loop whose memory `framework: pytorch` describes, and inference as `engine: transformers` describes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from build import build_batch, build_model, build_optimizer
from jobs import MARK_BYTES

Fields = dict[str, Any]


def nothing(out: Any) -> None:
    """Watches nothing."""


def mark(device: str) -> None:
    """Leaves a mark in whatever records the memory."""
    torch.empty(MARK_BYTES, dtype=torch.uint8, device=device)


class Training:
    """A model, its batch and its optimizer, and steps over them."""

    def __init__(self, job: Fields, device: str) -> None:
        self.train, self.device = job["train"], device
        self.model = build_model(job, device)
        self.batch = build_batch(job, device)
        self.optimizer = build_optimizer(self.model, self.train)
        decoder = "config" in job["model"] and job["model"]["config"]["architectures"][0].endswith(("ForCausalLM", "LMHeadModel"))
        self.options = {"use_cache": False} if decoder else {}

    def step(self, after_forward: Callable[[Any], None] = nothing, after_backward: Callable[[], None] = lambda: None) -> None:
        """One optimizer step. `after_forward` is shown the output, outside autocast."""
        mark(self.device)
        micro_batches = self.train.get("grad_accum", 1)
        for _ in range(micro_batches):
            self.forward_backward(micro_batches, after_forward)
        after_backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.train.get("zero_grad_set_to_none", True))
        mark(self.device)

    def forward_backward(self, micro_batches: int, after_forward: Callable[[Any], None]) -> None:
        """One micro-batch. The output lives until its backward has run, as in most loops."""
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.train["precision"].endswith("mixed")):
            out = self.model(**self.batch, **self.options)
        after_forward(out)
        (out.loss / micro_batches).backward()


class Inference:
    """A model and its prompt."""

    def __init__(self, job: Fields, device: str) -> None:
        self.serve, self.device = job["serve"], device
        self.model = build_model(job, device)
        self.batch = build_batch(job, device)
        if "new_tokens" in self.serve["extra"]:
            # random weights would end a sequence by chance: it ends at its length
            self.model.generation_config.eos_token_id = self.model.generation_config.pad_token_id = None  # type: ignore[union-attr]

    def run(self) -> int:
        """Generates, or runs one forward pass; returns the bytes of the cache at its end."""
        extra = self.serve["extra"]
        mark(self.device)
        with torch.no_grad():
            if "use_cache" in extra:
                out = self.model(**self.batch, use_cache=extra["use_cache"])
            else:
                count = extra["new_tokens"]
                out = self.model.generate(  # type: ignore[operator]
                    **self.batch, max_new_tokens=count, do_sample=False, return_dict_in_generate=True
                )
        mark(self.device)
        return cache_bytes(getattr(out, "past_key_values", None))


def cache_bytes(cache: Any) -> int:
    """Bytes of the keys and values of a cache of transformers."""
    layers = getattr(cache, "layers", None) or []
    tensors = [t for layer in layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None)) if isinstance(t, torch.Tensor)]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
