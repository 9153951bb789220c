"""GGUF heads are read with every claim checked, and become the config that the models read."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import GGUF_LLAMA_TENSORS, gguf_bytes, gguf_llama_metadata, gguf_text

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.catalog import model_config
from everybyte.checkpoint import StoredTensor, config_from_gguf, read_checkpoint
from everybyte.checkpoint.gguf import _ARCHITECTURES
from everybyte.checkpoint.gguf_file import _GGML_TYPES, SkippedArray, split_names
from everybyte.models.count import parameter_count
from everybyte.models.registry import build

HEAD = b"GGUF" + struct.pack("<I", 3)


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def refused(where: str, *parts: str) -> None:
    with pytest.raises(BadInput) as error:
        read_checkpoint(where)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_a_model(tmp_path: Path) -> None:
    """A file gives the config, the tensors in PyTorch's order with their packed bytes, and its metadata; token lists are counted."""
    metadata = gguf_llama_metadata() | {"general.tags": ["a", "b"], "llama.rope.scaling.factors": [1.0, 2.0], "llama.long": list(range(5000))}
    found = read_checkpoint(written(tmp_path / "m.gguf", gguf_bytes(metadata, GGUF_LLAMA_TENSORS)))
    assert found.name == "m"
    assert found.tensors[0] == StoredTensor("token_embd.weight", "q8_0", (96, 64), 96 * 64 // 32 * 34)
    assert found.tensors[3] == StoredTensor("blk.0.attn_q.weight", "q4_0", (64, 64), 64 * 64 // 32 * 18)
    assert found.config is not None
    assert {k: found.config[k] for k in ("model_type", "hidden_size", "num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings")} == {
        "model_type": "llama",
        "hidden_size": 64,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 96,
        "tie_word_embeddings": False,
    }
    assert found.metadata["llama.rope.scaling.factors"] == [1.0, 2.0]
    assert found.metadata["tokenizer.ggml.tokens"] == SkippedArray(96)
    assert found.metadata["llama.long"] == SkippedArray(5000)
    assert found.metadata["format"] == "gguf"


def test_folder_with_one_gguf(tmp_path: Path) -> None:
    """A folder with one model in GGUF, and a projector beside it, is that model."""
    written(tmp_path / "m.gguf", gguf_bytes(gguf_llama_metadata(), GGUF_LLAMA_TENSORS))
    written(tmp_path / "mmproj-m.gguf", b"")
    assert len(read_checkpoint(str(tmp_path)).tensors) == 4


def test_split_file(tmp_path: Path) -> None:
    """Of a split file, any part or the folder gives the tensors of all parts and the metadata of the first."""
    names = split_names("m-00002-of-00002.gguf")
    assert names == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    items = list(GGUF_LLAMA_TENSORS.items())
    written(tmp_path / names[0], gguf_bytes(gguf_llama_metadata(), dict(items[:2])))
    written(tmp_path / names[1], gguf_bytes({"split.no": 1}, dict(items[2:])))
    whole = read_checkpoint(str(tmp_path))
    assert [t.name for t in whole.tensors] == list(GGUF_LLAMA_TENSORS)
    assert read_checkpoint(str(tmp_path / names[1])).tensors == whole.tensors
    written(tmp_path / names[1], gguf_bytes({}, dict(items[:1])))
    refused(str(tmp_path / names[0]), "tensor 'token_embd.weight'", "twice")
    (tmp_path / names[1]).unlink()
    refused(str(tmp_path / names[0]), "1 of 2 parts", "'m-00002-of-00002.gguf'")


def test_types_are_ours() -> None:
    """Every ggml type has a number format of ours with ggml's block."""
    from everybyte.basics.dtypes import dtype

    assert {dtype(name).name for name in _GGML_TYPES.values()} == set(_GGML_TYPES.values())


def test_same_as_the_library(tmp_path: Path) -> None:
    """Files that the gguf package writes are read as it reads them: names, shapes, types and bytes of tensors, and metadata."""
    gguf = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key, value in gguf_llama_metadata().items():
        if isinstance(value, int):
            writer.add_uint32(key, value)
    writer.add_token_list([f"t{i}" for i in range(96)])
    writer.add_tensor("token_embd.weight", np.zeros((96, 64), dtype=np.float16))
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((8, 144), dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = gguf.GGUFReader(tmp_path / "m.gguf")
    ours = read_checkpoint(str(tmp_path / "m.gguf"))
    assert [(t.name, t.shape, t.nbytes) for t in ours.tensors] == [(t.name, tuple(int(n) for n in t.shape[::-1]), t.n_bytes) for t in theirs.tensors]
    assert ours.tensors[1].dtype == "q4_k"


# ---- configs of the architectures


def fake_tensors(*names: str, shapes: dict[str, tuple[int, ...]] | None = None) -> list[StoredTensor]:
    return [StoredTensor(name, "fp32", shape, 4) for name, shape in {**dict.fromkeys(names, (1,)), **(shapes or {})}.items()]


EMBEDDING = "token_embd.weight"


def described(arch: str, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Metadata as llama.cpp's converter writes them for `config`."""
    heads = config["num_attention_heads"]
    return {"general.architecture": arch} | {
        f"{arch}.{key}": value
        for key, value in {
            "block_count": config["num_hidden_layers"],
            "context_length": config["max_position_embeddings"],
            "embedding_length": config["hidden_size"],
            "feed_forward_length": config["intermediate_size"],
            "attention.head_count": heads,
            "attention.head_count_kv": config.get("num_key_value_heads", heads),
            **{key.replace("__", "."): value for key, value in more.items()},
        }.items()
    }


ROUND_TRIPS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    # catalogue name: (architecture, further metadata, names of tensors that decide)
    "meta-llama/Meta-Llama-3.1-8B": ("llama", {}, ("output.weight",)),
    "mistralai/Mixtral-8x7B-v0.1": ("llama", {"expert_count": 8, "expert_used_count": 2}, ("output.weight",)),
    "Qwen/Qwen2.5-0.5B": ("qwen2", {}, ()),
    "Qwen/Qwen3-8B": ("qwen3", {"attention__key_length": 128}, ("output.weight",)),
    "Qwen/Qwen1.5-MoE-A2.7B": (
        "qwen2moe",
        {"expert_count": 60, "expert_used_count": 4, "expert_feed_forward_length": 1408, "expert_shared_feed_forward_length": 5632},
        ("output.weight",),
    ),
    "Qwen/Qwen3-30B-A3B": (
        "qwen3moe",
        {"expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768, "attention__key_length": 128},
        ("output.weight",),
    ),
    "google/gemma-2b": ("gemma", {"attention__key_length": 256}, ()),
    "google/gemma-2-2b": ("gemma2", {"attention__key_length": 256, "attention__sliding_window": 4096}, ()),
    "google/gemma-3-1b-it": ("gemma3", {"attention__key_length": 256, "attention__sliding_window": 512}, ()),
    "microsoft/Phi-3-mini-4k-instruct": ("phi3", {"attention__sliding_window": 2047}, ("output.weight",)),
    "openai/gpt-oss-20b": (
        "gpt-oss",
        {"expert_count": 32, "expert_used_count": 4, "expert_feed_forward_length": 2880, "attention__key_length": 64, "attention__sliding_window": 128},
        ("output.weight",),
    ),
    "bigcode/starcoder2-7b": ("starcoder2", {"attention__sliding_window": 4096}, ("blk.0.attn_q.bias",)),
    "deepseek-ai/DeepSeek-V3": (
        "deepseek2",
        {
            "attention__head_count_kv": 1,
            "attention__q_lora_rank": 1536,
            "attention__kv_lora_rank": 512,
            "attention__key_length": 576,
            "attention__value_length": 512,
            "attention__key_length_mla": 192,
            "attention__value_length_mla": 128,
            "rope__dimension_count": 64,
            "expert_count": 256,
            "expert_used_count": 8,
            "expert_shared_count": 1,
            "expert_feed_forward_length": 2048,
            "leading_dense_block_count": 3,
            "expert_group_count": 8,
            "expert_group_used_count": 4,
            "expert_weights_scale": 2.5,
        },
        ("output.weight", "blk.3.exp_probs_b.bias"),
    ),
}

SIZES = """
model_type architectures hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size vocab_size max_position_embeddings
num_local_experts num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size n_routed_experts n_shared_experts first_k_dense_replace
q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim n_group topk_group layer_types use_bias tie_word_embeddings sliding_window
"""
SLIDING_IS_OFF = {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}  # their configs state a window and switch it off


def converted(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config of the catalogue, and the one that comes back from its GGUF."""
    arch, more, tensors = ROUND_TRIPS[name]
    original = model_config(name)
    stored = [*fake_tensors(*tensors), StoredTensor(EMBEDDING, "fp32", (original["vocab_size"], original["hidden_size"]), 4)]
    return original, config_from_gguf(described(arch, original, **more), stored)


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_config_comes_back(name: str) -> None:
    """The config that a model was converted from comes back in every field of size."""
    original, config = converted(name)
    for key in SIZES.split():
        if key in original and not (key == "sliding_window" and original["model_type"] in SLIDING_IS_OFF):
            assert config.get(key) == original[key], key
    assert config["tie_word_embeddings"] == original.get("tie_word_embeddings", original["model_type"].startswith(("gemma", "starcoder2")))


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_parameters_come_back(name: str) -> None:
    """The network built from the GGUF config has as many parameters as the one built from the original."""
    original, config = converted(name)
    assert parameter_count(build(config)) == parameter_count(build(original)) > 0


def test_gpt2_comes_back() -> None:
    """GPT-2 keeps the names that its own config uses."""
    original = model_config("gpt2")
    metadata = {
        f"gpt2.{k}": v
        for k, v in {"block_count": 12, "context_length": 1024, "embedding_length": 768, "feed_forward_length": 3072, "attention.head_count": 12}.items()
    }
    config = config_from_gguf({"general.architecture": "gpt2", **metadata}, [StoredTensor(EMBEDDING, "fp32", (50257, 768), 4)])
    for key in ("model_type", "architectures", "n_embd", "n_layer", "n_head", "n_positions", "vocab_size"):
        assert config[key] == original[key]
    assert (config["n_inner"], config["tie_word_embeddings"]) == (3072, True)


@pytest.mark.parametrize(("name", "kv_heads", "norms"), [("tiiuae/falcon-7b", 1, ()), ("tiiuae/falcon-40b", 8, ("blk.0.attn_norm_2.weight",))])
def test_falcon_comes_back(name: str, kv_heads: int, norms: tuple[str, ...]) -> None:
    """Both generations of Falcon are told apart by their norms."""
    original = model_config(name) | {"num_key_value_heads": kv_heads, "intermediate_size": 1, "max_position_embeddings": 2048}
    stored = [*fake_tensors(*norms), StoredTensor(EMBEDDING, "fp32", (original["vocab_size"], original["hidden_size"]), 4)]
    config = config_from_gguf(described("falcon", original, feed_forward_length=4 * original["hidden_size"]), stored)
    for key in (
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "multi_query",
        "new_decoder_architecture",
        "parallel_attn",
    ):
        assert config[key] == original[key], key
    assert config["num_kv_heads"] == kv_heads


def test_mamba_comes_back() -> None:
    """Mamba has its state sizes under ssm."""
    original = model_config("state-spaces/mamba-130m-hf")
    keys = {"block_count": 24, "context_length": 2**20, "embedding_length": 768, "feed_forward_length": 0, "attention.head_count": 0}
    ssm = {"ssm.conv_kernel": 4, "ssm.inner_size": 1536, "ssm.state_size": 16, "ssm.time_step_rank": 48}
    metadata = {"general.architecture": "mamba"} | {f"mamba.{k}": v for k, v in {**keys, **ssm}.items()}
    config = config_from_gguf(metadata, [StoredTensor(EMBEDDING, "fp32", (50280, 768), 4)])
    for key in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "state_size", "conv_kernel", "expand", "time_step_rank"):
        assert config[key] == original[key], key


def test_old_deepseek_lengths() -> None:
    """Files from before the latent cache state the length of a head as key_length; V2 chooses experts by softmax."""
    original = model_config("deepseek-ai/DeepSeek-V2-Lite")
    more = {
        "attention__kv_lora_rank": 512,
        "attention__key_length": 192,
        "attention__value_length": 128,
        "rope__dimension_count": 64,
        "expert_count": 64,
        "expert_used_count": 6,
        "expert_shared_count": 2,
        "expert_feed_forward_length": 1408,
        "leading_dense_block_count": 1,
    }
    config = config_from_gguf(described("deepseek2", original, **more), fake_tensors(shapes={EMBEDDING: (102400, 2048)}))
    assert config["model_type"] == "deepseek_v2"
    for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "n_routed_experts", "n_shared_experts"):
        assert config[key] == original[key], key
    assert config["q_lora_rank"] is None


def test_widths_of_experts_from_tensors() -> None:
    """Where metadata leave out the width of experts, the tensors have it."""
    original = model_config("Qwen/Qwen1.5-MoE-A2.7B")
    metadata = described("qwen2moe", original, expert_count=60, expert_used_count=4)
    shapes = {EMBEDDING: (151936, 2048), "blk.0.ffn_down_exps.weight": (60, 2048, 1408), "blk.0.ffn_down_shexp.weight": (2048, 5632)}
    stored = fake_tensors(shapes=shapes)
    config = config_from_gguf(metadata, stored)
    assert (config["moe_intermediate_size"], config["shared_expert_intermediate_size"]) == (1408, 5632)


def test_unsupported_architecture_is_refused_by_name() -> None:
    """An architecture without a rule is refused by its name, with what is supported."""
    with pytest.raises(Unsupported, match=r"general\.architecture: 'rwkv7' is not supported.*supported: llama, qwen2, .*mamba"):
        config_from_gguf({"general.architecture": "rwkv7"}, [])
    assert len(_ARCHITECTURES) == 15


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"general.architecture": None}, ("general.architecture", "missing")),
        ({"llama.block_count": None}, ("llama.block_count", "missing or 0")),
        ({"llama.block_count": 0}, ("llama.block_count", "missing or 0")),
        ({"llama.block_count": 2**30}, ("llama.block_count", "more than any network")),
        ({"llama.embedding_length": "64"}, ("llama.embedding_length", "not a whole number")),
        ({"llama.embedding_length": -64}, ("llama.embedding_length", "not a whole number")),
        ({"llama.embedding_length": 64.0}, ("llama.embedding_length", "not a whole number")),
        ({"llama.embedding_length": True}, ("llama.embedding_length", "not a whole number")),
        ({"llama.embedding_length": 2**40}, ("llama.embedding_length", "2^31")),
        ({"llama.embedding_length": SkippedArray(9)}, ("llama.embedding_length", "not a whole number")),
        ({"llama.attention.head_count": 7}, ("llama.attention.head_count", "do not divide")),
        ({"llama.attention.head_count_kv": [2, 4]}, ("llama.attention.head_count_kv", "layer to layer")),
        ({"llama.attention.layer_norm_rms_epsilon": "x"}, ("llama.attention.layer_norm_rms_epsilon", "not a number")),
        ({"llama.expert_count": 8}, ("llama.expert_used_count", "missing")),
        ({"tokenizer.ggml.tokens": None}, ("llama.vocab_size", "vocabulary")),
    ],
)
def test_metadata_that_make_no_sense(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    """Missing and impossible settings are refused with their key."""
    metadata = {k: v for k, v in (gguf_llama_metadata() | {"tokenizer.ggml.tokens": SkippedArray(96)} | change).items() if v is not None}
    with pytest.raises(BadInput) as error:
        config_from_gguf(metadata, [])
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_one_value_a_layer_is_one_value() -> None:
    """Settings that are written layer by layer count where all layers agree."""
    metadata = gguf_llama_metadata() | {"llama.attention.head_count_kv": [2, 2], "tokenizer.ggml.tokens": SkippedArray(96)}
    assert config_from_gguf(metadata, [])["num_key_value_heads"] == 2


# ---- files that lie


def pair(key: str, kind: int, raw: bytes) -> bytes:
    return gguf_text(key) + struct.pack("<I", kind) + raw


def table(*tensors: tuple[str, tuple[int, ...], int, int], data: int = 4096) -> bytes:
    """A file with the given tensor table (name, ggml shape, type, offset) and `data` bytes behind it."""
    head = HEAD + struct.pack("<QQ", len(tensors), 0)
    for name, shape, kind, offset in tensors:
        head += gguf_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return head + bytes(-len(head) % 32) + bytes(data)


ONE_PAIR = HEAD + struct.pack("<QQ", 0, 1)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("byte 0", "the file ends")),
        (b"GGML" + bytes(100), ("byte 0", "not a GGUF file")),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), ("byte 4", "big endian")),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), ("byte 4", "version 1")),
        (HEAD + struct.pack("<QQ", 2**60, 0) + bytes(100), ("byte 8", "1,152,921,504,606,846,976 tensors")),
        (HEAD + struct.pack("<QQ", 0, 2**63) + bytes(100), ("byte 8", "metadata pairs")),
        (ONE_PAIR + struct.pack("<Q", 2**63) + bytes(100), ("byte 32", "a key takes 9,223,372,036,854,775,808 bytes")),
        (ONE_PAIR + pair("k", 8, struct.pack("<Q", 2**63)), ("a text takes",)),
        (ONE_PAIR + pair("k", 8, struct.pack("<Q", 2) + b"\xff\xfe"), ("not UTF-8",)),
        (ONE_PAIR + pair("k", 99, bytes(8)), ("value type 99", "'k'")),
        (ONE_PAIR + pair("k", 9, struct.pack("<IQ", 9, 2**32) + bytes(100)), ("'k'", "arrays hold numbers or texts")),
        (ONE_PAIR + pair("k", 9, struct.pack("<IQ", 99, 1) + bytes(8)), ("'k'", "value type 99")),
        (ONE_PAIR + pair("k", 9, struct.pack("<IQ", 0, 2**62)), ("'k'", "the file ends")),
        (ONE_PAIR + pair("k", 9, struct.pack("<IQ", 8, 2**62)), ("'k'", "more than the file can hold")),
        (ONE_PAIR + pair("k", 9, struct.pack("<IQQ", 8, 1, 2**62)), ("a text of an array",)),
        (ONE_PAIR + pair("k", 6, struct.pack("<f", float("nan"))), ("'k'", "nan")),
        (ONE_PAIR + pair("k", 9, struct.pack("<IQd", 12, 1, float("inf"))), ("'k'", "inf")),
        (HEAD + struct.pack("<QQ", 0, 2) + pair("k", 0, b"\1") * 2, ("'k' stands twice",)),
        (ONE_PAIR + pair("general.alignment", 4, struct.pack("<I", 3)), ("general.alignment", "power of two")),
        (ONE_PAIR + pair("general.alignment", 8, gguf_text("32")), ("general.alignment", "power of two")),
        (table(("t", (64,), 99, 0)), ("tensor 't'", "type 99")),
        (table(("t", (64,), 4, 0)), ("tensor 't'", "type 4")),  # q4_2, withdrawn
        (table(("t", (1, 1, 1, 1, 1), 0, 0)), ("tensor 't'", "5 axes")),
        (table(("t", (33,), 2, 0)), ("tensor 't'", "multiple of 32")),
        (table(("t", (2**40, 2**40), 0, 0)), ("tensor 't'", "2^63")),
        (table(("t", (64,), 0, 32)), ("tensor 't'", "begin at byte 32, where 0")),
        (table(("t", (64,), 0, 0), ("u", (64,), 0, 128)), ("tensor 'u'", "begin at byte 128, where 256")),
        (table(("t", (64,), 0, 2**63)), ("tensor 't'",)),
        (table(("t", (64,), 0, 0), ("t", (64,), 0, 256)), ("tensor 't'", "twice")),
        (table(("t", (2048,), 0, 0)), ("end at byte", "truncated")),
        (table(("t", (64,), 0, 0))[:50], ("the file ends",)),
    ],
)
def test_gguf_files_that_lie(tmp_path: Path, content: bytes, parts: tuple[str, ...]) -> None:
    """Whatever cannot be in a file of that size, or contradicts itself, is refused with file, byte and tensor."""
    refused(written(tmp_path / "x.gguf", content), "x.gguf", *parts)


def test_a_terabyte_of_empty_texts(tmp_path: Path) -> None:
    """A sparse file of a terabyte, with the longest list of empty texts that is walked at all, is refused in bounded time."""
    path = tmp_path / "x.gguf"
    with path.open("wb") as file:
        file.write(ONE_PAIR + pair("k", 9, struct.pack("<IQ", 8, 8_000_000)))
        file.truncate(2**40)
    begin = time.perf_counter()
    refused(str(path), "general.architecture")
    assert time.perf_counter() - begin < 30


def test_a_large_tokenizer_is_quick(tmp_path: Path) -> None:
    """A head with half a million texts, as real tokenizers have, is read in well under a second or two."""
    tokens = b"".join(gguf_text(f"token{i}") for i in range(500_000))
    metadata = gguf_llama_metadata()
    del metadata["tokenizer.ggml.tokens"]
    rest = gguf_bytes(metadata, {"token_embd.weight": ("fp16", [96, 64])})
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(metadata) + 1) + pair("tokenizer.ggml.merges", 9, struct.pack("<IQ", 8, 500_000) + tokens)
    body = head + rest[24:]
    # the data begin at the next multiple of 32 of the longer head
    path = written(tmp_path / "x.gguf", body + bytes(64))
    begin = time.perf_counter()
    found = read_checkpoint(path)
    assert time.perf_counter() - begin < 3
    assert found.metadata["tokenizer.ggml.merges"] == SkippedArray(500_000)
