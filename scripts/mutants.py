"""Seeded mistakes, one at a time: do the tests of `make test` see them? `make mutants`.

Each mutant of tests/mutants/mutants.toml is put into a copy of the tree, and the files of tests that its set names run until one fails, which kills it. What
no file of its set sees has survived: it needs a test, or a set with the test that sees it. Exit 0 where at least 92 % are killed, 1 where fewer are, 2 where a
mutant's text is not in its file exactly once, or where tests fail without a mutant.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "mutants"
COPIED = ("src", "tests", "docs", "examples", "benchmarks", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "zensical.toml")
ENOUGH = 0.92
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Plugins that these tests do not need take as long to load as many a file of tests to run."""
PATIENCE = 600
"""Seconds for a file of tests. A mutant that makes them endless is killed."""


class Mutant(NamedTuple):
    """A mistake: a text of a file of the package, and what stands there instead."""

    name: str
    file: str
    find: str
    put: str
    tests: str


def main() -> int:
    """Runs the mutants and reports."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--check", action="store_true", help="only look whether every text is in its file")
    options.add_argument("--only", default="", help="mutants whose name, file or set holds this text")
    options.add_argument("--workers", type=int, default=2)
    asked = options.parse_args()
    sets = tomllib.loads((FOLDER / "sets.toml").read_text(encoding="utf-8"))
    mutants = [Mutant(**row) for row in tomllib.loads((FOLDER / "mutants.toml").read_text(encoding="utf-8"))["mutant"]]
    if faults := [fault for mutant in mutants for fault in stale(mutant, sets)]:
        print("\n".join(faults), file=sys.stderr)
        return 2
    if asked.check:
        print(f"{len(mutants)} mutants, each text is in its file")
        return 0
    chosen = [mutant for mutant in mutants if any(asked.only in text for text in (mutant.name, mutant.file, mutant.tests))]
    with tempfile.TemporaryDirectory(prefix="everybyte-mutants-") as folder:
        return run(chosen, sets, copies(Path(folder), asked.workers))


def stale(mutant: Mutant, sets: dict[str, list[str]]) -> Iterator[str]:
    """What is wrong with a mutant: its text, its file, its tests."""
    path = ROOT / "src" / "everybyte" / mutant.file
    count = path.read_text(encoding="utf-8").count(mutant.find) if path.exists() else 0
    if count != 1:
        yield f"{mutant.name!r}: its text is {count} times in {mutant.file}, not once: write the mutant anew for the code of today"
    if mutant.find == mutant.put:
        yield f"{mutant.name!r}: changes nothing"
    for test in sets.get(mutant.tests, ["(no such set)"]):
        if not (ROOT / "tests" / test).exists():
            yield f"{mutant.name!r}: {test} of the set {mutant.tests!r} does not exist"


def copies(folder: Path, count: int) -> list[Path]:
    """Copies of the tree, compiled so that a changed file is seen by its content and not by its time."""
    found = [folder / f"copy-{number}" for number in range(count)]
    for copy in found:
        copy.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".artefacts"))
            else:
                shutil.copy(source, copy / name)
        subprocess.run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src"], cwd=copy, check=False)
    return found


def run(mutants: list[Mutant], sets: dict[str, list[str]], trees: list[Path]) -> int:
    """Tries the mutants, several at a time. The exit code."""
    bench = Bench(trees)
    with ThreadPoolExecutor(len(trees)) as pool:
        found = pool.map(lambda mutant: bench.tried(mutant, sets[mutant.tests]), mutants)
        survivors = [mutant for number, (mutant, killer) in enumerate(zip(mutants, found, strict=True), 1) if not told(mutant, killer, number, len(mutants))]
    if bench.broken:
        print(f"these tests fail without any mutant: {', '.join(sorted(bench.broken))}", file=sys.stderr)
        return 2
    killed = len(mutants) - len(survivors)
    print(f"{killed} of {len(mutants)} mutants are killed, {killed / max(len(mutants), 1):.0%}")
    for mutant in survivors:
        print(f"  survived: {mutant.name} ({mutant.file}); tests asked: {', '.join(sets[mutant.tests])}")
    return 0 if killed >= ENOUGH * len(mutants) else 1


class Bench:
    """Copies of the tree, and which files of tests pass in an unchanged one."""

    def __init__(self, trees: list[Path]) -> None:
        self.free: Queue[Path] = Queue()
        for tree in trees:
            self.free.put(tree)
        self.sound: dict[str, bool] = {}
        self.broken: set[str] = set()

    def tried(self, mutant: Mutant, tests: list[str]) -> tuple[str, float]:
        """(the file of tests that kills a mutant, empty for none; seconds). A file kills that fails with the mutant and passes without it."""
        started = time.monotonic()
        with borrowed(self.free) as tree:
            for test in tests:
                with changed(tree, mutant):
                    survived = passes(test, tree)
                if not survived and self.is_sound(test, tree):
                    return test, time.monotonic() - started
        return "", time.monotonic() - started

    def is_sound(self, test: str, tree: Path) -> bool:
        """Whether a file of tests passes without a mutant; each is asked once."""
        if test not in self.sound:
            self.sound[test] = passes(test, tree)
            if not self.sound[test]:
                self.broken.add(test)
        return self.sound[test]


@contextmanager
def changed(tree: Path, mutant: Mutant) -> Iterator[None]:
    """While entered, the mutant's file has its mistake."""
    path = tree / "src" / "everybyte" / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(mutant.find, mutant.put), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(whole, encoding="utf-8")


def told(mutant: Mutant, killer: tuple[str, float], number: int, total: int) -> bool:
    """Prints what became of a mutant; whether it was killed."""
    test, seconds = killer
    print(f"[{number:2}/{total}] {seconds:4.0f} s  {f'killed by {test}' if test else 'SURVIVED'}: {mutant.name}", flush=True)
    return bool(test)


@contextmanager
def borrowed(free: Queue[Path]) -> Iterator[Path]:
    """A copy that nobody else has meanwhile."""
    tree = free.get()
    try:
        yield tree
    finally:
        free.put(tree)


def passes(test: str, tree: Path) -> bool:
    """Runs one file of tests at low priority, until its first failure. Random examples are the same each time, as in CI."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "CI": "1", **BARE}
    command = ["nice", "-n", "10", sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not long", f"tests/{test}"]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
