"""Scripts of Windows: PowerShell and cmd. Each module has `launches(source)`: the commands as (words, environment)."""

from __future__ import annotations

import re
from types import ModuleType

from everybyte.formats.source import Source

_POWERSHELL = re.compile(
    r"(?im)(?<=\s)`[ \t]*$|^\s*(?:\[\w+\])?\$(?:env:)?\w+\s*\+?=\s|^\s*\$env:\w+\s*=|^\s*&\s+[\"']|^\s*&\s+\$|^\s*param\s*\(|^\s*Start-Process\b"
)
_CMD = re.compile(r"(?im)^\s*\"?(?:\.\\|[a-z]:\\|\w+\\)[^\n\"'/]*\.exe\b|^\s*@?echo\s+off\b|\s\^[ \t]*$|^\s*@?rem\s|^\s*::|^\s*@?set\s+(?:/a\s+)?\"?\w+=")


def dialect_of(source: Source) -> ModuleType | None:
    """The module that reads a script that is not bash; None for bash."""
    from everybyte.formats.shell.dialects import batch, powershell

    if source.ending in (".ps1", ".bat", ".cmd"):
        return powershell if source.ending == ".ps1" else batch
    if source.ending in (".sh", ".bash", ".sbatch", ".slurm") or source.text.startswith("#!"):
        return None
    if _is_bash(source.text):
        return None
    if _POWERSHELL.search(source.text):
        return powershell
    return batch if _CMD.search(source.text) else None


def _is_bash(text: str) -> bool:
    return re.search(r"(?m)\s\\[ \t]*$|^\s*export\s", text) is not None
