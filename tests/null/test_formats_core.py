"""The frame of imports: places, flags, tables, rules of findings, names of models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everybyte.basics.errors import BadInput
from everybyte.catalog.models import catalogue_name, find_model, relative_of
from everybyte.formats.bag import Bag
from everybyte.formats.command import Word
from everybyte.formats.context import Context
from everybyte.formats.documents.read import documents_of
from everybyte.formats.draft import JobDraft
from everybyte.formats.effects import with_effects
from everybyte.formats.finish import finish, nested
from everybyte.formats.flags import Spelling, parse
from everybyte.formats.names import packed_by_name
from everybyte.formats.place import Given, Place
from everybyte.formats.read import read
from everybyte.formats.registry import FORMATS, module_of
from everybyte.formats.rules import Rule, apply_rules, rules
from everybyte.formats.source import Source, open_source
from everybyte.formats.table import HERE, Row, table, translate, value_tables
from everybyte.formats.values import boolean, is_placeholder, names, number


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.yaml", "a:\n  b: 1\n  c:\n    - d: 2\n    - e: 3\n"),
        ("x.json", '{"a":\n  {"b": 1,\n  "c": [\n    {"d": 2},\n    {"e": 3}]}}'),
        ("x.toml", "[a]\nb = 1\nc = [{d = 2},\n     {e = 3}]\n"),
    ],
)
def test_every_key_has_a_line(name: str, text: str) -> None:
    """YAML, JSON and TOML give the same tree, and the line of a key; a path that is not there gets the nearest part that is."""
    (document,) = documents_of(Source(text, name))
    assert document.value == {"a": {"b": 1, "c": [{"d": 2}, {"e": 3}]}}
    assert str(document.place("a.b")) == f"{name}:2"
    assert str(document.place("a.nothing")) == f"{name}:1"


def test_yaml_of_strangers() -> None:
    """Merge keys, numbers as keys, several documents, and words that only look like something else."""
    text = "x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n8080: port\n---\nwhen: 2026-01-15\nsize: 4_096\n"
    first, second = documents_of(Source(text, "x.yaml"))
    assert first.value == {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}, "8080": "port"}
    assert second.value == {"when": "2026-01-15", "size": 4096}


def test_a_merge_that_never_ends() -> None:
    """A mapping that merges itself is refused."""
    with pytest.raises(BadInput):
        documents_of(Source("a: &a\n  <<: *a\n  b: 1\n", "x.yaml"))


def words(text: str) -> list[Word]:
    return [Word(word, Place("command")) for word in text.split()]


def test_flags_as_argparse_reads_them() -> None:
    """Values behind `=` or a blank, lists, switches, a negative number, a prefix, the last of two."""
    spelling = Spelling(known=frozenset({"mem_fraction", "layers", "bf16", "names"}), lists=frozenset({"names"}))
    found = parse(words("model --mem-frac 0.5 --names a b --layers -2 --bf16 --layers=3 --other x y"), spelling)
    got = {key: found.bag.peek(key).value for key in found.bag}  # type: ignore[union-attr]
    assert got == {"mem_fraction": "0.5", "names": ["a", "b"], "layers": "3", "bf16": True, "other": ["x", "y"]}
    assert [word.text for word in found.positional] == ["model"]
    assert [finding.id for finding in found.findings] == ["flag-twice"]


def test_an_unknown_word_is_no_value() -> None:
    """A flag whose value cannot be known has none, and that is told; the end of a path is still a name."""
    found = parse(
        [
            Word("--a", Place("x.sh", 1)),
            Word("$N", Place("x.sh", 1), "$N is not set"),
            Word("--b", Place("x.sh", 2)),
            Word("$HOME/models/gpt2", Place("x.sh", 2), "$HOME is not set"),
        ]
    )
    assert "a" not in found.bag
    assert found.bag.value("b") == "$HOME/models/gpt2"
    assert "$N is not set" in found.findings[0].message


def test_a_bag_knows_what_was_read() -> None:
    """Dashes and underscores are one; what nobody took is left; an empty value is unset."""
    bag = Bag({"--a-b": Given(1, Place("x")), "c.d": Given(2, Place("x")), "c.e": Given(None, Place("x")), "f": Given(3, Place("x"))})
    assert bag.value("a_b") == 1
    inner = bag.sub("c")
    assert (inner.value("d"), "e" in inner) == (2, False)
    assert [key for key, _ in bag.unread()] == ["f"]


@pytest.mark.parametrize(("text", "value"), [("5e8", 500_000_000), ("20_000", 20_000), ("0.5", 0.5), ("1e-5", 1e-5), (True, None), ("x1", None), ("-3", -3)])
def test_numbers(text: object, value: object) -> None:
    """Numbers as text, whole where they are."""
    assert number(text) == value


def test_other_values() -> None:
    """Switches, lists of names, and texts that wait to be filled in."""
    assert [boolean(text) for text in ("True", "no", "on", "0", "x")] == [True, False, True, False, None]
    assert names("[a, 'b'] c") == ["a", "b", "c"]
    assert [is_placeholder(text) for text in ("<model>", "/path/to/model", "your-model", "gpt2")] == [True, True, True, False]


def test_files_that_are_refused(tmp_path: Path) -> None:
    """A pickle, bytes that are no text, and a file that is not there."""
    for name, data, reason in (("a.bin", b"\x80\x04abc", "pickle"), ("b.yaml", b"\xff\xfa\x00", "UTF-8"), ("c.yaml", b"a: \x00", "NUL")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadInput, match=reason):
            open_source(str(tmp_path / name))
    with pytest.raises(BadInput, match="cannot be read"):
        open_source(str(tmp_path / "none.yaml"))


def test_files_match_by_the_end_of_their_path() -> None:
    """A path inside a configuration is relative to a folder that nobody knows."""
    context = Context([Source("{}", "a/three.json"), Source("{}", "runs/cfg/two.json")])
    found = context.find("./cfg/two.json")
    assert found is not None
    assert found.path == "runs/cfg/two.json"
    assert context.find("four.json") is None


@pytest.mark.parametrize("name", sorted(set(FORMATS)))
def test_every_format_has_a_module(name: str) -> None:
    """Each row of the registry can be loaded and reads something, and something marks it or --as names it."""
    module = module_of(name)
    assert any(hasattr(module, function) for function in ("read_command", "read_document", "read_text", "commands_of", "commands_of_text"))


TABLES = sorted(f"training/{path.name}" for path in Path(HERE, "training").glob("*.csv") if path.read_text(encoding="utf-8").startswith("key,job,as"))


@pytest.mark.parametrize("file", TABLES)
def test_tables_are_whole(file: str) -> None:
    """Each row says a job key or none, in words that the reader knows."""
    kinds = {"", "int", "float", "bool", "text", "names", "any", "model", "optimizer", *value_tables()}
    for row in table(file).rows:
        assert row.kind in kinds, row
        assert row.job in ("-", "*", "model") or row.job.startswith(("train.", "hardware.", "env.", "model.")), row
        assert row.job in ("-", "*") or row.kind, row


def test_words_of_optimizers() -> None:
    """A name stands for a rule, an implementation, paging; one that nobody knows stays."""
    row = Row("optim", "train.optimizer", "optimizer")
    assert translate(row, "paged_adamw_8bit") == {"train.optimizer.name": "adamw-8bit", "train.optimizer.paged": True}
    assert translate(row, "adamw_torch_fused") == {"train.optimizer.name": "adamw", "train.optimizer.impl": "fused"}
    assert translate(row, "my_own") == {"train.optimizer.name": "my_own"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_each_rule_fires_on_its_own_case(rule: Rule) -> None:
    """A draft that meets the conditions of a row gets its finding, and an empty one does not; its remedy is a setting of the form."""
    draft = JobDraft("x")
    samples = {"?": "cpu", "!=": "other", "~": "fsdp"}
    for key, sign, value in rule.when:
        if sign == "=":
            draft.state(key, {"true": True, "false": False}.get(value, value), "x.yaml:1")
        elif sign == ">":
            other = draft.value(value[1:]) or 1 if value.startswith("@") else number(value)
            draft.state(key, float(other or 0) + 1 if not value.startswith("@") else 5, "x.yaml:1")
        elif sign == "<":
            draft.state(key, 1, "x.yaml:1")
        elif sign == "*":
            draft.state(key, [value], "x.yaml:1")
        elif sign == "~":
            draft.state(key, f"{value}2", "x.yaml:1")
        elif sign in samples:
            draft.state(key, 1 if key in draft else samples[sign], "x.yaml:1")
    for key, sign, value in rule.when:
        if sign == ">" and value.startswith("@"):
            draft.state(value[1:], 2, "x.yaml:1")
        if sign == "<" and value.startswith("@"):
            draft.state(key, 1, "x.yaml:1")
            draft.state(value[1:], 2, "x.yaml:1")
    apply_rules(draft)
    assert rule.id in {finding.id for finding in draft.findings}
    empty = JobDraft("x")
    apply_rules(empty)
    assert rule.id not in {finding.id for finding in empty.findings}


def test_there_are_enough_rules() -> None:
    """The rows of the table are at least thirty; the readers have as many of their own."""
    assert len(rules()) >= 30


def test_effects_are_differences_of_two_estimates() -> None:
    """Recomputing saves bytes of a long sequence; a job that cannot be answered keeps its findings without them."""
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 1\nmax_length: 8192\ngradient_checkpointing: false\nuse_peft: true\n"
    (draft,) = read([Source(text, "x.yaml")])
    found = next(finding for finding in with_effects(finish(draft)).findings if finding.id == "no-recompute-long")
    assert found.effect_bytes is not None
    assert found.effect_bytes > 2**30
    (other,) = read([Source(text.replace("Qwen/Qwen2.5-0.5B", "nobody/knows-this"), "x.yaml")])
    assert next(finding for finding in with_effects(finish(other)).findings if finding.id == "no-recompute-long").effect_bytes is None


def test_nested_jobs() -> None:
    """Flat keys become the job's sections in their order, extra with its own."""
    assert nested({"train.extra.a.b": 1, "model": "x", "train.mesh.tp": 2}) == {"model": "x", "train": {"extra": {"a": {"b": 1}}, "mesh": {"tp": 2}}}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NousResearch/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
        ("unsloth/llama-3-8b-bnb-4bit", "meta-llama/Meta-Llama-3-8B"),
        ("TheBloke/Llama-2-7B-GPTQ", "meta-llama/Llama-2-7b-hf"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "Qwen/Qwen3-235B-A22B"),
        ("llama3.1:8b-instruct-q4_K_M", "meta-llama/Meta-Llama-3.1-8B"),
        ("llama3.1:70b-instruct-q4_K_M", "meta-llama/Meta-Llama-3.1-70B"),
        ("bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen3-30B-A3B-Q4_K_M.gguf", "Qwen/Qwen3-30B-A3B"),
        ("teknium/OpenHermes-2.5-Mistral-7B", "mistralai/Mistral-7B-v0.1"),
        ("mistralai/Ministral-3-3B-Reasoning-2512", "mistralai/Ministral-3-3B-Instruct-2512"),
    ],
)
def test_names_of_copies(name: str, known: str) -> None:
    """A re-upload, a packed or tuned copy, a tag and a file are the model that they come from, and the reason is said."""
    assert find_model(name).name == known
    other = relative_of(name)
    assert other is not None
    assert other.name == known
    assert other.reason


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.1-8B", "nobody/knows-this-1B", "-", "8b"])
def test_names_that_are_no_copies(name: str) -> None:
    """The catalogue's own names need no rule, and a rule finds nothing where there is nothing."""
    assert relative_of(name) is None


