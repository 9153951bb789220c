"""ZeRO 3: each rank has a part of every parameter; a layer's weights are gathered while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line, plain
from everybyte.models.count import tensors
from everybyte.rules.sharding.zero.gather import Live, gathering, live, persistent
from everybyte.rules.sharding.zero.partitions import Partitions, partitions, pieces
from everybyte.rules.sharding.zero.stages import BUCKET, NORM_BYTES, Zero, highest, name_of, numbers, trained_numel
from everybyte.rules.step.layout import WHOLE
from everybyte.rules.step.persistent_state import block_bytes, groups, parameter_tensors, tensor_bytes
from everybyte.rules.step.program import Make, Op, ShardEvent
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.row import StepRow

CUT = "deepspeed runtime/zero/partition_parameters.py, stage3.py"
GATHERED = "deepspeed runtime/zero/partitioned_param_coordinator.py, replayed module by module: live, fetched ahead, and the buffers they came in"


class ZeroCut(Zero, frozen=True):
    """Stage 3: each rank has ceil(n/D) numbers of every parameter; a layer's weights are gathered while it runs."""

    def share(self, network: Network, recipe: Recipe) -> Partitions:
        """This rank's part of the trained parameters."""
        return partitions(network, recipe.setup, self.settings.degree, self.settings.sub_group)

    def on_device(self, network: Network, recipe: Recipe) -> int:
        """The sub-groups whose states are on the device: with a ratio, the first ones."""
        return sum(self.stepped(network, recipe))

    def flat_numel(self, network: Network, recipe: Recipe) -> int:
        """This rank's parts."""
        return self.share(network, recipe).numel if self.settings.params == "none" else 0

    def weights(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """This rank's part of each parameter, whole copies of small ones, buffers."""
        setup, settings = recipe.setup, self.settings
        degree = settings.degree if settings.params == "none" else 0
        lines = [*cut_weights(network, setup, degree)]
        if gathering(settings) is not None:
            numel, nbytes = persistent(network, setup, settings.persistence, settings.model_persistence)
            source = f"deepspeed runtime/zero/parameter_offload.py: {numel:,} numbers of parameters up to the persistence threshold stay whole"
            lines.append(Line("persistent/small parameters", "parameter", nbytes, plain("E", E=nbytes), source, "formula"))
        return tuple(line for line in lines if line.bytes)

    def parted(self, network: Network, recipe: Recipe) -> list[Op]:
        """This rank's parts of what is not trained."""
        degree = self.settings.degree if self.settings.params == "none" else 0
        parts = (part_of(p, recipe.setup, degree)[1] for p in tensors(network, recipe.setup) if not p.trainable or p.buffer)
        return [Make("weights", size) for size in parts if size]

    def buffers(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """This rank's gradients in one flat tensor and the reduction bucket, both made once; under hpZ the second copy of the weights."""
        share, settings, width = self.share(network, recipe), self.settings, recipe.setup.weights.block_bytes
        if not share.numel:
            return ()
        kind = settings.accumulation or recipe.setup.weights
        found = []
        if settings.optimizer == "none":
            source = f"{CUT} grad_partitions_flat_buffer: lives all the time, in grad_accum_dtype"
            found.append(numbers("gradients/flat", "gradient", kind.block_bytes, share.numel, "N", source))
        if settings.contiguous:
            size = block_bytes(width * settings.reduce_bucket)
            text = plain("e·B + rounding", e=width, B=settings.reduce_bucket, rounding=size - width * settings.reduce_bucket)
            found.append(Line("buckets/reduce", "comm_buffer", size, text, f"{CUT}: {BUCKET}, made once", "formula"))
        if settings.hpz > 1 and settings.params == "none":
            second = sum(p.copies * p.dtype.nbytes(ceil_div(p.numel, settings.hpz)) for p in pieces(network, recipe.setup) if p.numel > settings.persistence)
            source = "deepspeed partition_parameters.py _partition_param_sec: hpZ keeps a second copy over the ranks of a node"
            found.append(Line("weights/second copy", "parameter", second, plain("E", E=second), source, "formula"))
        return tuple(found)

    def live(self, step: StepRow, index: int) -> Live:
        """Gathered bytes while a piece of the network runs."""
        told = gathering(self.settings)
        if told is None:
            return Live(0, 0)
        return live(step.network, step.recipe.setup, step.recipe.recompute, told).get(step.row[index].part, Live(0, 0))

    def beside(self, step: StepRow, index: int, moment: ShardEvent) -> tuple[Line, ...]:
        """Gathered weights; in backward also gradients on their way."""
        now = self.live(step, index)
        size = now.forward if moment == "forward" else now.backward
        found = [Line(f"gathered/{step.row[index].label}", "parameter", size, plain("U", U=size), GATHERED, "formula")]
        if moment != "forward":
            found += self._reducing(step, index)
        return tuple(line for line in found if line.bytes)

    def _reducing(self, step: StepRow, index: int) -> Iterator[Line]:
        settings, recipe = self.settings, step.recipe
        width = recipe.setup.weights.block_bytes
        own = step.row[index].part
        numels = [p.numel for p in pieces(step.network, recipe.setup) if p.trained and p.place.partition("/")[0] == own]
        large = max((n for n in numels if n > settings.reduce_bucket), default=0)
        yield numbers("gradients/waiting", "gradient", width, large, "P_large", f"{CUT}: a gradient larger than the bucket waits for the next one")
        if numels and trained_numel(step, index) > settings.reduce_bucket:
            small = min(settings.reduce_bucket, sum(n for n in numels if n <= settings.reduce_bucket) * step.row[index].copies)
            source = "deepspeed runtime/comm/coalesced_collectives.py reduce_scatter_coalesced: the bucket's gradients, cut by rank, in a new tensor"
            yield numbers("gathered/reduced", "comm_buffer", width, small, "B", source)

    def stepped(self, network: Network, recipe: Recipe) -> tuple[int, ...]:
        """Sub-group by sub-group."""
        share, settings = self.share(network, recipe), self.settings
        on_device = len(share.sub_groups) if settings.optimizer == "none" else int((1 - settings.ratio) * len(share.sub_groups))
        return tuple(numel for numel in share.sub_groups[:on_device] if numel)

    def before_step(self, network: Network, recipe: Recipe) -> list[Line]:
        """The norm of the gradients."""
        largest = self.share(network, recipe).largest if self.settings.optimizer == "none" else 0
        return [numbers("temporaries/norm", "temporary", NORM_BYTES, largest, "N_max", f"{CUT} get_grad_norm_direct: a copy in fp64")]

    def at_step(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The highest instant of the step, which goes sub-group by sub-group."""
        largest, settings = max(self.stepped(network, recipe), default=0), self.settings
        if not largest:
            return ()
        kind = settings.accumulation or recipe.setup.weights
        joined = numbers("gradients/joined", "gradient", kind.block_bytes, largest, "S", f"{CUT} _prepare_fp32_grad_for_sub_group")
        stepping = self.stepping(network, recipe, largest)
        return highest([self.before_step(network, recipe), [joined, *([] if settings.master == kind else stepping[:1])], stepping])


@lru_cache(maxsize=1024)
def cut_weights(network: Network, setup: Setup, degree: int) -> tuple[Line, ...]:
    """This rank's part of each parameter and whole buffers, one line a module; degree 0: parameters wait in host memory."""
    lines = []
    for group in groups(network, setup, WHOLE):
        exact = size = 0
        for p in group.members:
            part, rounded = part_of(p, setup, degree)
            exact += p.count * part
            size += p.count * rounded
        rounding = group.copies * (size - exact)
        text = plain("copies·E + rounding" if rounding else "copies·E", copies=group.copies, E=exact, rounding=rounding)
        lines.append(Line(name_of(group), "parameter", group.copies * size, text, f"{CUT}: ceil(n/D) numbers of each parameter of n; buffers are whole"))
    return tuple(lines)


def part_of(p: Parameter, setup: Setup, degree: int) -> tuple[int, int]:
    """(bytes, bytes as the allocator counts them) of this rank's part of a parameter. Trained parts lie in one flat tensor; scales of a packed weight
    are no parameters."""
    if p.buffer:
        return sum(parameter_tensors(p, setup)), tensor_bytes(p, setup)
    first, *rest = parameter_tensors(p, setup)
    width = setup.weights.block_bytes if p.packed else p.dtype.block_bytes
    part = width * ceil_div(first // width, degree) if degree else 0
    return part + sum(rest), (part if p.trainable else block_bytes(part)) + sum(map(block_bytes, rest))
