"""The walks of CONTRIBUTING, each tried with a toy: one more of a kind takes at most three files, and then it is answered."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

import everybyte

PACKAGE = Path(everybyte.__file__).parent
CONTRIBUTING = PACKAGE.parents[1] / "CONTRIBUTING.md"
MOST_FILES = 3
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
JOB = {"model": {"config": LLAMA}, "hardware": {"gpu": "h100"}, "train": {"micro_batch": 1, "seq_len": 128, "precision": "bf16"}}


class Clone:
    """A copy of the package, made of links until a file is changed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "everybyte"
        self.changed: set[str] = set()
        copytree(PACKAGE, self.root, copy_function=os.symlink)

    def add(self, name: str, text: str) -> None:
        """A new file."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        assert not path.exists()
        path.write_text(text, encoding="utf-8")
        self._count(name)

    def insert(self, name: str, before: str, text: str) -> None:
        """Text before a line of a file that is there."""
        path = self.root / name
        old = path.read_text(encoding="utf-8")
        assert old.count(before) == 1, f"{before!r} in {name}"
        path.unlink()
        path.write_text(old.replace(before, text + before), encoding="utf-8")
        self._count(name)

    def append(self, name: str, line: str) -> None:
        """A row behind the last one of a table."""
        path = self.root / name
        old = path.read_text(encoding="utf-8")
        path.unlink()
        path.write_text(old + line + "\n", encoding="utf-8")
        self._count(name)

    def _count(self, name: str) -> None:
        self.changed.add(name)
        assert len(self.changed) <= MOST_FILES

    def run(self, code: str, **given: Any) -> Any:
        """What a program in this copy prints as JSON. `given` are names that it knows."""
        lines = ["import json", f"assert everybyte.__file__.startswith({str(self.root)!r})", *(f"{key} = {value!r}" for key, value in given.items()), code]
        program = "\n".join(["import everybyte", "from everybyte import estimate", *lines])
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(self.root.parent)}, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A copy that a test may change."""
    return Clone(tmp_path)


def test_a_family(clone: Clone) -> None:
    """A module that builds the network, and the names of its architectures."""
    clone.add(
        "models/llama/toy.py",
        '"""A toy: a Llama with twice the layers."""\n\nfrom everybyte.models.llama import llama\nfrom everybyte.models.config import Config\n\n\n'
        'def build(c):\n    """The network of a toy."""\n'
        '    fields = {**c.fields, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2 * c.integer("num_hidden_layers")}\n'
        "    return llama.build(Config(fields, c.path, c.name))\n",
    )
    clone.insert("models/registry.py", '    "gpt.gptj": (', '    "llama.toy": ("ToyForCausalLM",),\n')
    toy = {**LLAMA, "architectures": ["ToyForCausalLM"]}
    layers = clone.run("print(json.dumps(estimate(job).model.layers))", job={**JOB, "model": {"config": toy}})
    assert layers == 2 * LLAMA["num_hidden_layers"]  # type: ignore[operator]


def test_an_optimizer(clone: Clone) -> None:
    """A row with the states and the source."""
    clone.insert("rules/optimizers/plan.py", '    "adam": Rule(', '    "toy": Rule(moments(3), Citation("a toy"), foreach=1),\n')
    code = "print(json.dumps([sum(e.bytes for e in estimate({**job, 'train': {**job['train'], 'optimizer': name}}).ranks[0].ledger "
    code += "if e.category == 'optimizer_state') for name in ('adamw', 'toy')]))"
    two, three = clone.run(code, job=JOB)
    assert three == pytest.approx(1.5 * two, rel=0.01)


def test_an_engine_release(clone: Clone) -> None:
    """Rows of the engine's table: the release, and what it changed."""
    table = "catalog/data/releases/vllm.csv"
    clone.append(table, "release,9.9.0,9.9.0,,,,sources of the wheel read,vllm wheel 9.9.0")
    clone.append(table, "default,memory_fraction,9.9,,,0.5,gpu_memory_utilization,config/cache.py")
    serve = {"model": {"config": LLAMA}, "hardware": {"gpu": "h100"}, "serve": {"engine": "vllm"}}
    code = "print(json.dumps([{s.key: s.value for s in estimate({**job, 'serve': {**job['serve'], **more}}).settings}['serve.memory_fraction'] "
    code += "for more in ({}, {'version': '9.9.0'}, {'version': '0.20.0'})]))"
    assert clone.run(code, job=serve) == [0.5, 0.5, 0.92]