def test_folders_that_are_called_like_a_model() -> None:
    """The end of a path names the model; a folder that says nothing stays as it is."""
    (draft,) = read([Source("base_model: /data/models/Qwen2.5-7B-Instruct\nsequence_len: 8\n", "x.yaml")])
    assert finish(draft).job["model"] == "Qwen2.5-7B-Instruct"
    (draft,) = read([Source("base_model: /mnt/models\nsequence_len: 8\n", "x.yaml")])
    assert finish(draft).job["model"] == "/mnt/models"
    assert catalogue_name("/mnt/models") is None


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("unsloth/x-bnb-4bit", "nf4"),
        ("TheBloke/x-AWQ", "awq"),
        ("x-GPTQ-Int4", "gptq"),
        ("nvidia/x-NVFP4", "nvfp4"),
        ("x-FP8", "fp8"),
        ("x/y-GGUF:Q4_K_M", "q4_k_m"),
        ("x-UD-Q4_K_XL.gguf", "q4_k_xl"),
        ("llama3:8b-q5_0", "q5_0"),
        ("Qwen/Qwen2.5-7B", None),
    ],
)
def test_packing_in_names(name: str, form: str | None) -> None:
    """A name that says how its weights are packed sets the format."""
    found = packed_by_name(name)
    assert (found.format if found else None) == form


