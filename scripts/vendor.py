"""Fetches the libraries of the page from npm, at pinned versions, into src/everybyte/web/static/vendor: `python scripts/vendor.py`.

The page loads them from our own server: no CDN, no build step, and it works offline. Of each package only the files that the page loads are kept, and its
licence. `vendor.json` records version, licence and SHA-256 of every file; a test compares them, so that nobody edits a vendored file by hand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).parents[1] / "src" / "everybyte" / "web" / "static" / "vendor"
RECORD = "vendor.json"


class Package(NamedTuple):
    """An npm package: what of it is kept, and why the page needs it."""

    name: str
    version: str
    why: str
    files: tuple[str, ...]
    """Paths in the package."""


FONTS = ("Main-Regular", "Main-Italic", "Main-Bold", "Math-Italic", "AMS-Regular", "Size1-Regular", "Size2-Regular", "Size3-Regular", "Size4-Regular")
"""KaTeX' fonts of letters, digits, operators and brackets; its others (script, fraktur ...) occur in no formula of ours and stay out."""

PACKAGES = (
    Package("vega", "5.33.0", "draws the pictures", ("build/vega.min.js",)),
    Package("vega-lite", "5.23.0", "compiles the specifications that the server sends", ("build/vega-lite.min.js",)),
    Package("vega-interpreter", "1.2.0", "evaluates their expressions without eval, so that the page can forbid it", ("build/vega-interpreter.min.js",)),
    Package("vega-embed", "6.29.0", "puts a picture into the page, with tooltips", ("build/vega-embed.min.js",)),
    Package(
        "katex",
        "0.16.22",
        "sets formulas",
        ("dist/katex.min.js", "dist/katex.min.css", *(f"dist/fonts/KaTeX_{font}.woff2" for font in FONTS)),
    ),
)
LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE")


def main() -> int:
    """Fetches all packages anew and writes the record."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    record = [fetch(package) for package in PACKAGES]
    (TARGET / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    total = sum(path.stat().st_size for path in TARGET.rglob("*") if path.is_file())
    print(f"{len(record)} packages, {total / 1e6:.2f} MB in {TARGET}")
    return 0


def fetch(package: Package) -> dict[str, object]:
    """Downloads a package with npm and keeps its files and its licence; what the record says of it."""
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"{package.name}@{package.version}"], cwd=folder, check=True, text=True, stdout=subprocess.PIPE
        ).stdout.split()[-1]
        with tarfile.open(Path(folder) / packed) as archive:
            archive.extractall(folder, filter="data")
        root = Path(folder) / "package"
        licence = next(name for name in LICENCES if (root / name).exists())
        described = json.loads((root / "package.json").read_text(encoding="utf-8"))
        home = TARGET / package.name
        for name in (*package.files, licence):
            kept = home / (name.removeprefix("build/").removeprefix("dist/"))
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, kept)
    digests = {str(path.relative_to(TARGET)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(home.rglob("*")) if path.is_file()}
    return {"name": package.name, "version": package.version, "licence": described["license"], "why": package.why, "files": digests}


if __name__ == "__main__":
    sys.exit(main())
