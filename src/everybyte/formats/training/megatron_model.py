"""The shape of a model from Megatron-LM's flags; what no flag says follows from Megatron's defaults."""

from __future__ import annotations

import csv
import re
from functools import cache
from os.path import dirname, join

from everybyte.formats.place import Given
from everybyte.formats.training.run import Run
from everybyte.formats.values import boolean, whole

SHAPE = "model.shape"
FLAGS = ("num_layers", "hidden_size", "encoder_num_layers", "num_attention_heads")
MLA = {"q_lora": None, "kv_lora": 32, "qk_nope": 128, "qk_rope": 64, "v": 128}
"""Defaults of the latent attention's sizes (megatron/training/arguments.py)."""


def read_model(run: Run) -> None:
    """States model.shape, where the flags hold one."""
    run.bag.take("use_checkpoint_args" if any(key in run.bag for key in FLAGS) else "use_mcore_models")
    if not any(key in run.bag for key in FLAGS):
        _elsewhere(run)
        return
    activation, norm, position = _activation(run), _norm(run), _position(run)
    length = run.whole("seq_length", "encoder_seq_length")
    if position == "learned" and "max_position_embeddings" not in run.bag and length:
        run.draft.infer(f"{SHAPE}.max_positions", length, "the length of the sequences; --max-position-embeddings is not given")
    _heads(run)
    _ffn(run, gated=activation == "swiglu")
    _tied(run)
    _vocabulary(run)
    experts = run.bag.peek("num_experts")
    latent = run.bag.take("multi_latent_attention")
    is_latent = latent is not None and bool(boolean(latent.value))
    if not is_latent:
        run.bag.ignore(("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"))
    else:
        _latent(run)
    _layers_with_experts(run)
    _window(run)
    family, reason = _family(run, is_latent=is_latent, has_experts=experts is not None, words=(activation, norm, position))
    run.draft.infer(f"{SHAPE}.family", family, reason)


def _elsewhere(run: Run) -> None:
    stored = run.bag.take("use_checkpoint_args", "heterogeneous_layers_config_path")
    if stored is not None:
        run.draft.miss("model", f"its sizes are in the checkpoint or file that {stored.place} names")
    run.bag.ignore(
        (
            "normalization",
            "swiglu",
            "tokenizer_type",
            "tokenizer_model",
            "untie_embeddings_and_output_weights",
            "disable_bias_linear",
            "position_embedding_type",
            "group_query_attention",
            "num_query_groups",
            "make_vocab_size_divisible_by",
            "vocab_size",
        )
    )


def _activation(run: Run) -> str:
    for key, word in (("swiglu", "swiglu"), ("squared_relu", "squared-relu"), ("quick_geglu", "geglu")):
        given = run.bag.take(key)
        if given is not None and boolean(given.value):
            run.draft.state(f"{SHAPE}.activation", word, given.place)
            return word
    glu = run.bag.take("glu_activation")
    if glu is not None:
        run.draft.state(f"{SHAPE}.activation", str(glu.value), glu.place)
        return str(glu.value)
    run.draft.default(f"{SHAPE}.activation", "gelu", of="Megatron-LM")
    return "gelu"


def _norm(run: Run) -> str:
    given = run.bag.take("normalization")
    if given is not None:
        word = "rmsnorm" if "rms" in str(given.value).casefold() else "layernorm"
        run.draft.state(f"{SHAPE}.norm", word, given.place)
        return word
    run.draft.default(f"{SHAPE}.norm", "layernorm", of="Megatron-LM")
    return "layernorm"


def _position(run: Run) -> str:
    rotary, kind, none = (run.bag.take(key) for key in ("use_rotary_position_embeddings", "position_embedding_type", "no_position_embedding"))
    word, place = "learned", None
    if rotary is not None and boolean(rotary.value):
        word, place = "rope", rotary.place
    elif kind is not None:
        text = str(kind.value)
        word, place = ("rope" if text in ("rope", "mrope", "yarn") else "none" if text in ("none", "alibi") else "learned"), kind.place
    elif none is not None and boolean(none.value):
        word, place = "none", none.place
    if place is not None:
        run.draft.state(f"{SHAPE}.position", word, place)
    else:
        run.draft.default(f"{SHAPE}.position", word, of="Megatron-LM")
    return word


def _heads(run: Run) -> None:
    """--num-query-groups counts with --group-query-attention alone."""
    switch, groups = run.bag.take("group_query_attention"), run.bag.take("num_query_groups")
    if groups is None:
        return
    if switch is not None and boolean(switch.value):
        run.draft.state(f"{SHAPE}.kv_heads", whole(groups.value), groups.place)
    else:
        run.draft.find(
            "groups-without-switch",
            "warning",
            groups.place,
            "--num-query-groups has no effect without --group-query-attention: every head has keys and values of its own",
            "add --group-query-attention",
        )


