"""FlashAttention 2 and 3 of a job: their package cannot run here, but torch's own flash kernel takes and keeps the same tensors."""

from __future__ import annotations

from typing import Any

import torch

FLASH = "everybyte"
"""Under which name transformers finds the attention function; one with `flash` in it would be looked for on the hub."""


def register_flash() -> None:
    """Lets a model of transformers be built with `attn_implementation=FLASH`."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(FLASH, _attend)
    # as for flash_attention_2: no mask is made where nothing is padded (masking_utils.py flash_attention_mask)
    AttentionMaskInterface.register(FLASH, lambda *_, **__: None)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers/integrations/flash_attention.py: queries, keys and values of 16 bit in (b, s, a, d), grouped heads as they are; gives (b, s, a, d)."""
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.bfloat16
    q, k, v = (tensor if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.to(kind) for tensor in (query, key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scaling)[0]
    return out.transpose(1, 2), None
