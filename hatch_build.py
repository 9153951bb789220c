"""Builds `everybyte.allocator._compiled` where there is a C compiler. Without one the package is complete as well: Python does the same, ten times as slowly.

One wheel serves a platform for every Python from 3.11 on (the stable interface, abi3); the wheel without the module serves all platforms.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "everybyte.allocator._compiled"
SOURCE = "src/everybyte/allocator/_compiled.c"


class CompileHook(BuildHookInterface[Any]):
    """Runs before a wheel is put together, and before an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles into the source tree; a wheel with the module is one of this platform."""
        built = self._compiled()
        if built is None:
            self.app.display_warning("no C compiler: the allocator is replayed in Python")
        elif version == "standard":
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"].append(built.relative_to(Path(self.root).resolve()).as_posix())

    def _compiled(self) -> Path | None:
        """The module's file, or None where it cannot be built."""
        from setuptools import Distribution, Extension
        from setuptools.errors import BaseError, CCompilerError

        extension = Extension(NAME, [SOURCE], py_limited_api=True, define_macros=[("Py_LIMITED_API", "0x030b0000")])
        command: Any = Distribution({"ext_modules": [extension], "package_dir": {"": "src"}}).get_command_obj("build_ext")
        with TemporaryDirectory() as folder:
            command.inplace, command.build_temp, command.build_lib = True, folder, folder
            try:
                command.ensure_finalized()
                command.run()
            except (BaseError, CCompilerError, OSError):
                return None
            return Path(command.get_ext_fullpath(NAME)).resolve()
