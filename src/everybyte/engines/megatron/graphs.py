"""Attention in CUDA graphs that Transformer Engine captures (transformer/cuda_graphs.py TECudaGraphHelper, cuda_graph_impl transformer_engine).

Each layer is captured once for every micro-batch of a step, in the order of the pipeline's schedule. What is captured lies in the graphs' private pool:
while graphs are captured PyTorch counts it as allocated, when they are replayed it does not. Static inputs lie outside of the pool and stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.engines.megatron.extra import Keys
from everybyte.engines.megatron.layers.block import TransformerLayer
from everybyte.engines.megatron.layers.embedding_and_head import Received
from everybyte.engines.megatron.run import Run, all_chunks
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.models.count import parts
from everybyte.rules.parallel.pipeline import flights
from everybyte.rules.parallel.stages import Stage

INPUTS = "Megatron-LM core/transformer/cuda_graphs.py _get_sample_arguments: hidden states and a mask for each layer and micro-batch in flight"
OUTPUTS = "TransformerEngine pytorch/graph.py _make_graphed_callables static_grad_outputs: one for all graphs"


class Graphs(Record, frozen=True):
    """Whether attention is captured, and whether before the first step."""

    attention: bool = False
    at_start: bool = False


def graphs_of(keys: Keys) -> Graphs:
    """What the settings say: modules as a list or in brackets, steps that run before capture (3 by default). Raises BadInput for no number of steps."""
    modules = keys.cuda_graph_modules or keys.cuda_graph_scope or ()
    words = modules.strip("[]").replace(",", " ").split() if isinstance(modules, str) else [str(word) for word in modules or ()]
    if keys.cuda_graph_impl != "transformer_engine" or "attn" not in words:
        return Graphs()
    return Graphs(True, keys.cuda_graph_warmup_steps == 0)


def captured(network: Network) -> Network:
    """The attention of a stage's layers, which runs while graphs are captured."""
    runs = []
    for run in network.runs:
        if isinstance(run.layer, TransformerLayer):
            layer = run.layer
            runs.append(replace(run, layer=replace(layer, sizes=replace(layer.sizes, mlp=None), style=replace(layer.style, replayed=False))))
    first = runs[0].layer
    stem = Received(network.hidden, network.dtype, first.split, replace(first.style, loads_mask=False))
    return replace(network, runs=tuple(runs), stem=stem, head=None)


def static_buffers(run: Run, stage: Stage) -> Iterator[Line]:
    """Workspaces, inputs of the graphs, of which those of a micro-batch that has gone back serve the next, and the gradient of their results."""
    if not run.style.captured:
        return
    yield from run.graph_workspaces
    batch, split = run.recipe.batch, run.split
    count = _in_flight(run, stage)
    hidden, length = run.layout.hidden, batch.s * split.cp
    each = hidden + batch.b * batch.s * length
    text = plain("layers·(n_h + b·s·S)", layers=count, n_h=hidden, b=batch.b, s=batch.s, S=length)
    yield Line("graphs/static inputs", "comm_buffer", count * each, text, INPUTS, "formula")
    yield Line("graphs/gradient of outputs", "comm_buffer", hidden, plain("n_h", n_h=hidden), OUTPUTS, "formula")


def _in_flight(run: Run, stage: Stage) -> int:
    """Layers of micro-batches that have not gone back, at most; without a pipeline one micro-batch is captured."""
    found = run.part(stage)
    copies = {part.label: part.copies for part in parts(found.network) if isinstance(part.layer, TransformerLayer)}
    layers = [sum(copies.get(label, 0) for label in labels) for labels in found.labels]
    if run.plan is None:
        return sum(layers)
    every = flights(run.plan, stage.index)
    return max(sum(layers[chunk] * flight.counts[chunk] for chunk in all_chunks(stage)) for flight in every)
