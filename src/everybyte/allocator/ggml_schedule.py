"""Which device computes what, and which tensors are copied between devices: ggml's scheduler, replayed.

Source: llama.cpp ggml/src/ggml-backend.cpp ggml_backend_sched_split_graph. Devices are numbered: GPUs from 0, host memory last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everybyte.allocator.ggml import INPUT, OUTPUT, UNPLACED, VIEWS, Graph, Tensor


class Rules(NamedTuple):
    """What changed between versions of ggml."""

    skips_small: bool = True
    """Rope and flash attention do not follow their weights (frequencies, sinks)."""
    most_inputs: int = 0
    """A split takes no more copies than these; 0: any number (GGML_SCHED_MAX_SPLIT_INPUTS)."""
    more_inplace: bool = True
    """fill, clamp and add_id may write over their source, and what a smaller result leaves is freed at once."""
    rows_everywhere: bool = True
    """The number of tokens that decides over copying weights to a GPU is axis 1 for products, axis 2 for experts and rope, else all rows
    (ggml-cuda.cu get_op_batch_size); False: axis 1, or axis 2 for experts alone."""
    weighs_experts: bool = False
    """Experts are copied only if each gets enough tokens on average (ik_llama.cpp PR 520)."""
    unused_inputs: bool = True
    """Inputs that nothing reads get copies too when several batches are under way."""


class Devices(NamedTuple):
    """What the graph runs on."""

    gpus: int
    copies: int = 1
    """Batches under way at once (pipeline parallel: 4)."""
    offload: bool = True
    """Weights in host memory are copied to the first GPU for large batches."""
    least_batch: int = 32
    """How large."""

    @property
    def cpu(self) -> int:
        """The number of host memory."""
        return self.gpus


class Scheduled(NamedTuple):
    """The graph with its copies in the order in which memory is planned."""

    nodes: list[Tensor]
    first: list[Tensor]
    """Copies that are there from the start."""
    splits: int


def _offloads(node: Tensor, devices: Devices, rules: Rules) -> bool:
    """Whether a GPU takes an operation over although its weight is in host memory (ggml_backend_cuda_device_offload_op)."""
    if node.op == "get_rows":
        return False
    routed = node.op in ("mul_mat_id", "moe_up_gate")
    if routed and rules.weighs_experts:
        return node.ne[2] * node.ne[1] >= devices.least_batch * node.sources[0].ne[2]
    if rules.rows_everywhere:
        batch = node.ne[1] if node.op == "mul_mat" else node.ne[2] if routed or node.op == "rope" else node.ne[1] * node.ne[2] * node.ne[3]
        return batch >= devices.least_batch
    return node.ne[1] >= devices.least_batch or (routed and node.ne[2] >= devices.least_batch)


def _by_neighbours(node: Tensor, devices: Devices, rules: Rules) -> int | None:
    """Where a tensor belongs by its own buffer, or that of a weight (ggml_backend_sched_backend_id_from_cur)."""
    if node.outside:
        return node.device
    if node.view is not None and node.view.outside:
        return node.view.device
    if node.flags & INPUT:
        return devices.cpu
    if rules.skips_small and node.op in ("rope", "flash"):
        return None
    for source in node.sources:
        if source.is_weight:
            if source.device == devices.cpu and devices.offload and devices.gpus and not source.stays and _offloads(node, devices, rules):
                return 0
            return source.device
    return None


def _spread(order: Iterable[Tensor], without: int) -> None:
    """Nodes without a device take that of the last one before them; `without`: a device that is not handed on."""
    current = UNPLACED
    for node in order:
        if node.place != UNPLACED:
            current = UNPLACED if node.place == without else node.place
        elif current != UNPLACED:
            node.place = current


def assign(graph: Graph, devices: Devices, rules: Rules) -> None:
    """The device of every tensor."""
    for tensor in (*graph.leafs, *graph.nodes):
        own = tensor.device if tensor.device is not None and not tensor.outside else _by_neighbours(tensor, devices, rules)
        tensor.place = UNPLACED if own is None else own
    working = [node for node in graph.nodes if node.op not in VIEWS]
    for without in (devices.cpu, UNPLACED):
        _spread(working, without)
        _spread(reversed(working), without)
    for node in graph.nodes:
        if node.place == UNPLACED and node.view is not None:
            node.place = node.view.place
        for source in node.sources:
            if source.place == UNPLACED:
                source.place = _place_beside(source, node, devices)
        if node.place == UNPLACED:
            node.place = devices.cpu
    for leaf in graph.leafs:
        if leaf.place == UNPLACED:
            leaf.place = devices.cpu


def _place_beside(source: Tensor, node: Tensor, devices: Devices) -> int:
    """A source is where that is of which it is a view, else where its reader is, else in host memory."""
    if source.view is not None and source.view.place != UNPLACED:
        return source.view.place
    return devices.cpu if node.place == UNPLACED else node.place


class _Split:
    """Consecutive nodes of one device, and what is copied there first."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.inputs: list[Tensor] = []
        self.nodes: list[Tensor] = []


