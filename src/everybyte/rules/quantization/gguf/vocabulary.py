"""Bytes of the tokenizer in a GGUF file: each token's text with its length, its type and its score, and the merges of a BPE tokenizer.

The form of an array: gguf-py gguf_writer.py. Sizes of texts: the vocabulary files that llama.cpp ships (models/ggml-vocab-*.gguf, release 0.3.36 of
llama-cpp-python); a tokenizer that is not among them is taken to have texts as long as the nearest of its kind.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from everybyte.ledger.entry import Basis

Kind = Literal["spm", "bpe", "wordpiece", "gemma4"]


class Vocabulary(NamedTuple):
    """A tokenizer: how many tokens and merges, and bytes of their texts."""

    kind: Kind
    tokens: int
    text: int
    merges: int = 0
    merge_text: int = 0


SHIPPED = (
    Vocabulary("spm", 32000, 210919),
    Vocabulary("spm", 32064, 211596),
    Vocabulary("spm", 64000, 316144),
    Vocabulary("spm", 262144, 2316295),
    Vocabulary("wordpiece", 30522, 260415),
    Vocabulary("gemma4", 262144, 2316295, 514906, 5132471),
    Vocabulary("bpe", 32256, 242498, 31757, 271354),
    Vocabulary("bpe", 49152, 344855, 48872, 392819),
    Vocabulary("bpe", 50257, 356735, 50000, 406304),
    Vocabulary("bpe", 50432, 358831, 50009, 406575),
    Vocabulary("bpe", 65024, 462041, 64784, 526329),
    Vocabulary("bpe", 100008, 1163775, 99743, 1263018),
    Vocabulary("bpe", 102400, 934635, 99757, 1007683),
    Vocabulary("bpe", 128256, 1073445, 280147, 2963589),
    Vocabulary("bpe", 151936, 1372708, 151387, 1520452),
    Vocabulary("bpe", 256000, 2764783, 253333, 3001038),
)

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "baichuan", "internlm", "internlm2", "orion", "minicpm", "t5"), "spm"),
    **dict.fromkeys(("bert", "nomic_bert"), "wordpiece"),
    "gemma4": "gemma4",
}
"""Families whose tokenizer is no BPE of bytes whatever its size."""
_NEAR = 256
"""Vocabularies that differ by so many tokens are the same with other special or padding tokens."""
_PADDING = len("[PAD151936]")


def vocabulary_of(family: str, tokens: int) -> tuple[Vocabulary, Basis]:
    """The tokenizer of a model with `tokens` rows in its embedding, and how well that is known."""
    same = sorted((v for v in SHIPPED if abs(v.tokens - tokens) <= _NEAR), key=lambda v: abs(v.tokens - tokens))
    kind = _KINDS.get(family) or (same[0].kind if same and same[0].kind != "gemma4" else "bpe")
    nearest = min((v for v in SHIPPED if v.kind == kind), key=lambda v: abs(v.tokens - tokens))
    more = tokens - nearest.tokens
    if abs(more) <= _NEAR:
        return nearest._replace(tokens=tokens, text=nearest.text + more * _PADDING), "formula"
    scaled = (part * tokens // nearest.tokens for part in (nearest.text, nearest.merges, nearest.merge_text))
    return Vocabulary(kind, tokens, *scaled), "calibrated"


def vocabulary_bytes(vocabulary: Vocabulary) -> int:
    """Bytes of its arrays: a length of 8 bytes before each text, a type of 4 for each token, a score of 4 where it is no BPE."""
    tokens = vocabulary.tokens * (12 if vocabulary.kind in ("bpe", "wordpiece") else 16) + vocabulary.text
    return tokens + 8 * vocabulary.merges + vocabulary.merge_text
