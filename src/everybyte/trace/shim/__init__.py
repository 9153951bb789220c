"""The fake CUDA device's C++ part: compiled once for each installed torch, kept in the user's cache, loaded before torch. Builds for CPUs and for CUDA
take it alike; a real GPU of the machine is left alone."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from everybyte.basics.errors import EverybyteError, MissingExtra

SOURCE = Path(__file__).with_name("fakecuda.cpp")
COMPILERS = ("c++", "g++", "clang++")


class NoFakeDevice(EverybyteError):
    """The fake device cannot be made here; the message says why and what helps."""


def load(gpus: int = 1) -> None:
    """Imports torch, which this process must not have done yet, so that it takes tensors on `cuda`. Raises NoFakeDevice, MissingExtra without torch."""
    if "torch" in sys.modules:
        raise NoFakeDevice("the fake device is loaded before torch, but torch is imported already")
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise MissingExtra("tracing", "trace")
    library = ctypes.CDLL(str(built(Path(spec.origin).parent)))
    library.everybyte_count_fake_cuda(gpus)
    import torch  # noqa: F401  # a build for CUDA sets a guard of its own while it is imported

    library.everybyte_install_fake_cuda()


def built(torch: Path, cache: Path | None = None) -> Path:
    """The compiled library for the torch in that folder, compiled if it is not in the cache. Raises NoFakeDevice where no compiler is found or it fails.

    It is linked to the libraries of that folder, so each environment has its own: another one of the same version may be deleted."""
    torch = torch.resolve()
    digest = hashlib.sha256(SOURCE.read_bytes() + os.fsencode(torch)).hexdigest()[:12]
    folder = cache or cache_folder()
    target = folder / f"fakecuda-{version('torch')}-py{sys.version_info.major}{sys.version_info.minor}-{digest}.so"
    if target.exists():
        return target
    compiler = os.environ.get("CXX") or next((name for name in COMPILERS if shutil.which(name)), None)
    if compiler is None:
        raise NoFakeDevice("tracing compiles a small library once, and no C++ compiler is here: install one (Debian: apt-get install g++), or name it in CXX")
    folder.mkdir(parents=True, exist_ok=True)
    # compiled beside the target and moved into place, so that two traces that start at once do not meet
    with tempfile.TemporaryDirectory(dir=folder) as work:
        output = Path(work) / target.name
        flags = ["-O1", "-std=c++20", "-shared", "-fPIC", f"-I{torch / 'include'}", f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
        done = subprocess.run([compiler, str(SOURCE), "-o", str(output), *flags], check=False, capture_output=True, text=True)
        if done.returncode:
            fault = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:])
            raise NoFakeDevice(f"the fake device does not compile with {compiler} for torch {version('torch')}: {fault.strip()}")
        output.replace(target)
    return target


def cache_folder() -> Path:
    """Where compiled libraries are kept: `everybyte` in the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "everybyte"
