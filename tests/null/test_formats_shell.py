"""The small shell: what launch scripts write, what cannot be known, and what is refused."""

from __future__ import annotations

import textwrap

import pytest

from everybyte.basics.errors import BadInput
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.shell.script import commands_of_text
from everybyte.formats.source import Source


def commands(text: str, name: str = "run.sh", **files: str) -> list[Command]:
    """The commands of a script, with other files given beside it."""
    source = Source(textwrap.dedent(text).lstrip("\n"), name)
    others = [Source(content, path.replace("__", ".")) for path, content in files.items()]
    return commands_of_text(source, Context([source, *others]))


def one(text: str, name: str = "run.sh", **files: str) -> Command:
    """The only command of a script."""
    found = commands(text, name, **files)
    assert len(found) == 1, [command.words for command in found]
    return found[0]


def words(command: Command) -> list[str]:
    """Its words as text."""
    return [word.text for word in command.words]


def test_a_word_knows_the_line_it_comes_from() -> None:
    """Options gathered in a variable keep the line on which each was written."""
    command = one("""
        ARGS=" \\
          --max-model-len 8192 \\
          --dtype half"
        vllm serve m $ARGS
        """)
    lines = {word.text: word.place.line for word in command.words}
    assert lines == {"vllm": 4, "serve": 4, "m": 4, "--max-model-len": 2, "8192": 2, "--dtype": 3, "half": 3}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("${A:-d}", "d"),
        ("${B:-d}", "b"),
        ("${A:--1}", "-1"),
        ("${B:+x}", "x"),
        ("${A:=e}", "e"),
        ("${B%b}c", "c"),
        ("${P##*/}", "y.gguf"),
        ("${P%.*}", "m/y"),
        ("${P//[mx]/k}", "k/y.gguf"),
        ("$((8 * ${N} / 2))", "16"),
        ("$(expr 16 / $N)", "4"),
        ("$((N > 2 ? 7 : 8))", "7"),
        ("${L[1]}", "two"),
        ("${#L[@]}", "2"),
        ("$(basename $P .gguf)", "y"),
        ("$(echo 0,1,2 | tr ',' '\\n' | wc -l)", "3"),
        ("`echo $N`", "4"),
        ("${B^^}", "B"),
        ("${P:0:1}", "m"),
    ],
)
def test_forms_of_variables(written: str, expected: str) -> None:
    """Every form comes to what bash makes of it."""
    assert words(one(f"B=b N=4 P=m/y.gguf\nL=(one # first\n two)\nprogram {written}\n"))[1:] == [expected]


def test_what_cannot_be_known_is_kept_as_written_with_the_reason() -> None:
    """Arguments, programs and unset variables stay words of their own."""
    command = one('vllm serve "$1" --tensor-parallel-size $(nvidia-smi -L | wc -l) --port $PORT\n')
    assert words(command) == ["vllm", "serve", "$1", "--tensor-parallel-size", "$(nvidia-smi -L | wc -l)", "--port", "$PORT"]
    assert [word.unknown for word in command.words if word.unknown] == [
        "$1 is an argument of the script",
        "$(nvidia-smi -L | wc -l) is never run",
        "$PORT is not set in the script",
    ]


def test_placeholders_are_no_redirections() -> None:
    """`<your-model>` waits to be filled in."""
    command = one("vllm serve <your-model> --port 8000 < /dev/null > log\n")
    assert words(command) == ["vllm", "serve", "<your-model>", "--port", "8000"]
    assert command.words[2].unknown == "<your-model> waits to be filled in"


def test_here_documents_become_files() -> None:
    """The text that a script writes is there for the command that reads it, with its line."""
    command = one("""
        N=4
        cat > /tmp/ds.json <<EOF
        {"train_batch_size": $N}
        EOF
        echo "x: $N" >> more.yaml
        deepspeed train.py --deepspeed /tmp/ds.json
        """)
    assert command.files["/tmp/ds.json"].text == '{"train_batch_size": 4}\n'  # a path inside a script
    assert ":3 " in command.files["/tmp/ds.json"].path
    assert command.files["more.yaml"].text == "x: 4\n"


