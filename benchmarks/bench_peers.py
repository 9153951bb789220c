"""Other estimators beside this one: the same jobs, time of one answer and error against what was measured. Each answer is a process of its own, so that
none of them has seen the job before.

Each peer is installed by this script into an environment of its own under `.venv-peers`; the product never depends on them. EleutherAI's calculator is
in no package index: give a checkout of its repository with `--cookbook FOLDER`, or it is left out.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from results import table, write_section

HERE = Path(__file__).parent
VENVS = HERE / ".venv-peers"
GROUPS = ("vramcalc", "fms-full-1gpu", "fms-lora")
GIB = 2**30


class Task(NamedTuple):
    """A measured job on one GPU, and its files."""

    record: dict[str, Any]
    config: dict[str, Any]
    folder: Path

    @property
    def part(self) -> dict[str, Any]:
        """The settings of training or serving."""
        job = self.record["job"]
        return job.get("train") or job["serve"]

    @property
    def trains(self) -> bool:
        """Whether it is a training step."""
        return "train" in self.record["job"]

    @property
    def adapter(self) -> dict[str, Any] | None:
        """The adapter, if there is one."""
        return self.part.get("adapter")

    @property
    def batch(self) -> int:
        """Sequences at once."""
        return self.part.get("micro_batch") or self.part.get("sequences") or 1

    @property
    def seq(self) -> int:
        """Tokens a sequence."""
        return self.part.get("seq_len") or self.part["context"]

    @property
    def recomputes(self) -> bool:
        """Whether layers are computed again."""
        asked = self.part.get("recompute", "none")
        return (asked if isinstance(asked, str) else asked.get("policy")) == "full"

    @property
    def stores_fp32(self) -> bool:
        """Whether the weights are stored in fp32: in fp32 training, and under autocast unless the job says otherwise."""
        precision = str(self.part.get("precision"))
        weights = (self.part.get("dtypes") or {}).get("weights")
        return weights == "fp32" if weights else precision == "fp32" or precision.endswith("-mixed")

    @property
    def measured(self) -> int:
        """The measured peak of allocated memory."""
        return next(m["value"] for m in self.record["measured"] if m["figure"] == "peak.allocated")


class Peer(NamedTuple):
    """An estimator: what it is made of, the command that answers a task (None if it has no way to ask), and how its answer is read."""

    name: str
    venv: str
    packages: tuple[str, ...]
    command: Callable[[Task, str], list[str] | None]
    read: Callable[[str], int]


def main() -> int:
    """Installs, asks, prints, records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cookbook", type=Path, help="a checkout of github.com/EleutherAI/cookbook")
    parser.add_argument("--limit", type=int, default=6, help="jobs of each group (default 6)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tasks = list(measured_tasks(Path(folder), asked.limit))
        rows, notes = [], []
        for peer in peers(asked.cookbook):
            python = interpreter(peer)
            if python is None:
                notes.append(f"{peer.name}: could not be installed, left out.")
                continue
            rows.append(compare(peer, python, tasks))
            print(" | ".join(rows[-1]), flush=True)
    if asked.cookbook is None:
        notes.append("EleutherAI's calculator is in no package index and was left out; run with `--cookbook FOLDER` to have it.")
    head = ["estimator", "answered", "median seconds", "median error", "worst error"]
    text = table(head, rows) + "\n\n" + "\n".join(f"- {note}" for note in notes)
    print(text)
    write_section("Other estimators", explanation(tasks) + "\n\n" + text)
    return 0


def explanation(tasks: list[Task]) -> str:
    """What was compared."""
    return (
        f"{len(tasks)} measured jobs on one GPU (groups {', '.join(GROUPS)} of the truth data): peak of allocated memory, |predicted - measured| / measured "
        "over the jobs an estimator has a way to express. Seconds are the processor time of one answer from a new process, which has not seen the job before."
    )


def measured_tasks(folder: Path, limit: int) -> list[Task]:
    """The first `limit` records of each group with a measured peak and a model in the catalogue; their files are written to `folder`."""
    from everybyte.catalog import model_config
    from everybyte.measure.truth import load_records

    taken: dict[str, list[Task]] = {group: [] for group in GROUPS}
    for record in load_records():
        group = record["group"]
        full = group not in taken or len(taken[group]) == limit
        if full or not isinstance(record["job"]["model"], str) or record["job"]["hardware"].get("gpus", 1) != 1:
            continue
        if "santacoder" in record["job"]["model"] or not any(m["figure"] == "peak.allocated" for m in record["measured"]):
            continue  # santacoder is no decoder that the peers know
        if record["job"].get("train", {}).get("kernels"):
            continue  # no peer has a way to say that kernels are fused
        config = model_config(record["job"]["model"])
        place = folder / record["id"]
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (place / "job.json").write_text(json.dumps(record["job"]), encoding="utf-8")
        taken[group].append(Task(record, config, place))
    return [task for tasks in taken.values() for task in tasks]


def interpreter(peer: Peer) -> str | None:
    """The Python of the peer's environment, which is made on the first call; None if its packages cannot be installed."""
    if not peer.packages:
        return sys.executable
    python = VENVS / peer.venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENVS / peer.venv)], check=True)
    if subprocess.run([str(python), "-m", "pip", "install", "--quiet", *peer.packages], check=False).returncode != 0:
        return None
    return str(python)


