"""Where what a program holds is said to belong."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from everybyte.trace.recording.module_paths import place_of
from everybyte.trace.recording.record import Recorder
from everybyte.trace.recording.watch import Watch


class Vision(nn.Module):
    """A vision transformer's way to hold its class token and positions: beside its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, 64)), nn.Parameter(torch.zeros(1, 17, 64))
        self.layers = nn.ModuleList([nn.Linear(64, 64)])
        self.head = nn.Linear(64, 10)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """[batch, 16, 64] -> [batch, 10]."""
        x = torch.cat((self.cls_token.expand(len(patches), -1, -1), patches), 1) + self.pos_embed
        return self.head(self.layers[0](x)[:, 0])


@pytest.mark.parametrize("category", ["parameter", "gradient", "optimizer_state"])
def test_parameters_of_the_outermost_module_go_by_their_own_names(category: str) -> None:
    """A class token and positions, their gradients and states are told apart from the loss, which the outermost module's own work belongs to."""
    with FakeTensorMode():
        recorder = Recorder("cpu")
        with recorder, Watch(recorder).modules():
            model = Vision()
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.randn(2, 16, 64)).sum().backward()
            optimizer.step()
    found = {str(place_of(birth.module)) for birth in recorder.births if birth.category == category and birth.nbytes > 4}
    assert found == {"cls_token", "pos_embed", "layers.0/block", "head"}