def test_a_broken_continuation_ends_the_command_and_is_told() -> None:
    """A blank behind the backslash cuts the flags below off, as in bash."""
    found = commands("vllm serve m --dtype half \\ \n  --max-model-len 4096\n")
    assert words(found[0]) == ["vllm", "serve", "m", "--dtype", "half", " "]
    assert [(finding.id, finding.place) for finding in found[0].findings] == [("broken-continuation", "run.sh:1")]


def test_conditions_of_unset_arguments_do_not_end_the_script() -> None:
    """`if [ $# -lt 1 ]; then usage; exit 1; fi` is passed, and defaults below hold."""
    command = one("""
        usage() { echo "usage: $0 MODEL"; exit 1; }
        if [ $# -lt 1 ]; then usage; fi
        [ -z "$MODEL" ] && { echo "no model"; exit 1; }
        SIZE=${2:-2}
        if [[ "$SIZE" -gt 1 ]]; then EXTRA="--tensor-parallel-size $SIZE"; else EXTRA=""; fi
        vllm serve m $EXTRA
        """)
    assert words(command) == ["vllm", "serve", "m", "--tensor-parallel-size", "2"]


def test_what_lies_behind_a_validation_counts_where_nothing_else_starts() -> None:
    """A script that sets an empty default and refuses it shows what it would start."""
    text = 'M=""\nwhile [[ $# -gt 0 ]]; do case $1 in --m) M=$2; shift 2;; esac; done\nif [ -z "$M" ]; then echo need; exit 1; fi\nvllm serve m --dtype half\n'
    assert words(one(text)) == ["vllm", "serve", "m", "--dtype", "half"]
    assert words(one("vllm serve a\nexit 0\nvllm serve b\n")) == ["vllm", "serve", "a"]


def test_what_is_typed_in_is_not_known() -> None:
    """`read` without input waits for a person."""
    command = one('while [ -z "$M" ]; do read -p "model? " M; done\nvllm serve "$M"\n')
    assert command.words[2] == (*command.words[2][:2], "$M is read while the script runs")


def test_loops_over_options_and_getopts_leave_the_defaults() -> None:
    """Without arguments no option is read."""
    command = one("""
        CTX=4096
        while getopts "c:" o; do case $o in c) CTX=$OPTARG ;; esac; done
        while [[ $# -gt 0 ]]; do case "$1" in --ctx) CTX="$2"; shift 2 ;; *) exit 1 ;; esac; done
        llama-server -m x.gguf -c $CTX "$@"
        """)
    assert words(command)[-2:] == ["-c", "4096"]


def test_programs_of_a_branch_that_is_not_taken_count_where_nothing_else_starts() -> None:
    """A script that does nothing without an argument shows what its functions would start."""
    command = one("""
        start() { vllm serve m --dtype half; }
        case "$1" in start) start ;; *) echo usage; exit 1 ;; esac
        """)
    assert words(command) == ["vllm", "serve", "m", "--dtype", "half"]


def test_nested_shells_see_exported_variables_only() -> None:
    """`bash -c '...'` expands in its own environment."""
    command = one("""
        export A=4 LAUNCH="torchrun --nproc_per_node 2"
        B=5
        srun bash -c '$LAUNCH train.py --a $A --b $B'
        """)
    assert words(command) == ["train.py", "--a", "4", "--b", "$B"]
    assert [launcher.name for launcher in command.launchers] == ["srun", "torchrun"]


def test_scripts_given_beside_are_followed() -> None:
    """`source env.sh` sets variables, and `bash inner.sh` starts what the inner script starts."""
    command = one("source env.sh\nbash inner.sh 7\n", env__sh="export M=org/m\n", inner__sh='vllm serve "$M" --max-num-seqs $1\n')
    assert words(command) == ["vllm", "serve", "org/m", "--max-num-seqs", "7"]
    assert command.words[0].place.source == "inner.sh"


