"""Put in front of the path of a recorded program's processes: each writes what torch saw when it ends. Python imports a module of this name at every start."""

import atexit
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

HERE = os.path.dirname(os.path.abspath(__file__))


def _finish() -> None:
    folder = os.environ.get("EVERYBYTE_RECORD")
    if folder is None or "torch" not in sys.modules:
        return
    try:
        from everybyte.measure.recording.inside import Recorder

        Recorder(os.path.join(folder, f"{os.getpid()}.json")).write()
    except Exception as fault:  # noqa: BLE001  # a fault of the record must not become one of the program
        sys.stderr.write(f"everybyte: this process is not in the record: {fault}\n")


def _run_the_one_that_stood_here() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


atexit.register(_finish)
_run_the_one_that_stood_here()
