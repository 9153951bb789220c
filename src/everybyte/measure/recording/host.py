"""Host memory of a process and its children, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def tree(root: int) -> list[int]:
    """A process and all that it started, that still run."""
    parents: dict[int, list[int]] = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                parents.setdefault(parent, []).append(int(entry.name))
    found, ahead = [], [root]
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead += parents.get(pid, [])
    return found


def resident(pids: list[int]) -> int:
    """Bytes of their pages that are in memory; pages that processes share count once for each."""
    return sum(_resident(pid) for pid in pids)


def _parent(entry: Path) -> int | None:
    try:
        text = (entry / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:  # it has ended
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def _resident(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0
