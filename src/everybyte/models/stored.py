"""How a checkpoint says that its weights are packed: `quantization_config` in config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everybyte.layers.recording.setup import Packed

BITSANDBYTES = {4: "nf4", 8: "int8"}
PLAIN_ROUTERS = (".gate", ".router")
"""Routers are no linear layers for GPTQ and AWQ, and stay plain."""


def packed_of(fields: Mapping[str, Any]) -> Packed | None:
    """The packed form of a config's linear layers, or None where they are plain or packed in a way that is not known here."""
    given = fields.get("quantization_config")
    if given is None and isinstance(fields.get("text_config"), Mapping):
        given = fields["text_config"].get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    method = given.get("quant_method")
    skip = ("lm_head", "embed_out", *_patterns(given.get("modules_to_not_convert") or given.get("ignore")))
    if method == "fp8":
        block = given.get("weight_block_size")
        side = block[0] if isinstance(block, list) and block and isinstance(block[0], int) else 0
        return Packed("fp8", skip, side, bits=8, experts=True)
    if method == "mxfp4":
        return Packed("mxfp4", skip, 32, experts=True)
    if method in ("gptq", "awq"):
        bits, group = given.get("bits", 4), given.get("group_size", given.get("q_group_size", 128))
        return Packed(str(method), (*skip, *PLAIN_ROUTERS), group, bits=bits) if isinstance(bits, int) and isinstance(group, int) else None
    if method in ("modelopt", "modelopt_fp4"):
        algorithm, left = given.get("quant_algo", "NVFP4" if method == "modelopt_fp4" else None), _patterns(given.get("exclude_modules"))
        groups = {"FP8": ("fp8", 0, 8), "NVFP4": ("nvfp4", 16, 4)}.get(str(algorithm))
        return Packed(groups[0], (*skip, *left), groups[1], bits=groups[2], experts=True) if groups else None
    if method == "compressed-tensors":
        return _compressed(given, skip)
    if method == "bitsandbytes":
        four = bool(given.get("load_in_4bit"))
        return Packed(BITSANDBYTES[4 if four else 8], skip, 64, double=bool(given.get("bnb_4bit_use_double_quant")))
    return None


def _compressed(given: Mapping[str, Any], skip: tuple[str, ...]) -> Packed | None:
    """llm-compressor's form: what all linear layers are packed in; None where groups of layers differ or the numbers are of another kind."""
    groups = given.get("config_groups")
    weights = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
    if len(weights) != 1 or not isinstance(weights[0], Mapping):
        return None
    bits, kind, group = weights[0].get("num_bits"), weights[0].get("type"), weights[0].get("group_size")
    skip = (*skip, *_expressions(given.get("ignore")))
    if kind == "int" and bits == 4:
        return Packed("int4", skip, group if isinstance(group, int) and group > 0 else -1, experts=True)
    if kind == "int" and bits == 8:
        return Packed("int8", skip, 0, bits=8, experts=True)
    if kind == "float" and bits == 8:
        block = weights[0].get("block_structure")
        return Packed("fp8", skip, block[0] if isinstance(block, list) and block and isinstance(block[0], int) else 0, bits=8, experts=True)
    return Packed("nvfp4", skip, 16, experts=True) if kind == "float" and bits == 4 and group == 16 else None


def _expressions(listed: Any) -> tuple[str, ...]:
    r"""Regular expressions (`re:.*mlp\\.(gate|up)_proj.*`) as patterns of module names, an alternative each."""
    found: list[str] = []
    for name in listed if isinstance(listed, list) else []:
        if isinstance(name, str) and name.startswith("re:"):
            text = name.removeprefix("re:").removeprefix("^").removesuffix("$").replace("\\.", "\0").replace(".*", "*").replace("\0", ".")
            inner = re.search(r"\(([^()]*)\)", text)
            found += [text.replace(inner[0], word) for word in inner[1].split("|")] if inner else [text]
    return tuple(found)


def _patterns(listed: Any) -> tuple[str, ...]:
    """Module names without the part that differs from layer to layer."""
    names = listed if isinstance(listed, list) else []
    found = (re.sub(r"^(?:model\.)?(?:language_model\.)?(?:layers\.(?:\d+|\*)\.)?", "", n) for n in names if isinstance(n, str) and not n.startswith("re:"))
    return tuple(dict.fromkeys(n for n in found if n))
