"""The commands, run in this process on real jobs: what they print, on which stream, and their exit codes."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import everybyte.estimator
from everybyte import __version__
from everybyte.cli.app import COMMANDS, run
from everybyte.cli.flags import kind_of
from everybyte.job import read_job
from everybyte.job.flags import SERVE, TRAIN
from everybyte.report.words import SPEEDS

LORA = Path(__file__).parents[2] / "examples" / "llama-3.1-8b-lora-24gb.yaml"
SMALL = "{name: small, model: meta-llama/Llama-3.2-1B, hardware: {gpu: rtx-4090}, train: {framework: pytorch, micro_batch: 1, seq_len: 128}}"
BIG = "{name: big, model: meta-llama/Llama-2-70b-hf, hardware: {gpu: rtx-4090}, train: {framework: pytorch, micro_batch: 1, seq_len: 128}}"
BAD = "{name: bad, model: meta-llama/Llama-3.2-1B, train: {micro_batch: 0}}"


@pytest.fixture
def jobs(tmp_path: Path) -> dict[str, str]:
    paths = {}
    for name, text in {"small": SMALL, "big": BIG, "bad": BAD}.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        paths[name] = str(path)
    return paths


def json_lines(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("names", "code"), [(["small"], 0), (["big"], 1), (["bad"], 2), (["small", "big"], 1), (["big", "bad", "small"], 2)])
def test_exit_codes(names: list[str], code: int, jobs: dict[str, str]) -> None:
    """0 if all fit, 1 if one does not, 2 if one cannot be answered."""
    assert run(["estimate", *(jobs[name] for name in names), "--json"]) == code


def test_json_lines_are_in_order_and_bad_jobs_have_theirs(jobs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line per job in the order given; a bad job is an error line, and the others are answered."""
    run(["estimate", jobs["big"], jobs["bad"], jobs["small"], "missing.yaml", "--json"])
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["name"] for line in lines] == ["big", "bad", "small", "missing.yaml"]
    assert set(lines[1]) == {"name", "error"}
    assert lines[1]["error"]["path"] == "train.micro_batch"
    assert lines[3]["error"]["path"] == "missing.yaml"
    assert err == ""


