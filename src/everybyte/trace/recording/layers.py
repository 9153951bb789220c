"""The layers of the modules that a program has called, in their order: by them a trace tells how far it is."""

from __future__ import annotations

from everybyte.trace.recording.module_paths import place_of


class Layers:
    """Numbers from 1 on for what lies in lists of layers, such as `encoder.layers.0`."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def meet(self, module: str) -> None:
        """A module of that path has been called for the first time."""
        layer = _layer(module)
        if layer:
            self._numbers.setdefault(layer, len(self._numbers) + 1)

    def done(self, module: str, phase: str) -> int:
        """How many layers are done in a phase when the module of that path runs."""
        number = self._numbers.get(_layer(module), 0)
        if phase == "optimizer":
            return len(self)
        if not number:
            return 0
        return number - 1 if phase == "forward" else len(self) - number


def _layer(module: str) -> str:
    place = place_of(module)
    return "" if place.number is None else place.piece