def test_wrappers_vanish_and_launchers_are_kept() -> None:
    """What says nothing of the run is taken off, redirections and the background sign too."""
    command = one("CUDA_VISIBLE_DEVICES=0 nohup numactl -m 0 env A=1 uv run --with x python -u -m vllm.entrypoints.openai.api_server --model m > log 2>&1 &\n")
    assert words(command) == ["vllm.entrypoints.openai.api_server", "--model", "m"]
    assert command.launchers == ()
    assert command.environment("CUDA_VISIBLE_DEVICES") == "0"
    assert command.environment("A") == "1"


@pytest.mark.parametrize(
    ("text", "gpus", "per_node"),
    [
        ("torchrun --nproc_per_node=8 --nnodes 2 t.py", 16, 8),
        ("torchrun --nproc-per-node 4 t.py", 4, None),
        ("accelerate launch --num_processes 16 --num_machines 4 t.py", 16, 4),
        ("deepspeed --include localhost:0,2 t.py", 2, None),
        ("deepspeed --num_nodes 2 --num_gpus 4 t.py", 8, 4),
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:a100:4\nsrun python t.py", 16, 4),
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=8\nsrun torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES t.py", 16, 8),
        ("mpirun -np 4 -x A -mca btl tcp -bind-to none trtllm-llmapi-launch t.py", 4, None),
        ("docker run --gpus '\"device=0,1\"' vllm/vllm-openai:v0.8.5 --model m", 2, None),
        ("docker run --gpus 2 -e A=b vllm/vllm-openai --model m", 2, None),
        ("export NPROC_PER_NODE=4 NNODES=2\nswift sft --model m", 8, 4),
        ("CUDA_VISIBLE_DEVICES=0,1,3 python t.py", 3, None),
        ("python t.py", None, None),
        ("docker run --gpus all vllm/vllm-openai --model m", None, None),
    ],
)
def test_gpus_are_counted_by_whoever_starts_the_processes(text: str, gpus: int | None, per_node: int | None) -> None:
    """The innermost launcher decides; schedulers and containers fill in."""
    settings = one(text + "\n").settings
    assert [settings[key].value if key in settings else None for key in ("hardware.gpus", "hardware.gpus_per_node")] == [gpus, per_node]


def test_an_image_is_the_program_and_its_tag_the_version() -> None:
    """Flags behind an image belong to the program that it starts; its own environment is all the program sees."""
    command = one("export X=1\ndocker run --rm -it -p 80:80 -e HF_TOKEN=t -v $PWD:/d vllm/vllm-openai:v0.8.5 --model /d/m -tp 2\n")
    assert words(command) == ["vllm", "serve", "--model", "/d/m", "-tp", "2"]
    assert command.settings["serve.version"].value == "0.8.5"
    assert set(command.env) == {"HF_TOKEN"}


def test_variables_that_are_not_exported_are_told() -> None:
    """A variable on a line of its own does not reach the program."""
    command = one("CUDA_VISIBLE_DEVICES=0,1 \\\nNPROC_PER_NODE=2\nswift sft --model m\n")
    assert command.settings == {}
    assert {finding.id for finding in command.findings} == {"not-exported"}


def test_powershell() -> None:
    """Backticks continue, arrays are splatted, parameters have defaults."""
    command = one(
        """
        param([string]$Model = "C:\\m\\a-Q4_K_M.gguf", [int]$Ctx = 8192)
        $env:CUDA_VISIBLE_DEVICES = "0,1"
        $flags = @(
            "-m", $Model,   # the model
            "-c", "$Ctx"
        )
        & "C:\\tools\\llama-server.exe" @flags `
            -fa on
        """,
        "go.ps1",
    )
    assert words(command) == ["C:\\tools\\llama-server.exe", "-m", "C:\\m\\a-Q4_K_M.gguf", "-c", "8192", "-fa", "on"]
    assert command.settings["hardware.gpus"].value == 2
    assert [word.place.line for word in command.words] == [7, 4, 1, 5, 5, 8, 8]


