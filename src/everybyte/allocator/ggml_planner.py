"""Size of each device's compute buffer: ggml's graph allocator, replayed.

Source: llama.cpp ggml/src/ggml-alloc.c ggml_gallocr_alloc_graph_impl, ggml_dyn_tallocr_alloc and ggml_dyn_tallocr_free_bytes.
"""

from __future__ import annotations

from everybyte.allocator.ggml import INPUT, OUTPUT, Graph, Tensor
from everybyte.allocator.ggml_schedule import Devices, Rules, Scheduled, schedule

GPU_ALIGNMENT, CPU_ALIGNMENT = 128, 32
"""Bytes (ggml-cuda.cu ggml_backend_cuda_buffer_type_get_alignment, ggml-impl.h TENSOR_ALIGNMENT)."""
MATRIX_ROW_PADDING = 512
"""Rows of packed numbers are padded to so many numbers on CUDA (ggml-cuda/common.cuh)."""
INPLACE = frozenset(("scale", "add", "sub", "mul", "div", "sqr", "sqrt", "log", "unary", "rope", "rms_norm", "soft_max"))
MORE_INPLACE = INPLACE | {"fill", "clamp", "add_id"}
"""Operations that may write over a source (ggml_op_can_inplace)."""


class Pool:
    """One buffer: the smallest free block that fits, the endless last one where none does."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.starts = [0]
        self.sizes = [1 << 62]
        self.peak = 0

    def padded(self, size: int) -> int:
        """A size rounded up to the alignment."""
        return -(-size // self.alignment) * self.alignment

    def take(self, size: int) -> int:
        """The offset of `size` bytes."""
        size = self.padded(size)
        sizes = self.sizes
        best = len(sizes) - 1
        smallest = 1 << 62
        for index in range(len(sizes) - 1):
            if size <= sizes[index] <= smallest:
                best, smallest = index, sizes[index]
        offset = self.starts[best]
        self.starts[best] += size
        sizes[best] -= size
        if not sizes[best]:
            del self.starts[best], sizes[best]
        self.peak = max(self.peak, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        """Frees bytes; neighbours are joined."""
        size = self.padded(size)
        starts, sizes = self.starts, self.sizes
        for index, start in enumerate(starts):
            if start + sizes[index] == offset:
                sizes[index] += size
                if index + 1 < len(starts) and start + sizes[index] == starts[index + 1]:
                    sizes[index] += sizes[index + 1]
                    del starts[index + 1], sizes[index + 1]
                return
            if offset + size == start:
                starts[index] = offset
                sizes[index] += size
                if index and starts[index - 1] + sizes[index - 1] == offset:
                    sizes[index - 1] += sizes[index]
                    del starts[index], sizes[index]
                return
        index = next((i for i, start in enumerate(starts) if start >= offset), len(starts))
        starts.insert(index, offset)
        sizes.insert(index, size)


class _Planner:
    """Walks the scheduled graph once."""

    def __init__(self, plan: Scheduled, devices: Devices, rules: Rules) -> None:
        self.plan = plan
        self.gpus = devices.gpus
        self.pools = [Pool(GPU_ALIGNMENT) for _ in range(devices.gpus)] + [Pool(CPU_ALIGNMENT)]
        self.inplace = MORE_INPLACE if rules.more_inplace else INPLACE
        self.trims = rules.more_inplace

    def size(self, tensor: Tensor, device: int) -> int:
        """Bytes that a device asks for (get_alloc_size)."""
        size = tensor.nbytes
        if device < self.gpus:
            size += tensor.extra
            rest = tensor.ne[0] % MATRIX_ROW_PADDING
            if tensor.kind.block > 1 and rest:
                size += tensor.kind.row_bytes(MATRIX_ROW_PADDING - rest)
        return size

    def hold(self, tensor: Tensor, device: int) -> None:
        """Gives a tensor memory, if it needs some: that of a source which nobody else reads, or new bytes."""
        if tensor.is_held or tensor.outside or tensor.view is not None:
            return
        tensor.is_held = True
        if tensor.op in self.inplace and self._take_over(tensor):
            return
        tensor.home = device
        tensor.offset = self.pools[device].take(self.size(tensor, device))

    def _take_over(self, tensor: Tensor) -> bool:
        for source in tensor.sources:
            if not source.is_held or source.flags & OUTPUT or source.children != 1 or source.views:
                continue
            if source.kind is not tensor.kind or source.ne != tensor.ne or source.nb != tensor.nb:
                continue
            tensor.home, tensor.offset = source.home, source.offset
            source.is_held = False
            if self.trims:
                self._trim(tensor, source)
            return True
        return False

    def _trim(self, tensor: Tensor, source: Tensor) -> None:
        pool = self.pools[tensor.home]
        kept, had = (pool.padded(self.size(t, tensor.home)) for t in (tensor, source))
        if had > kept:
            pool.give(tensor.offset + kept, had - kept)

    def free(self, tensor: Tensor) -> None:
        """Frees a tensor; outputs stay."""
        if tensor.flags & OUTPUT:
            return
        self.pools[tensor.home].give(tensor.offset, self.size(tensor, tensor.home))
        tensor.is_held = False

    def run(self, leafs: list[Tensor]) -> list[int]:
        """Peak of each device."""
        for leaf in (*self.plan.first, *leafs):
            self.hold(leaf, leaf.place)
        for node in self.plan.nodes:
            if node.view is not None and node.op != "none":
                node.view.views += 1
            if node.flags & INPUT:
                self.hold(node, node.place)
            for source in node.sources:
                source.children += 1
                if source.flags & INPUT:
                    self.hold(source, node.place)
        for node in self.plan.nodes:
            device = node.place
            for source in node.sources:
                if not source.is_held:
                    self.hold(source, device)
            self.hold(node, device)
            for source in node.sources:
                source.children -= 1
                if not source.children and not source.views:
                    self._end(source)
        return [pool.peak for pool in self.pools]

    def _end(self, source: Tensor) -> None:
        """Nobody reads a tensor any more: it is freed, or that of which it is a view, if nobody reads that either."""
        above = source.view
        if above is None:
            if source.is_held:
                self.free(source)
            return
        above.views -= 1
        if not above.views and not above.children and above.is_held:
            self.free(above)


def compute_buffers(graph: Graph, devices: Devices, rules: Rules) -> tuple[int, ...]:
    """Bytes of the compute buffer of each GPU and, last, of host memory."""
    plan = schedule(graph, devices, rules)
    return tuple(_Planner(plan, devices, rules).run(graph.leafs))