def compare(peer: Peer, python: str, tasks: list[Task]) -> list[str]:
    """A row of the table: how many tasks it answered, seconds and error."""
    seconds, errors = [], []
    for task in tasks:
        command = peer.command(task, python)
        if command is None:
            continue
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        try:
            errors.append(abs(peer.read(done.stdout) / task.measured - 1))
        except (ValueError, KeyError, AttributeError, IndexError):
            print(f"{peer.name} did not answer {task.record['id']}: {(done.stderr or done.stdout).strip()[-200:]}", file=sys.stderr)
    if not errors:
        return [peer.name, f"0 of {len(tasks)}", "", "", ""]
    return [peer.name, f"{len(errors)} of {len(tasks)}", f"{statistics.median(seconds):.2f}", f"{statistics.median(errors):.1%}", f"{max(errors):.0%}"]


def peers(cookbook: Path | None) -> list[Peer]:
    """All estimators, this one first."""
    known = [
        Peer("everybyte", "", (), ask_everybyte, lambda out: json.loads(out)["figures"]["peak.allocated"]),
        Peer("vramcalc", "vramcalc", ("vramcalc==0.1.2",), ask_vramcalc, lambda out: json.loads(out)["estimate"]["total"]),
        Peer("llm-analysis", "llm-analysis", ("llm-analysis==0.2.2",), ask_llm_analysis, lambda out: int(out.split()[-1])),
        Peer("accelerate estimate-memory", "hf", ("accelerate", "transformers", "torch"), ask_meta("accelerate"), lambda out: int(out.split()[-1])),
        Peer("parameters on the meta device", "hf", ("accelerate", "transformers", "torch"), ask_meta("parameters"), lambda out: int(out.split()[-1])),
    ]
    if cookbook is not None:
        known.append(Peer("EleutherAI calculator", "", (), ask_cookbook(cookbook), read_cookbook))
    return known


def ask_everybyte(task: Task, python: str) -> list[str]:
    """Our own command on the job file."""
    return [str(Path(python).with_name("everybyte")), "estimate", str(task.folder / "job.json"), "--json"]


def ask_vramcalc(task: Task, python: str) -> list[str]:
    """Its command line; without serving a batch it computes the prefill."""
    command = [
        str(Path(python).with_name("vramcalc")),
        "estimate",
        str(task.folder / "config.json"),
        "--batch",
        str(task.batch),
        "--seq",
        str(task.seq),
        "--json",
    ]
    command += ["--attn", {"flash2": "flash"}.get(task.part["attention"], task.part["attention"])]
    if task.trains:
        command += ["--train", "--precision", "amp" if task.stores_fp32 else "pure"]
        command += ["--grad-checkpoint"] if task.recomputes else []
        command += ["--lora", str(task.adapter["rank"])] if task.adapter else []
    return command


def ask_llm_analysis(task: Task, python: str) -> list[str] | None:
    """Its Python interface, with the sizes of the config; it has no adapters."""
    if task.adapter:
        return None
    c = task.config
    sizes = {
        "name": "job",
        "num_layers": c["num_hidden_layers"],
        "n_head": c["num_attention_heads"],
        "hidden_dim": c["hidden_size"],
        "vocab_size": c["vocab_size"],
        "max_seq_len": c["max_position_embeddings"],
        "num_key_value_heads": c["num_key_value_heads"],
        "ffn_embed_dim": c["intermediate_size"],
        "expansion_ratio": c["intermediate_size"] / c["hidden_size"],
    }
    model = task.folder / "llm_analysis.json"
    model.write_text(json.dumps(sizes), encoding="utf-8")
    mode = "train" if task.trains else "infer"
    flags = [str(int(task.recomputes)), str(int(task.part["attention"] != "eager")), str(4 if task.stores_fp32 else 2)]
    return [python, str(HERE / "peers" / "llm_analysis_job.py"), str(model), mode, str(task.batch), str(task.seq), *flags]


def ask_meta(rule: str) -> Callable[[Task, str], list[str] | None]:
    """A model on the meta device and a rule over its parameters; neither knows adapters."""

    def ask(task: Task, python: str) -> list[str] | None:
        if task.adapter:
            return None
        dtype = "fp32" if task.stores_fp32 and rule == "parameters" else "bf16"
        return [python, str(HERE / "peers" / "hf_meta.py"), rule, str(task.folder), dtype, "train" if task.trains else "infer"]

    return ask


def ask_cookbook(cookbook: Path) -> Callable[[Task, str], list[str] | None]:
    """The calculator of the cookbook with the sizes of the config; it has no adapters."""

    def ask(task: Task, python: str) -> list[str] | None:
        if task.adapter:
            return None
        c = task.config
        flags = {
            "--num-layers": c["num_hidden_layers"],
            "--hidden-size": c["hidden_size"],
            "--num-attention-heads": c["num_attention_heads"],
            "--vocab-size": c["vocab_size"],
            "--sequence-length": task.seq,
            "--batch-size-per-gpu": task.batch,
            "--zero-stage": 0,
            "--num-mlp-linears": 3,
            "--ffn-expansion-factor": c["intermediate_size"] / c["hidden_size"],
            "--kv-size-ratio": c["num_key_value_heads"] / c["num_attention_heads"],
        }
        mode = (["--checkpoint-activations"] if task.recomputes else []) if task.trains else ["--infer"]
        return [python, str(cookbook / "calc" / "calc_transformer_mem.py"), *(str(x) for pair in flags.items() for x in pair), *mode]

    return ask


def read_cookbook(out: str) -> int:
    """The line `Per-GPU Memory Required for ...: 12.34 GiB`."""
    found = re.search(r"Per-GPU Memory Required for \w+: ([0-9.]+) GiB", out)
    if found is None:
        raise ValueError("no total in the output")
    return int(float(found[1]) * GIB)


if __name__ == "__main__":
    sys.exit(main())
