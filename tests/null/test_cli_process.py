"""The command as a process: exit codes, streams, pipes, terminals."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

LORA = Path(__file__).parents[2] / "examples" / "llama-3.1-8b-lora-24gb.yaml"
COMMAND = [sys.executable, "-c", "from everybyte.cli import main; main()"]


def environment(**changes: str) -> dict[str, str]:
    """The environment without anything that would change how the command shows things."""
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "TERM", "EVERYBYTE_DEBUG")}
    return {**kept, "TERM": "xterm-256color", **changes}


def process(*args: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, env=environment(**changes), timeout=60, check=False)


def on_terminal(*args: str, **changes: str) -> str:
    """What the command prints on a terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen([*COMMAND, *args], stdout=follower, stderr=follower, env=environment(**changes)) as child:
        os.close(follower)
        chunks = []
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # Linux reports the end of a terminal so
                break
            if not chunk:
                break
            chunks.append(chunk)
        child.wait(60)
    os.close(leader)
    return b"".join(chunks).decode()


def test_plain_when_piped() -> None:
    """A pipe gets text without escape codes, and standard error stays empty."""
    done = process("estimate", str(LORA))
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_colour_on_a_terminal_and_none_under_no_color() -> None:
    """A terminal gets colour; with NO_COLOR or TERM=dumb it gets none at all."""
    assert "\x1b[" in on_terminal("estimate", str(LORA))
    assert "\x1b" not in on_terminal("estimate", str(LORA), NO_COLOR="1")
    assert "\x1b" not in on_terminal("estimate", str(LORA), TERM="dumb")


def test_json_is_all_that_is_on_standard_output() -> None:
    """Under --json nothing else is printed, also on a terminal."""
    out = on_terminal("estimate", str(LORA), "--json")
    assert out.startswith('{"everybyte"')
    assert out.rstrip().endswith("}")
    assert out.count("\n") == 1


def test_a_terminal_without_unicode_is_no_obstacle() -> None:
    """An ASCII terminal gets another bar and question marks, not a failure."""
    done = process("estimate", str(LORA), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "####" in done.stdout


@pytest.mark.parametrize("args", [["explain", str(LORA)], ["gpus"], ["estimate", *[str(LORA)] * 20]])
def test_a_reader_that_goes_away(args: list[str]) -> None:
    """`everybyte ... | head -1` ends quietly."""
    line = "set -o pipefail; " + " ".join([*(f"'{part}'" for part in [*COMMAND, *args]), "| head -1"])
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


def test_exit_codes_of_the_process() -> None:
    """The exit code of the process is that of the answer; without a command the first steps are shown."""
    assert process("estimate", "missing.yaml").returncode == 2
    assert process("--version").returncode == 0
    assert process("--help").returncode == 0
    assert process().returncode == 0
    tiny = ["train", "meta-llama/Llama-2-70b-hf", "--gpu", "rtx-4090", "--json"]
    assert process(*tiny).returncode == 1


def test_the_fast_path_loads_no_drawing() -> None:
    """`estimate --json` imports neither rich nor the report's screens: a program waits for no colour."""
    script = (
        "import sys\nfrom everybyte.cli.app import run\n"
        f"assert run(['estimate', {str(LORA)!r}, '--json']) == 0\n"
        "loaded = [name for name in sys.modules if name.split('.')[0] in ('rich', 'torch', 'numpy', 'transformers', 'asyncio')]\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 0, done.stderr
