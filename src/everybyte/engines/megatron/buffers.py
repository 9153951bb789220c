"""What a rank has beside the tensors of its layers: the global memory buffer, and dummy gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from everybyte.basics.units import round_up
from everybyte.engines.megatron.run import Run
from everybyte.engines.megatron.sizes import Heads, Latent, Mixture, Sizes, Split, layers_of, prediction_of
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.rules.parallel.stages import Stage

BUFFER = "Megatron-LM core/utils.py GlobalMemoryBuffer: grows to the largest request and stays"
DUMMIES = "TransformerEngine pytorch/module/base.py get_dummy_wgrad: one tensor for each shape of a weight, made once"


def buffers(run: Run, stage: Stage) -> Iterator[Line]:
    """The global memory buffer, and dummy gradients that a fused product hands to autograd in place of a weight's."""
    sizes = _kinds(run.network, stage)
    e, h = run.recipe.stream.block_bytes, run.network.hidden
    size, formula, symbols = max(_requests(run, sizes, stage), key=lambda found: found[0], default=(0, "0", {}))
    if size:
        yield Line("buffers/mpu", "comm_buffer", size, plain(f"e·{formula}", e=e, **symbols), BUFFER)
    if not run.style.wgrad_fused:
        return
    if run.style.te and run.versions.te.has("reuses_gradients"):
        total = _dummies(sizes, run.split, e)
        yield Line("buffers/dummy gradients", "gradient", total, plain("dummies", dummies=total), DUMMIES)
    if stage.has_head and run.versions.reuses_head_gradient:
        rows = run.vocab // run.split.tp
        yield Line("buffers/dummy gradient of the head", "gradient", e * rows * h, plain("e·V·h", e=e, V=rows, h=h), DUMMIES)


@lru_cache(maxsize=4096)
def _kinds(network: Network, stage: Stage) -> tuple[Sizes, ...]:
    """The kinds of layers of a stage."""
    every = layers_of(network)
    return (*dict.fromkeys(every[index] for index in stage.layers), *(prediction_of(network) if stage.mtp else ()))


@lru_cache(maxsize=4096)
def _dummies(sizes: tuple[Sizes, ...], split: Split, e: int) -> int:
    """Bytes of one tensor for each shape of a weight."""
    shapes = {shape for layer in sizes for shape in _weight_shapes(layer, split)}
    return sum(round_up(e * rows * columns, 512) for rows, columns in shapes)


def _requests(run: Run, sizes: tuple[Sizes, ...], stage: Stage) -> Iterator[tuple[int, str, dict[str, int]]]:
    """(bytes, formula without e, symbols) of what is asked of the global memory buffer."""
    style, split, batch = run.style, run.split, run.recipe.batch
    e, h, n = run.recipe.stream.block_bytes, run.network.hidden, batch.b * batch.s
    local = n // split.tp if split.sp else n
    if split.sp and (stage.has_head or not style.te):
        yield e * n * h, "n·h", {"n": n, "h": h}
    if any(isinstance(layer.mlp, Mixture) for layer in sizes) and style.dispatcher == "allgather" and split.etp * split.ep > 1:
        ranks = split.etp * split.ep
        yield e * local * ranks * h, "n·ranks·h", {"n": local, "ranks": ranks, "h": h}
    if not style.te and style.attention == "unfused":
        heads = max((layer.attention.heads for layer in sizes if isinstance(layer.attention, Heads | Latent)), default=0) // split.tp
        yield e * batch.b * heads * batch.s * batch.t, "b·a·s·t", {"b": batch.b, "a": heads, "s": batch.s, "t": batch.t}


def _weight_shapes(layer: Sizes, split: Split) -> Iterator[tuple[int, int]]:
    """Shapes of the weights of Transformer Engine's linear layers on one rank."""
    h, a = layer.hidden, layer.attention
    if isinstance(a, Heads):
        heads, groups = a.heads // split.tp, max(a.kv_heads // split.tp, 1)
        yield (heads + 2 * groups) * a.head_dim, h
        yield h, heads * a.head_dim
    elif isinstance(a, Latent):
        yield from _latent_shapes(a, h, split.tp)
    elif a is not None:
        inner, groups = a.heads * a.head_dim // split.tp, a.groups // split.tp
        yield 2 * (inner + groups * a.state) + a.heads // split.tp, h
        yield h, inner
    if isinstance(layer.mlp, Mixture):
        yield from _pair(layer.mlp.expert.ffn // split.etp, h, layer.mlp.expert.gated)
        if layer.mlp.shared:
            yield from _pair(layer.mlp.shared // split.tp, h, layer.mlp.expert.gated)
    elif layer.mlp is not None:
        yield from _pair(layer.mlp.ffn // split.tp, h, layer.mlp.gated)


def _latent_shapes(a: Latent, h: int, tp: int) -> Iterator[tuple[int, int]]:
    heads = a.heads // tp
    if a.q_rank:
        yield a.q_rank, h
    yield heads * (a.nope + a.rope), a.q_rank or h
    yield a.kv_rank + a.rope, h
    yield heads * (a.nope + a.v_dim), a.kv_rank
    yield h, heads * a.v_dim


def _pair(width: int, h: int, gated: bool) -> Iterator[tuple[int, int]]:
    yield (2 if gated else 1) * width, h
    yield h, width
