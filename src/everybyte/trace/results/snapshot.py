"""A trace as a memory snapshot: the pickle that torch's own viewer (pytorch.org/memory_viz, torch.cuda._memory_viz) opens."""

from __future__ import annotations

import pickle  # only written, never read
from typing import Any

from everybyte.allocator.blocks import Action, Block, Segment
from everybyte.allocator.replay import replay
from everybyte.allocator.settings import DEFAULT, AllocatorSettings
from everybyte.trace.recording.replay_script import script
from everybyte.trace.recording.timeline import Timeline
from everybyte.trace.request import BirthRow, Traced

PROTOCOL = 4
"""The viewer in the browser cannot read later ones."""
EVENT_US = 10
"""An event is shown as so many microseconds: a trace has an order and no time."""
KEYS = (1 << 40) - 1
"""The part of an allocator's key that is the birth's id; the stream stands above it."""

Frames = list[dict[str, Any]]


def snapshot(traced: Traced, settings: AllocatorSettings = DEFAULT) -> bytes:
    """The pickle, with what lived at the end of the last step, and all that was allocated and freed before, each with its operation, module and line."""
    timeline = Timeline(traced, settings)
    log: list[Action] = []
    allocator = replay(script(traced), settings, log=log)
    frames = {birth.id: _frames(timeline, birth) for birth in traced.births}
    content = {
        "segments": [_segment(segment, frames) for segment in allocator.segments()],
        "device_traces": [[_action(action, frames) for action in log]],
        "allocator_settings": _settings(settings),
        "external_annotations": [],
    }
    return pickle.dumps(content, protocol=PROTOCOL)


def _frames(timeline: Timeline, birth: BirthRow) -> Frames:
    """A stack of four: the operation, the module with phase and category, the program's line, and the place in the words of a ledger."""
    file, _, line = birth.line.rpartition(":")
    category = timeline.category_of(birth)
    place = "batch" if category == "input" else str(timeline.place(birth))
    return [
        {"name": birth.operation, "filename": "operation", "line": 0},
        {"name": birth.module or "outside modules", "filename": f"{birth.phase}, {category}", "line": 0},
        {"name": "program", "filename": file or "library", "line": int(line) if line.isdigit() else 0},
        {"name": place, "filename": "place", "line": 0},
    ]


def _action(action: Action, frames: dict[int, Frames]) -> dict[str, Any]:
    return {
        "action": action.name,
        "addr": action.address,
        "size": action.size,
        "stream": action.stream,
        "time_us": action.event * EVENT_US,
        "frames": frames.get(action.key & KEYS, []),
    }


def _segment(segment: Segment, frames: dict[int, Frames]) -> dict[str, Any]:
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": segment.active,
        "active_size": segment.active,
        "requested_size": sum(block.requested for block in segment.blocks),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [_block(block, frames) for block in segment.blocks],
    }


def _block(block: Block, frames: dict[int, Frames]) -> dict[str, Any]:
    lived_in = block.state != "inactive"
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": block.state,
        "frames": frames.get(block.key & KEYS, []) if lived_in else [],
    }


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": settings.max_split_bytes or -1,
        "garbage_collection_threshold": settings.collect_above,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {"1": 0},
    }