def test_the_answer_has_the_form_of_the_contract(jobs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Keys in the contract's order, sizes as whole bytes, settings with their origin, a ledger whose rows add up to the peak."""
    run(["estimate", jobs["small"], "--json"])
    (line,) = json_lines(capsys)
    assert list(line) == [
        "everybyte",
        "schema",
        "name",
        "job",
        "settings",
        "model",
        "hardware",
        "fits",
        "verdict",
        "chance",
        "headroom",
        "figures",
        "range",
        "time",
        "ranks",
        "host",
        "assumptions",
        "warnings",
        "caveats",
        "advice",
    ]
    assert (line["everybyte"], line["schema"]) == (__version__, 1)
    assert line["fits"] is True
    assert all(type(value) is int for name, value in line["figures"].items() if name not in SPEEDS)
    assert {"key", "value", "origin"} == set(line["settings"][0])
    (rank,) = line["ranks"]
    living = [row for row in rank["ledger"] if rank["peak_phase"] in row["phases"] and row["category"] != "context"]
    assert sum(row["bytes"] for row in living) == rank["figures"]["peak.allocated"]
    assert all(row["formula"] and row["source"] for row in rank["ledger"])


def test_screen_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the verdict comes first, and nothing but text is printed where nobody watches."""
    assert run(["estimate", str(LORA)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("needs ")
    assert ": close, " in out.splitlines()[0]
    assert "\x1b" not in out


def test_explain_flag_adds_the_ledger(jobs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """--explain prints the rows with their formulas below the screen."""
    run(["estimate", jobs["small"], "--explain"])
    out = capsys.readouterr().out
    assert "Ledger of" in out
    assert "weights/" in out


def test_given_figures_replace_computed_ones(jobs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--given FILE reaches the answer and is marked there; an unknown figure is refused."""
    (tmp_path / "given.yaml").write_text("{peak.reserved: 123456789}")
    assert run(["estimate", jobs["small"], "--json", "--given", str(tmp_path / "given.yaml")]) == 0
    (line,) = json_lines(capsys)
    assert line["figures"]["peak.reserved"] == 123456789
    assert any("peak.reserved" in warning for warning in line["warnings"])
    (tmp_path / "given.yaml").write_text("{peak.reservd: 1}")
    assert run(["estimate", jobs["small"], "--given", str(tmp_path / "given.yaml")]) == 2
    assert "did you mean peak.reserved" in capsys.readouterr().err


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """- reads the job from standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SMALL.encode())))
    assert run(["estimate", "-", "--json"]) == 0
    assert json_lines(capsys)[0]["name"] == "small"


def test_flags_make_the_job_that_a_file_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`train` with flags answers as the job does that it saves."""
    saved = tmp_path / "job.yaml"
    flags = ["--gpu", "rtx-4090", "--framework", "trl", "--seq-len", "512", "--micro-batch", "2", "--qlora", "8", "--targets", "q_proj,v_proj"]
    assert run(["train", "meta-llama/Llama-3.2-1B", *flags, "--recompute", "full", "--save", str(saved), "--json"]) == 0
    from_flags = json_lines(capsys)
    job = read_job(saved)
    assert job.train is not None
    assert job.train.adapter is not None
    assert (job.train.adapter.kind, job.train.adapter.rank, job.train.adapter.targets) == ("lora", 8, ("q_proj", "v_proj"))
    assert job.train.quantization is not None
    assert job.train.quantization.format == "nf4"
    run(["estimate", str(saved), "--json"])
    answered = json_lines(capsys)
    for key in ("figures", "ranks", "verdict"):
        assert [line[key] for line in answered] == [line[key] for line in from_flags]


@pytest.mark.parametrize(
    ("flags", "rank", "packed"),
    [
        (["--lora", "16", "--qlora"], 16, True),
        (["--qlora", "--lora", "16"], 16, True),
        (["--qlora", "16"], 16, True),
        (["--lora"], None, False),
        (["--lora=8"], 8, False),
    ],
)
def test_adapter_flags_with_and_without_a_rank(flags: list[str], rank: int | None, packed: bool, tmp_path: Path) -> None:
    """--lora and --qlora go together, and either may leave the rank to the other or to the framework."""
    saved = tmp_path / "job.yaml"
    run(["train", "meta-llama/Llama-3.2-1B", *flags, "--micro-batch", "1", "--seq-len", "64", "--save", str(saved), "--json"])
    train = read_job(saved).train
    assert train is not None
    assert train.adapter is not None
    assert (train.adapter.kind, train.adapter.rank, train.quantization is not None) == ("lora", rank, packed)


def test_set_reaches_every_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--set takes YAML values for keys that have no flag."""
    saved = tmp_path / "job.json"
    run(["train", "meta-llama/Llama-3.2-1B", "--set", "train.extra.lora_dropout=0.1", "--set", "train.buckets={reduce: 5}", "--save", str(saved), "--json"])
    job = read_job(saved)
    assert job.train is not None
    assert job.train.extra == {"lora_dropout": 0.1}
    assert job.train.buckets is not None
    assert job.train.buckets.reduce == 5


@pytest.mark.parametrize("flag", [*TRAIN, *SERVE], ids=lambda flag: f"{flag.path}{flag.name}")
def test_every_flag_sets_a_key_of_the_form(flag) -> None:
    """No flag points at a key that the form of a job does not have; its type is read from there."""
    assert kind_of(flag.path)


@pytest.mark.parametrize("flags", [TRAIN, SERVE], ids=["train", "serve"])
def test_flag_names_are_unique(flags) -> None:
    """No two flags of a command have the same name."""
    names = [flag.name for flag in flags]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["train", "m", "--recompute", "ful"], "did you mean full?) [--recompute]"),
        (["train", "m", "--micro-batch", "0"], "[--micro-batch]"),
        (["train", "m", "--micro-batch", "x"], "is not a whole number"),
        (["train", "m", "--lora", "4", "--qlora", "8"], "--qlora: sets train.adapter.rank, and so does --lora"),
        (["train", "m", "--set", "train.extra"], "KEY=VALUE"),
        (["train", "m", "--set", "train.typo=1"], "train.typo: unknown key"),
        (["train", "nosuchmodel-9000"], "model: unknown model"),
        (["train", "meta-llama/Llama-3.2-1B", "--gpu", "nosuchgpu"], "hardware.gpu: unknown GPU"),
        (["train", "meta-llama/Llama-3.2-1B", "--save", "/nonexistent/job.yaml"], "cannot be written"),
        (["train", "meta-llama/Llama-3.2-1B", "--save", "job.txt"], "written as .yaml"),
        (["estimate", "a.yaml", "--given", "missing.yaml"], "missing.yaml: cannot be read"),
        (["estimate", "a.yaml", "b.yaml", "--chart", "x.svg"], "one"),
        (["estimate", str(LORA), "--chart", "x.pdf"], ".svg, .png, .html"),
        (["estimate", str(LORA), "--unit", "GiBB"], "is not one of"),
        (["estimte", "x"], "did you mean estimate"),
        (["explain", str(LORA), "wieghts"], "did you mean weights"),
        (["explain", str(LORA), "--rank", "pp7"], "no rank type"),
        (["fit", str(LORA), "--grow", "micro_bach"], "did you mean micro_batch"),
        (["gpus", "qqqq"], "unknown GPU"),
        (["models", "qqqq"], "unknown model"),
        (["formulas", "zeor-2"], "did you mean zero-2"),
        (["formulas", "zero-2", "P=x"], "LETTER=VALUE"),
        (["formulas", "zero-2", "P=1"], "is missing"),
        (["formulas", "zero", "P=1"], "values need one formula"),
    ],
)
def test_bad_input_is_one_message_on_standard_error(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, one line that names the place, and nothing on standard output."""
    assert run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_explain_a_row_and_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """A row shows formula, numbers and source; a setting shows its origin; both also as JSON."""
    assert run(["explain", str(LORA), "weights"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("formula", "numbers", "bytes", "source"))
    assert run(["explain", str(LORA), "train.micro_batch"]) == 0
    assert "given" in capsys.readouterr().out
    run(["explain", str(LORA), "weights", "--json"])
    (line,) = json_lines(capsys)
    assert line["rows"]
    assert all({"formula", "numbers", "source"} <= set(row) for row in line["rows"])
    run(["explain", str(LORA), "train.micro_batch", "--json"])
    assert json_lines(capsys)[0]["setting"]["value"] == 1


def test_fit(jobs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The largest micro-batch fits and the next does not, by the estimator's own word."""
    assert run(["fit", jobs["small"], "--grow", "micro_batch", "--json"]) == 0
    (line,) = json_lines(capsys)
    for value, fits in ((line["value"], True), (line["stop"]["value"], False)):
        job = read_job(jobs["small"])
        raw = {"model": job.model, "hardware": {"gpu": "rtx-4090"}, "train": {"framework": "pytorch", "micro_batch": value, "seq_len": 128}}
        assert everybyte.estimator.estimate(read_job(raw)).fits is fits
    assert run(["fit", jobs["big"], "--grow", "micro_batch"]) == 1


def test_catalogue_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Searches find by words; one hit alone is shown with its sources; JSON has a line for each."""
    assert run(["gpus", "4090", "laptop"]) == 0
    assert "source" in capsys.readouterr().out
    run(["gpus", "--json"])
    gpus = json_lines(capsys)
    assert len(gpus) > 100
    assert all(gpu["capacity"] > 2**30 for gpu in gpus)
    assert run(["models", "qwen3"]) == 0
    assert "Qwen/Qwen3-8B" in capsys.readouterr().out
    assert run(["models", "--architectures"]) == 0
    assert "LlamaForCausalLM" in capsys.readouterr().out.splitlines()


def test_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    """The book is listed, searched and computed; 7 B parameters on 8 ranks under ZeRO-2 are 2·7e9 + 14·7e9/8 bytes."""
    assert run(["formulas"]) == 0
    assert "zero-2" in capsys.readouterr().out
    assert run(["formulas", "zero-2", "P=7e9", "K=12", "D=8"]) == 0
    out = capsys.readouterr().out
    assert "26,250,000,000 bytes" in out
    assert "2·7,000,000,000" in out
    run(["formulas", "zero-2", "P=7_000_000_000", "K=12", "D=8", "--json"])
    assert json_lines(capsys)[0]["result"] == 26_250_000_000


def test_faults_of_the_program_are_one_message_too(jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An exception that nobody expected ends as one message with a way out; the traceback comes only when asked for."""

    def broken(job: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(everybyte.estimator, "accounted", broken)
    assert run(["estimate", jobs["small"]]) == 2
    err = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in err
    assert "report it" in err
    assert "Traceback" not in err
    assert run(["explain", jobs["small"]]) == 2
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("EVERYBYTE_DEBUG", "1")
    assert run(["estimate", jobs["small"], "--json"]) == 2
    out, err = capsys.readouterr()
    assert "Traceback" in err
    assert json.loads(out)["name"] == "small"


def test_every_command_takes_json() -> None:
    """--json is an option of every command."""
    from everybyte.cli.app import LazyGroup, group

    assert isinstance(group, LazyGroup)
    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert any("--json" in parameter.opts for parameter in command.params), name


@pytest.mark.parametrize("command", [[], ["train"], ["serve"]])
def test_examples_in_the_help_are_answered(command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever copies a line of the help that needs no file gets an answer, not a refusal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    run([*command, "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    examples = [line for line in lines if line.startswith(("everybyte train m", "everybyte train Q", "everybyte serve m", "everybyte serve Q"))]
    assert len(examples) >= 2
    for example in examples:
        assert run(shlex.split(example)[1:]) in (0, 1), example


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("everybyte tr", {"train", "trace"}),
        ("everybyte train Qwen/Qwen3-0", {"Qwen/Qwen3-0.6B"}),
        ("everybyte train llama --gpu rtx-409", {"rtx-4090", "rtx-4090-d", "rtx-4090-laptop"}),
        ("everybyte serve x --gpu h200", {"h200-sxm-141gb", "h200-nvl-141gb"}),
    ],
)
def test_a_shell_completes(words: str, expected: set[str]) -> None:
    """Commands, models and GPUs are completed by what click prints to the shell."""
    environment = {**os.environ, "_EVERYBYTE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    command = [sys.executable, "-c", "from everybyte.cli import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert expected <= {line.partition(",")[2] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("purpose", ["train", "serve"])
@pytest.mark.parametrize("width", ["80", "120"])
def test_help_has_groups_and_every_flag_a_meaning(purpose: str, width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Flags stand under headings, none is without text, and no line is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", width)
    run([purpose, "--help"])
    out = capsys.readouterr().out
    assert all(flag.help and flag.group for flag in (*TRAIN, *SERVE))
    assert {f"{flag.group}:" for flag in (TRAIN if purpose == "train" else SERVE)} <= set(out.splitlines())
    options = out[out.index("Hardware:") :]
    assert max(map(len, options.splitlines())) <= int(width)


def test_the_ledger_of_time_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """`explain JOB time` shows every term with its formula, and as JSON the terms add up to the step."""
    assert run(["explain", EXAMPLE, "time"]) == 0
    assert "matrix products" in capsys.readouterr().out
    run(["explain", EXAMPLE, "time", "--json"])
    (line,) = json_lines(capsys)
    terms = line["time"]
    run(["estimate", EXAMPLE, "--json"])
    (answer,) = json_lines(capsys)
    assert sum(term["seconds"] for term in terms) == pytest.approx(answer["figures"]["step.time_s"])
    assert all(term["formula"] and term["source"] for term in terms)


EXAMPLE = str(Path(__file__).parents[2] / "examples" / "llama-3.1-8b-lora-24gb.yaml")