def test_an_engine(clone: Clone) -> None:
    """A word of the job file, a row of the registry, and a folder with the account."""
    clone.insert("job/words.py", '    "nemo",\n    "megatron"', '    "toy",\n')
    clone.insert("engines/registry.py", '    "pytorch": "pytorch",\n    "accelerate"', '    "toy": "toy",\n')
    clone.add(
        "engines/toy/train.py",
        '"""Accounts for a toy."""\n\nfrom everybyte.rules.accounting.account import Account, Rank\n'
        "from everybyte.rules.accounting.resolved_settings import ResolvedSettings\nfrom everybyte.rules.from_job.recipe import Defaults, recipe_of\n"
        "from everybyte.rules.step.training import training\n\n\n"
        'def account(job, network, device):\n    """The account of a toy."""\n    choices = ResolvedSettings()\n'
        '    recipe = recipe_of(job.train, network, Defaults("toy", precision="fp32"), choices)\n'
        "    bill = training(network, recipe, device.compute_capability)\n    return Account((Rank(bill),), choices, bill.trained_params)\n",
    )
    toy = {**JOB, "train": {"framework": "toy", "micro_batch": 1, "seq_len": 128}}
    found = clone.run("print(json.dumps({s.key: s.origin for s in estimate(job).settings}))", job=toy)
    assert found["train.precision"] == "default of toy"
    code = "try:\n    estimate(job)\nexcept everybyte.BadInput as error:\n    print(json.dumps(error.path))"
    assert clone.run(code, job={**toy, "train": {**toy["train"], "extra": {"speed": 1}}}) == "train.extra.speed"  # type: ignore[dict-item]


def test_a_gpu(clone: Clone) -> None:
    """A row of the table."""
    table = "catalog/data/gpus.csv"
    header, first = (PACKAGE / table).read_text(encoding="utf-8").splitlines()[:2]
    names, cells = header.split(","), first.split(",")
    cells[names.index("name")], cells[names.index("aliases")] = "Toy-77GB", "NVIDIA Toy 77GB"
    cells[names.index("torch_total_gib")] = "77"
    clone.append(table, ",".join(cells))
    assert clone.run("print(json.dumps(estimate(job).hardware.capacity))", job={**JOB, "hardware": {"gpu": "toy-77gb"}}) == 77 * 2**30


def test_a_recompute_policy(clone: Clone) -> None:
    """A word of the job file, and what it does to the blocks."""
    clone.insert("job/words.py", '"none", "selective", "full"]', '"half", ')
    clone.insert(
        "rules/from_job/recompute.py",
        "POLICIES: dict",
        'def half_of_the_blocks(asked):\n    """A toy: each second block."""\n    return RecomputePlan("non-reentrant", 2)\n\n\n',
    )
    clone.insert("rules/from_job/recompute.py", '"none": keep_all', '"half": half_of_the_blocks, ')
    config = {**LLAMA, "num_hidden_layers": 8}
    code = "print(json.dumps([estimate({**job, 'train': {**job['train'], 'recompute': word}}).figures['peak.allocated'] for word in ('none', 'half', 'full')]))"
    none, half, full = clone.run(code, job={**JOB, "model": {"config": config}, "train": {**JOB["train"], "seq_len": 512}})  # type: ignore[dict-item]
    assert full < half < none


def test_an_import_format(clone: Clone) -> None:
    """A module that reads it, a row of the registry, and what it looks like."""
    clone.add(
        "formats/training/toy.py",
        '"""A toy\'s configuration."""\n\nfrom everybyte.formats.draft import JobDraft\n\n\n'
        'def read_document(document, context):\n    """The job of a file."""\n    bag, draft = document.bag(), JobDraft("toy")\n'
        '    for key, place in (("toy_model", "model"), ("toy_batch", "train.micro_batch")):\n'
        "        given = bag.take(key)\n        draft.state(place, given.value, given.place)\n    return [draft]\n",
    )
    clone.insert("formats/registry.py", '    "axolotl": "training.axolotl",', '    "toy": "training.toy",\n')
    clone.append("formats/data/signatures.csv", "toy,key,toy_batch,9")
    path = clone.root.parent / "toy.yaml"
    path.write_text("toy_model: Qwen/Qwen2.5-0.5B\ntoy_batch: 3\n", encoding="utf-8")
    code = "from everybyte.formats.finish import finish\nfrom everybyte.formats.read import read\nfrom everybyte.formats.source import open_source\n"
    code += "print(json.dumps(finish(read([open_source(path)])[0]).job))"
    found = clone.run(code, path=str(path))
    assert (found["model"], found["train"]["micro_batch"]) == ("Qwen/Qwen2.5-0.5B", 3)


def test_contributing_names_every_walk_and_file() -> None:
    """Each walk that is tried here is written there, with the files that it changes."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    walks = {
        "Add a model family": ("models/registry.py",),
        "Add an optimizer": ("rules/optimizers/plan.py",),
        "Add a release of an engine": ("catalog/data/releases/",),
        "Add an engine": ("job/words.py", "engines/registry.py"),
        "Add a GPU": ("catalog/data/gpus.csv",),
        "Add a recompute policy": ("job/words.py", "rules/from_job/recompute.py"),
        "Add a format that is imported": ("formats/registry.py", "formats/data/signatures.csv"),
    }
    for title, files in walks.items():
        chapter = re.search(rf"## {title}\n(.*?)(?=\n## )", text, re.DOTALL)
        assert chapter, title
        for file in files:
            assert file in chapter[1], (title, file)
            assert (PACKAGE / file).exists(), file
