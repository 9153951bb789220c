"""Programs that the tests trace, as users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, size] -> the same."""
        batch, tokens, size = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, tokens, 3, 8, size // 8).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, size))
        return x + self.down(gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        self.layers = nn.ModuleList(Block(256) for _ in range(2))
        self.head = nn.Linear(256, 1000, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[batch, tokens] -> logits."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build() -> Callable[[], None]:
    """A training step in bf16 with AdamW."""
    model = Net().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 1000, (2, 128), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens).view(-1, 1000).float(), tokens.view(-1))
        loss.backward()
        optimizer.step()

    return step


def four_layers() -> Callable[[], None]:
    """Four square matrices of 64 MiB and AdamW as PyTorch runs it by default."""
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(1, 4096, device="cuda")

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def asks_for_a_value() -> Callable[[], None]:
    """A step that takes another way if a value says so."""
    model = nn.Linear(4, 4).cuda()

    def step() -> None:
        if model(torch.randn(2, 4, device="cuda")).sum() > 0:
            raise ValueError

    return step


def fails() -> Callable[[], None]:
    """A step with a fault of its own."""
    model = nn.Linear(4, 4).cuda()
    return lambda: model(torch.randn(2, 5, device="cuda"))


def on_the_cpu() -> Callable[[], None]:
    """A step that never touches the GPU."""
    model = nn.Linear(4, 4)
    return lambda: model(torch.randn(2, 4)).sum().backward()


def no_step() -> int:
    """What is no step."""
    return 3


def module_alone() -> nn.Module:
    """A module, whose input is named beside the target."""
    return nn.Conv2d(64, 128, kernel_size=3, padding=1)


@torch.library.custom_op("everybyte_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """An operation of the user's that has no fake version."""
    return 2 * x


def own_operation() -> Callable[[], None]:
    """A step with an operation that only a real GPU can run."""
    x = torch.randn(4, device="cuda")
    return lambda: twice(x)


def asks_triton_for_a_gpu() -> Callable[[], None]:
    """A step that asks Triton what GPU it has."""
    from triton.runtime import driver

    def step() -> None:
        print(driver.active.get_current_target())

    return step


class Doubled(torch.autograd.Function):
    """Twice its input; its backward pass makes the number that it multiplies by."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """(…) -> (…)."""
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """(…) -> (…)."""
        return gradient * torch.tensor(2.0, device=gradient.device)


def number_in_backward() -> Callable[[], None]:
    """A step whose backward pass makes a tensor of a number."""
    layer = nn.Linear(64, 64).cuda()
    return lambda: Doubled.apply(layer(torch.randn(8, 64, device="cuda"))).sum().backward()  # type: ignore[no-any-return]


def launched() -> Callable[[], None]:
    """A step that launches a kernel of its own, written in Triton."""
    import triton

    @triton.jit
    def double(x: Any, y: Any, count: Any) -> None:
        pass

    x = torch.randn(1024, 1024, device="cuda")

    def step() -> None:
        y = torch.empty_like(x)
        double[(1024,)](x, y, x.numel())

    return step


def compiled() -> Callable[[], None]:
    """A step of a compiled module."""
    model = torch.compile(nn.Linear(4, 4).cuda())
    x = torch.randn(2, 4, device="cuda")
    return lambda: model(x).sum().backward()


def optimizer_first() -> Callable[[], None]:
    """A step of an optimizer that was made while the model still was on the CPU."""
    model = nn.Linear(512, 512, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model.cuda()

    def step() -> None:
        model(torch.randn(8, 512, device="cuda")).sum().backward()
        optimizer.step()

    return step


def eleven_mib() -> Callable[[], None]:
    """A step of one matrix of 11 MiB."""
    layer = nn.Linear(1024, 2816, bias=False).cuda()
    return lambda: layer(torch.randn(1, 1024, device="cuda")).sum().backward()


def deep() -> Callable[[], None]:
    """A step of forty layers."""
    model = nn.Sequential()
    model.add_module("blocks", nn.Sequential(*(Block(64) for _ in range(40))))
    model.cuda()
    x = torch.randn(2, 16, 64, device="cuda")
    return lambda: model(x).sum().backward()


def without_end() -> Callable[[], None]:
    """A step that never ends."""
    kept = []

    def step() -> None:
        while True:
            kept.append(torch.empty(1, device="cuda"))

    return step
