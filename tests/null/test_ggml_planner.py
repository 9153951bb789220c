"""ggml's planner, replayed: best fit, writing over sources, views, splits, copies, weights that are copied to a GPU."""

from __future__ import annotations

import pytest

from everybyte.allocator import ggml_ops as op
from everybyte.allocator.ggml import F16, F32, I32, OUTPUT, Graph, Tensor, kind
from everybyte.allocator.ggml_planner import Pool, compute_buffers
from everybyte.allocator.ggml_schedule import Devices, Rules, schedule

MIB = 1 << 20
CPU, GPU = Devices(0), Devices(1)


def planned(tensor: Tensor, devices: Devices = CPU, rules: Rules = Rules()) -> tuple[int, ...]:  # noqa: B008 - a constant
    """Bytes of the graph that makes a tensor."""
    graph = Graph()
    graph.expand(tensor)
    return compute_buffers(graph, devices, rules)


def test_the_smallest_hole_that_fits() -> None:
    """A block goes into the smallest hole that holds it, else to the end; neighbours are joined when they are freed."""
    pool = Pool(32)
    first, second, third, fourth = (pool.take(size) for size in (96, 32, 64, 32))
    pool.give(first, 96)
    pool.give(third, 64)
    assert pool.take(64) == third
    assert pool.take(96) == first
    assert pool.take(1) == fourth + 32
    pool.give(first, 96)
    pool.give(second, 32)
    assert pool.take(128) == 0
    assert pool.peak == 256


def test_elementwise_results_take_the_place_of_their_source() -> None:
    """x + x + ...: one buffer beside the input, since a source that nobody else reads is written over; an input is as well."""
    x = op.new_input(F32, MIB)
    assert planned(op.like("add", op.like("add", op.like("mul", x, x), x), x)) == (8 * MIB,)
    assert planned(op.like("unary", op.like("scale", op.new_input(F32, MIB)))) == (4 * MIB,)


def test_a_view_is_never_taken_over() -> None:
    """rope behind a reshape makes a tensor of its own, and the source is freed after it."""

    def turned() -> Tensor:
        return op.like("rope", op.reshape(op.cont(op.new_input(F32, MIB)), 1024, 1024))

    assert planned(turned()) == (8 * MIB,)
    assert planned(op.cont(turned())) == (8 * MIB,)


def test_an_output_stays() -> None:
    """What is marked as output is neither freed nor written over."""
    first = op.like("scale", op.new_input(F32, MIB))
    first.flags |= OUTPUT
    assert planned(op.like("scale", first)) == (8 * MIB,)


def test_bytes_of_packed_rows() -> None:
    """Packed numbers count by blocks, ik_llama.cpp's row scales by rows."""
    assert Tensor(kind("q8_0"), (64, 10)).nbytes == 10 * 2 * 34
    assert Tensor(kind("iq4_ks"), (512, 10)).nbytes == 10 * (2 * 136 + 4)
    assert Tensor(F16, (3, 5)).nbytes == 30


@pytest.mark.parametrize("tokens", [8, 64])
def test_weights_in_host_memory(tokens: int) -> None:
    """A large batch takes the matrix to the GPU, a small one the numbers to the host."""
    x = op.mul_mat(op.outside(F32, 1024, 1024, device=0), op.new_input(F32, 1024, tokens))
    made = op.mul_mat(op.outside(F32, 1024, 1024, device=1), x)
    gpu, _ = planned(op.mul_mat(op.outside(F32, 1024, 1024, device=0), made), GPU)
    assert (gpu >= 4 * MIB) == (tokens >= 32)


def test_a_new_split_frees_the_weights_of_the_last() -> None:
    """Of two matrices in host memory one at a time is on the GPU."""
    x = op.mul_mat(op.outside(F32, 1024, 1024, device=0), op.new_input(F32, 1024, 64))
    for _ in range(3):
        x = op.mul_mat(op.outside(F32, 1024, 1024, device=1), x)
    assert 4 * MIB < planned(x, GPU)[0] < 6 * MIB


def test_batches_under_way() -> None:
    """With four batches under way every input and every tensor that crosses GPUs is there four times, and stays."""

    def graph(devices: Devices) -> tuple[int, ...]:
        x = op.get_rows(op.outside(F32, 1024, 100, device=2), op.new_input(I32, 256))
        for gpu in (0, 1):
            x = op.mul_mat(op.outside(F32, 1024, 1024, device=gpu), x)
        return planned(x, devices)

    alone, four = graph(Devices(2)), graph(Devices(2, copies=4))
    assert four[0] - alone[0] == 3 * MIB
    assert four[1] - alone[1] == 3 * MIB


def test_rules_of_older_builds() -> None:
    """A split took ten inputs at most, before the end of 2025."""
    inputs = [op.new_input(F32, 8) for _ in range(24)]

    def graph() -> Graph:
        made, x = Graph(), op.mul_mat(op.outside(F32, 8, 8, device=0), op.new_input(F32, 8))
        for tensor in inputs:
            tensor.seen = False
            x = op.like("add", x, tensor)
        made.expand(op.mul_mat(op.outside(F32, 8, 8, device=0), x))
        return made

    assert schedule(graph(), GPU, Rules()).splits == 1
    assert schedule(graph(), GPU, Rules(most_inputs=10)).splits == 3
