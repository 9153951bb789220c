"""Builds the package as people get it and tries it: `python scripts/check_release.py`.

Wheel and source archive are built, checked by twine, and installed into a clean environment without extras; the command answers there, the size of the
install stays within its budget, and no library came along that the core does not need. Needs a network or a local package index for pip.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_MB = 20
"""Of the core install with its dependencies, pip apart, without bytecode. Ten of them are dependencies: Pygments (which rich brings) and PyYAML are 7.6."""
CORE = frozenset({"everybyte", "msgspec", "click", "rich", "pyyaml", "markdown-it-py", "mdurl", "pygments", "colorama", "pip", "setuptools"})
"""What a core install may hold: the four dependencies and theirs, and what an environment begins with."""
NEVER_IN_WHEEL = re.compile(r"^(?!everybyte/|everybyte-[^/]*\.dist-info/)|\.pyc$|/tests?/|\.po$")
JOB = '{"model": "Qwen/Qwen2.5-0.5B", "hardware": {"gpu": "l4"}, "train": {"micro_batch": 1, "seq_len": 64}}'


def main() -> int:
    """0 if everything is as it should be; stops at the first thing that is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="the tag of the release, which must name the version")
    parser.add_argument("--keep", type=Path, help="a folder for the built files")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel, archive = build(Path(folder))
        check_contents(wheel)
        python = install(Path(folder) / "clean", wheel)
        check_install(python, asked.tag)
        if asked.keep:
            asked.keep.mkdir(exist_ok=True)
            for path in (wheel, archive):
                shutil.copy(path, asked.keep)
    print("the release is as it should be")
    return 0


def build(folder: Path) -> tuple[Path, Path]:
    """Wheel and source archive, checked by twine."""
    tools = install(folder / "tools", "build", "twine")
    run(tools, "-m", "build", "--outdir", folder / "dist", ROOT)
    found = sorted((folder / "dist").iterdir())
    run(tools, "-m", "twine", "check", "--strict", *found)
    return next(path for path in found if path.suffix == ".whl"), next(path for path in found if path.suffix == ".gz")


def check_contents(wheel: Path) -> None:
    """Nothing but the package is in the wheel, and the data that it needs are."""
    names = zipfile.ZipFile(wheel).namelist()
    stray = [name for name in names if NEVER_IN_WHEEL.search(name)]
    assert not stray, f"not part of the package: {stray[:5]}"
    wanted = ("catalog/data/gpus.csv", "measure/data/accuracy.json", "report/locale/zh/LC_MESSAGES/everybyte.mo", "web/static/index.html", "py.typed")
    missing = [name for name in wanted if f"everybyte/{name}" not in names]
    assert not missing, f"missing in the wheel: {missing}"


def install(place: Path, *packages: str | Path) -> Path:
    """A fresh environment with the packages; its interpreter."""
    venv.create(place, with_pip=True)
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", *packages)
    return python


def check_install(python: Path, tag: str | None) -> None:
    """The command answers, the versions agree, and the install is small."""
    answer = json.loads(run(python, "-m", "everybyte", "estimate", "-", "--json", text=JOB))
    assert answer["fits"] is True, answer
    assert tag in (None, f"v{answer['everybyte']}"), f"tag {tag}, version {answer['everybyte']}"
    installed = {row["name"].casefold() for row in json.loads(run(python, "-m", "pip", "list", "--format", "json"))}
    assert installed <= CORE, f"not needed by the core: {installed - CORE}"
    site = Path(run(python, "-c", "import everybyte; print(everybyte.__file__)").strip()).parents[1]
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    size = sum(size for path, size in sizes.items() if path.relative_to(site).parts[0].split("-")[0] not in ("pip", "setuptools"))
    largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
    print(f"core install: {size / 1e6:.1f} MB of {MOST_MB}")
    assert size <= MOST_MB * 1e6, f"{size / 1e6:.1f} MB; the largest are {[(str(p.relative_to(site)), sizes[p]) for p in largest]}"


def run(python: Path, *words: str | Path, text: str = "") -> str:
    """Runs an interpreter outside of the project, so that the installed package is found and not the source; what it prints."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([python, *map(str, words)], input=text, cwd=python.parents[2], env=bare, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
