"""A traced training step as the snapshot that a GPU would have written: stacks as PyTorch records them, and none of the tracer's own words.

A stack says what ran: a module's forward with the files of torch and transformers around it, the autograd engine's C++ frames, the file of the optimizer or the
loader. It says nothing of what a tensor is; that the tracer knows, and it is the truth to compare with.
"""

from __future__ import annotations

from typing import Any

from everybyte.allocator.blocks import Action
from everybyte.allocator.replay import replay
from everybyte.ledger.entry import Category
from everybyte.measure.snapshots.read import DeviceMemory, Entry
from everybyte.measure.snapshots.timeline import Life
from everybyte.trace.recording.replay_script import script
from everybyte.trace.recording.timeline import Timeline
from everybyte.trace.request import BirthRow, Traced
from everybyte.trace.results.snapshot import KEYS

SITE = "/venv/lib/python3.12/site-packages"
Frames = list[dict[str, Any]]
TRAINER = (f"{SITE}/transformers/trainer.py:training_step", "/home/me/train.py:main")
MODULE = f"{SITE}/torch/nn/modules/module.py:_call_impl"
ENGINE = ("torch/csrc/autograd/engine.cpp:torch::autograd::Engine::evaluate_function", "torch/csrc/autograd/engine.cpp:torch::autograd::Engine::thread_main")


def frames_of(*places: str) -> Frames:
    """Frames from `file:function`, innermost first."""
    return [{"filename": file, "name": name, "line": 1} for file, _, name in (place.partition(":") for place in places)]


class RealSnapshot:
    """The history until the end of the last step, with the truth beside it."""

    def __init__(self, traced: Traced) -> None:
        self.timeline = Timeline(traced)
        self.first = traced.marks[0].position
        _, end = self.timeline.last_step
        log: list[Action] = []
        replay(script(traced), self.timeline.settings, log=log)
        births = self.timeline.births
        stacks = {number: self._stack(birth) for number, birth in births.items()}
        self.truth: dict[int, Category] = {id(stacks[number]): self.timeline.category_of(birth) for number, birth in births.items()}
        self._kept = stacks
        entries = [Entry(action.name, action.size, action.stream, action.address, 0, stacks.get(action.key & KEYS, [])) for action in log if action.event < end]
        self.memory = DeviceMemory((), tuple(entries), {})

    def true_category(self, life: Life) -> Category:
        """What the tracer knows of a block."""
        return self.truth[id(life.frames)]

    def _stack(self, birth: BirthRow) -> Frames:
        if self.timeline.category_of(birth) == "input":
            return frames_of(f"{SITE}/accelerate/utils/operations.py:send_to_device", *TRAINER)
        if birth.born < self.first:
            return frames_of(f"{SITE}/torch/nn/modules/module.py:convert", f"{SITE}/torch/nn/modules/module.py:_apply", "/home/me/train.py:main")
        if birth.phase == "optimizer":
            return frames_of(f"{SITE}/torch/optim/adamw.py:step", f"{SITE}/accelerate/optimizer.py:step", *TRAINER)
        if birth.phase == "backward" and not birth.again:
            return frames_of(*ENGINE)
        if not birth.module:
            return frames_of(f"{SITE}/transformers/loss/loss_utils.py:ForCausalLMLoss", *TRAINER)
        inside = (f"{SITE}/torch/nn/functional.py:linear", MODULE, f"{SITE}/transformers/models/llama/modeling_llama.py:forward", MODULE)
        again = (f"{SITE}/torch/utils/checkpoint.py:recompute_fn", *ENGINE) if birth.again else TRAINER
        return frames_of(*inside, *again)