def test_a_packed_name_sets_the_quantisation() -> None:
    """LoRA on an upload in four bits is QLoRA."""
    text = json.dumps({"model_name_or_path": "unsloth/llama-3-8b-bnb-4bit", "per_device_train_batch_size": 1, "use_peft": True})
    (draft,) = read([Source(text, "x.json")])
    got = {row.key: row.value for row in finish(draft).settings}
    assert (got["train.quantization.format"], got["train.quantization.double"]) == ("nf4", True)


def test_huge_scripts_are_refused() -> None:
    """A text that no person wrote as a script is not followed for minutes."""
    with pytest.raises(BadInput, match="KiB"):
        read([Source("echo hello\n" * 100_000, "x.sh")])


@pytest.mark.parametrize(("name", "text"), [("x.json", '{"a":' * 50_000), ("x.yaml", "[" * 50_000), ("x.toml", "a = " + "[" * 50_000)])
def test_deep_nesting_is_refused(name: str, text: str) -> None:
    """Nesting without end is refused, not followed."""
    with pytest.raises(BadInput):
        read([Source(text, name)])


def test_a_models_config_is_no_training_configuration() -> None:
    """config.json has sizes with Megatron-LM's names and is none of its files."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_layers": 2}
    with pytest.raises(BadInput, match="no format"):
        read([Source(json.dumps(config), "config.json")])
