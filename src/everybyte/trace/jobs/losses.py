"""The losses of transformers' releases: the installed one computes a step's loss in one way, earlier ones in others, and logits are the largest tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

IGNORED = -100


def use_loss(model: Any, loss: str) -> None:
    """Lets the model compute its loss as the release does that the estimate names `loss` (engines/transformers/train.py loss)."""
    if loss in ("hf", "hf-outputs-alive"):
        return
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if loss == "hf-rebound":
        # modeling files before 4.46 bind `logits` to its fp32 copy
        inner.get_output_embeddings().register_forward_hook(lambda module, args, out: out.float())
    inner.loss_function = _unraised if loss == "hf-unraised" else _shifted


def _shifted(logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: Any) -> torch.Tensor:
    """transformers 4.46 to 4.49 (loss/loss_utils.py ForCausalLMLoss): a contiguous copy without the last position, in fp32."""
    logits = logits.float()
    return _cross_entropy(logits[..., :-1, :].contiguous(), labels, vocab_size)


def _unraised(logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: Any) -> torch.Tensor:
    """Older modeling files of GPT-2 and its kin: the copy in the logits' own type."""
    return _cross_entropy(logits[..., :-1, :].contiguous(), labels, vocab_size)


def _cross_entropy(shifted: torch.Tensor, labels: torch.Tensor, vocab_size: int) -> torch.Tensor:
    targets = labels[..., 1:].contiguous().view(-1)
    return nn.functional.cross_entropy(shifted.view(-1, vocab_size), targets, ignore_index=IGNORED)
