"""The door for Python: everybyte.trace(...)."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import everybyte
from everybyte.basics.errors import BadInput


@pytest.mark.cold
def test_the_package_can_be_called(compiler: None, toy: str) -> None:
    """`everybyte.trace(target)` answers, also when modules of the package of that name were imported before."""
    importlib.import_module("everybyte.trace.run")
    answer = everybyte.trace(f"{toy}:four_layers", gpu="l40s", steps=1, alloc_conf="expandable_segments:True")
    assert answer.hardware is not None
    assert answer.hardware.gpu == "L40S"
    assert answer.fits


def test_a_function_of_a_file_is_found(compiler: None, toy: str) -> None:
    """A function itself can be given: the process of the trace imports it from its file."""
    spec = importlib.util.spec_from_file_location("programs_of_tests", toy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answer = everybyte.trace(module.module_alone, inputs=["32,64,128,128"], steps=1)
    assert answer.name == f"{Path(toy).resolve()}:module_alone"
    assert answer.figures["peak.allocated"] >= 3 * 128 * 2**20


def test_what_cannot_be_imported_elsewhere_is_refused() -> None:
    """A function inside a function and an object that is no function are refused with the reason."""

    def inside() -> None: ...

    for target, words in ((inside, "does not stand at the top level of a file"), (object(), "needs a function that builds it there")):
        with pytest.raises(BadInput, match=words):
            everybyte.trace(target)  # type: ignore[arg-type]


def test_importing_everybyte_loads_no_torch() -> None:
    """The name `everybyte.trace` costs nothing until it is called."""
    code = "import sys, everybyte; everybyte.trace; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