class _Splitter:
    """Cuts the graph where the device changes."""

    def __init__(self, devices: Devices, rules: Rules) -> None:
        self.devices = devices
        self.rules = rules
        self.splits: list[_Split] = []
        self.copies: dict[tuple[int, int], list[Tensor]] = {}
        self.inputs: list[Tensor] = []

    def run(self, graph: Graph) -> None:
        """All nodes."""
        waiting: list[Tensor] = []
        for node in graph.nodes:
            if node.op in VIEWS:
                (self.splits[-1].nodes if self.splits else waiting).append(node)
                continue
            device = node.place
            if not self.splits or device != self.splits[-1].device or self._full(node):
                self.splits.append(_Split(device))
                self.splits[-1].nodes, waiting = waiting, []
            self._sources(node, self.splits[-1])
            self.splits[-1].nodes.append(node)
        if self.rules.unused_inputs and self.devices.copies > 1:
            for leaf in graph.leafs:
                if leaf.flags & INPUT:
                    self._keep_copies(leaf)

    def _full(self, node: Tensor) -> bool:
        """A weight from elsewhere, or more inputs than fit, begin a new split."""
        split = self.splits[-1]
        if not split.inputs:
            return False
        for source in node.sources:
            if source.place == split.device:
                continue
            if source.is_weight:
                return True
            if self.rules.most_inputs and len(split.inputs) >= self.rules.most_inputs and (id(source), split.device) not in self.copies:
                return True
        return False

    def _sources(self, node: Tensor, split: _Split) -> None:
        for index, source in enumerate(node.sources):
            at = source.place
            if source.flags & INPUT and self.devices.copies > 1 and not self.rules.unused_inputs:
                self._keep_copies(source)
            if at == split.device:
                continue
            key = (id(source), split.device)
            if key not in self.copies:
                made = [self._copy(source, split.device) for _ in range(self.devices.copies)]
                if self.devices.copies > 1:
                    for copy in made:
                        copy.flags |= INPUT | OUTPUT
                self.copies[key] = made
                split.inputs.append(source)
            node.sources[index] = self.copies[key][0]

    def _keep_copies(self, source: Tensor) -> None:
        """One copy of an input of the graph for every batch under way, where it is; the tensor itself is the current one."""
        at = source.place
        if (id(source), at) in self.copies:
            return
        made = [source, *(self._copy(source, at) for _ in range(self.devices.copies - 1))]
        for copy in made:
            copy.flags |= INPUT | OUTPUT
        self.copies[id(source), at] = made
        self.inputs.append(source)

    def _copy(self, source: Tensor, device: int) -> Tensor:
        made = Tensor(source.kind, source.ne, nb=source.nb)
        made.place = device
        return made


def schedule(graph: Graph, devices: Devices, rules: Rules) -> Scheduled:
    """Devices, splits and copies of a graph. Sources of nodes are replaced by their copies: a graph is scheduled once."""
    assign(graph, devices, rules)
    cut = _Splitter(devices, rules)
    cut.run(graph)
    nodes: list[Tensor] = []
    first: list[Tensor] = []
    for source in cut.inputs:
        first += cut.copies[id(source), source.place]
    for split in cut.splits:
        for source in split.inputs:
            copies = cut.copies[id(source), split.device]
            keeper = Tensor(source.kind, source.ne, "none", (source,), view=source, nb=source.nb)
            keeper.place = source.place
            nodes += (keeper, copies[0])
            if devices.copies > 1:
                first += copies
        nodes += split.nodes
    return Scheduled(nodes, first, len(cut.splits))
