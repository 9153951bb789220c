"""Programs that read numbers from the device."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[], None]


def _training(told: Callable[[torch.Tensor], Any], *, half: bool = False) -> Step:
    model = torch.nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=half)

    def step() -> None:
        with torch.autocast("cuda", torch.float16, enabled=half):
            loss = model(torch.ones(64, 512, device="cuda")).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        told(loss)

    return step


def logging() -> Step:
    """Averages, guards, rounds and prints its loss."""
    seen: list[float] = []

    def told(loss: torch.Tensor) -> None:
        seen.append(loss.item())
        if not math.isfinite(seen[-1]):
            raise SystemExit("the loss is not finite")
        mean = sum(seen) / len(seen)
        print(f"loss {loss.item():.4f} mean {round(mean, 2)} {loss:.3f} {float(loss)} {math.exp(mean)} {loss.tolist()}")

    return _training(told)


def keeping() -> Step:
    """Keeps its best loss, as loops do that write checkpoints, and steps with an optimizer that clamps by a norm."""
    model = torch.nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.Adafactor(model.parameters())
    best = math.inf

    def step() -> None:
        nonlocal best
        loss = model(torch.ones(64, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        best = min(best, loss.item())
        print(f"best {best:.4f}")

    return step


def scaling() -> Step:
    """Trains in fp16 with a scaled loss."""
    return _training(lambda loss: loss.item(), half=True)


def stopping() -> Step:
    """Goes on only while its loss is large: which way it takes hangs on the number."""

    def told(loss: torch.Tensor) -> None:
        if loss.item() < 0.1:
            raise SystemExit

    return _training(told)


def counting() -> Step:
    """Counts right answers, as loops do that print an accuracy, and asserts what is always so."""
    right = 0

    def told(loss: torch.Tensor) -> None:
        nonlocal right
        answers = torch.zeros(64, dtype=torch.int64, device="cuda")
        assert answers.max() < 512, f"there is no class {answers.max()}"
        right += (answers == 0).sum().item()
        print(f"accuracy {right / 64:.1%}")

    return _training(told)


def knowing() -> Step:
    """Decides by numbers that it has put on the GPU itself, and copies one that is still on the CPU."""

    def told(loss: torch.Tensor) -> None:
        count = torch.tensor(5, device="cuda")
        if count == 0 or count.item() != 5 or copy.deepcopy(torch.tensor(2)).item() != 2:
            raise SystemExit

    return _training(told)


def writing_over() -> Step:
    """Decides by a number that it has put on the GPU, and has written over since."""

    def told(loss: torch.Tensor) -> None:
        total = torch.tensor(0.0, device="cuda")
        total += loss.detach()
        if total == 0:
            raise SystemExit

    return _training(told)


def sizing() -> Step:
    """Takes a size from the device."""
    return _training(lambda loss: torch.ones(torch.arange(5, device="cuda").sum().item()))


def clamping() -> Step:
    """Takes a size from the device, and at least 1."""
    return _training(lambda loss: torch.ones(max(1, torch.arange(5, device="cuda").sum().item())))


def cutting() -> Step:
    """Cuts a list at an index from the device."""
    return _training(lambda loss: [1, 2, 3][: torch.arange(5, device="cuda").sum().item()])


def deciding() -> Step:
    """Asks a tensor for a truth value."""
    return _training(lambda loss: 1 if loss > 0.5 else 2)