def test_batch_files() -> None:
    """Carets continue, `set` sets, `REM` and `::` are comments."""
    command = one(
        """
        @echo off
        REM serve
        set "MODEL=D:\\m\\x-Q5_K_M.gguf"
        if not defined NGL set NGL=99
        if "%1"=="" (set PORT=8080) else (set PORT=%1)
        start "title" /B "C:\\Program Files\\llama-server.exe" ^
          -m "%MODEL%" -ngl %NGL% --port %PORT% > log.txt
        """,
        "go.bat",
    )
    assert words(command) == ["C:\\Program Files\\llama-server.exe", "-m", "D:\\m\\x-Q5_K_M.gguf", "-ngl", "99", "--port", "8080"]


def test_windows_paths_in_a_command() -> None:
    """Backslashes of a path are no escapes where the program is one of Windows."""
    command = one("build\\bin\\llama-cli.exe -m models\\a-Q4_0.gguf -ngl 33\n", "")
    assert words(command) == ["build\\bin\\llama-cli.exe", "-m", "models\\a-Q4_0.gguf", "-ngl", "33"]
    assert words(one("PS C:\\x> .\\llama-server.exe -m a.gguf\n", "")) == [".\\llama-server.exe", "-m", "a.gguf"]


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ("x\nvllm serve 'a\n--b c\n", "run.sh:2", "single quote"),
        ('vllm serve "a\n', "run.sh:1", "double quote"),
        ("a=$(x\n", "run.sh:1", "parenthesis"),
        ("echo `x\n", "run.sh:1", "backtick"),
        ("if true; then\nx\n", "run.sh:1", "'fi'"),
        ("X=1\nwhile true; do X=$X$X$X; done; " + "for i in {1..30}; do X=$X$X; done\n", "run.sh:2", "grows"),
        ("((((" * 40 + "\n", "run.sh:1", "nested"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str, place: str, part: str) -> None:
    """Quoting that does not close and texts that grow without end."""
    with pytest.raises(BadInput, match=part) as caught:
        commands(text)
    assert caught.value.path == place


def test_output_behind_a_command_is_passed_over() -> None:
    """A command that was copied with what it printed is still read."""
    command = one("$ ./llama-server -m m.gguf \\\n  -c 4096\nmain: build 3594 (8e549b42)\nload: (done) | tid=1\n")
    assert words(command) == ["./llama-server", "-m", "m.gguf", "-c", "4096"]
    assert "lines-passed-over" in {finding.id for finding in command.findings}


@pytest.mark.parametrize("text", ["srun $SRUN_ARGS torchrun $DISTRIBUTED_ARGS $SCRIPT --a 1\n", "docker run $OPTS $IMAGE $SCRIPT --a 1\n"])
def test_unknown_words_among_flags_of_launchers(text: str) -> None:
    """A variable that is named like flags is more of them; another one is the program, the image or the container."""
    assert words(one(text)) == ["$SCRIPT", "--a", "1"]


def test_nothing_is_executed(tmp_path: pytest.TempPathFactory) -> None:
    """No program runs and no file is opened, whatever a script says."""
    target = f"{tmp_path}/made"
    found = commands(f"touch {target}\necho x > {target}\nX=$(touch {target})\neval 'touch {target}'\nsource /etc/passwd\npython t.py $(cat /etc/hostname)\n")
    assert words(found[-1]) == ["t.py", "$(cat /etc/hostname)"]
    import os

    assert not os.path.exists(target)


def test_endless_loops_end() -> None:
    """A loop that never ends is passed through once, and a script has so many steps."""
    assert words(one("while true; do vllm serve m; sleep 5; done\n")) == ["vllm", "serve", "m"]
    found = commands("i=0\nvllm serve m\nwhile [ $i -lt 1000000 ]; do i=$((i + 1)); done\n")
    assert any(finding.id == "script-too-long" for finding in found[0].findings)


def test_two_here_documents_opened_on_the_last_line() -> None:
    """A script that is cut off behind two here-document operators is read to its end and said to be cut off."""
    found = one("vllm serve m <<A <<B")
    assert words(found) == ["vllm", "serve", "m"]