def _ffn(run: Run, *, gated: bool) -> None:
    hidden = run.whole("hidden_size")
    if "ffn_hidden_size" in run.bag or not hidden:
        return
    if gated:
        size = int(4 * hidden * 2 / 3 / 64) * 64
        run.draft.infer(f"{SHAPE}.ffn", size, "two thirds of 4 x hidden, in steps of 64, as Megatron-LM has it with --swiglu")
    else:
        run.draft.infer(f"{SHAPE}.ffn", 4 * hidden, "4 x hidden, as Megatron-LM has it")


def _tied(run: Run) -> None:
    untied, no_bias, bias = (run.bag.take(key) for key in ("untie_embeddings_and_output_weights", "disable_bias_linear", "add_bias_linear"))
    if untied is not None and boolean(untied.value):
        run.draft.state(f"{SHAPE}.tied", False, untied.place)
    else:
        run.draft.default(f"{SHAPE}.tied", True, of="Megatron-LM")
    if no_bias is not None and boolean(no_bias.value):
        run.draft.state(f"{SHAPE}.bias", False, no_bias.place)
    elif bias is not None:
        run.draft.state(f"{SHAPE}.bias", boolean(bias.value), bias.place)
    else:
        run.draft.default(f"{SHAPE}.bias", True, of="Megatron-LM")


def _vocabulary(run: Run) -> None:
    """The table is padded to a multiple of 128 x TP."""
    given, kind, step = run.bag.take("vocab_size"), run.bag.take("tokenizer_type"), run.bag.take("make_vocab_size_divisible_by")
    run.bag.take("tokenizer_model", "vocab_file", "merge_file")
    count = whole(given.value) if given is not None else None
    if given is not None and count:
        if kind is not None and str(kind.value) == "NullTokenizer":
            count += 1  # the end-of-document token
        run.draft.state(f"{SHAPE}.vocab", count, given.place)
    elif kind is not None and str(kind.value) in _tokenizers():
        count, source = _tokenizers()[str(kind.value)]
        run.draft.infer(f"{SHAPE}.vocab", count, source)
    if not count:
        run.draft.miss(f"{SHAPE}.vocab", "the vocabulary is the tokenizer's, whose file is not read; give --vocab-size")
        return
    multiple = ((whole(step.value) if step is not None else None) or 128) * (run.whole("tensor_model_parallel_size", "model_parallel_size") or 1)
    padded = -(-count // multiple) * multiple
    if padded != count and "padded_vocab_size" not in run.bag and "pad_vocab_size_to" not in run.bag:
        run.draft.infer(f"{SHAPE}.padded_vocab", padded, f"{count} padded to a multiple of {multiple}")


@cache
def _tokenizers() -> dict[str, tuple[int, str]]:
    with open(join(dirname(__file__), "tokenizers.csv"), encoding="utf-8", newline="") as lines:
        return {name: (int(count), source) for name, count, source in list(csv.reader(lines))[1:] if count}


def _latent(run: Run) -> None:
    keys = {"q_lora": "q_lora_rank", "kv_lora": "kv_lora_rank", "qk_nope": "qk_head_dim", "qk_rope": "qk_pos_emb_head_dim", "v": "v_head_dim"}
    for name, usual in MLA.items():
        if keys[name] not in run.bag and usual is not None:
            run.draft.default(f"{SHAPE}.mla.{name}", usual, of="Megatron-LM")


def _layers_with_experts(run: Run) -> None:
    """`([0]*3+[1]*58)`, or every n-th layer."""
    given, layers = run.bag.take("moe_layer_freq"), run.whole("num_layers")
    if given is None or not layers:
        return
    pattern = _pattern(given, layers)
    if pattern is None:
        run.draft.find("layer-pattern", "warning", given.place, f"--moe-layer-freq {given.value} is not understood; every layer counts as one of experts")
    elif not all(pattern):
        run.draft.state(f"{SHAPE}.moe_layers", [index for index, on in enumerate(pattern) if on], given.place)


def _pattern(given: Given, layers: int) -> list[int] | None:
    every = whole(given.value)
    if every:
        return [1 if index % every == 0 else 0 for index in range(layers)]
    if isinstance(given.value, list):
        found = [whole(item) or 0 for item in given.value]
        return found if len(found) == layers else None
    parts = re.findall(r"\[([01](?:\s*,\s*[01])*)\]\s*(?:\*\s*(\d+))?", str(given.value))
    found = [int(bit) for bits, times in parts for _ in range(int(times or 1)) for bit in bits.replace(" ", "").split(",")]
    return found if len(found) == layers else None


def _window(run: Run) -> None:
    given = run.bag.take("window_size")
    if given is not None and (sizes := re.findall(r"\d+", str(given.value))):
        run.draft.state(f"{SHAPE}.sliding_window", int(sizes[0]), given.place)


def _family(run: Run, *, is_latent: bool, has_experts: bool, words: tuple[str, str, str]) -> tuple[str, str]:
    if "hybrid_layer_pattern" in run.bag or "hybrid_override_pattern" in run.bag:
        return "hybrid", "a hybrid layer pattern"
    if is_latent:
        return "mla", "multi-latent attention"
    if has_experts:
        return "moe", "--num-experts"
    if words == ("swiglu", "rmsnorm", "rope"):
        return "llama", "swiglu, RMSNorm and rotary positions"
    return "gpt", "its activation, norm and positions"
