"""DeepSpeed's ZeRO: what one rank holds under stages 1, 2 and 3.

Stages 1 and 2 lay the trained parameters into one flat tensor, of which each rank steps an equal part; stage 3 cuts each parameter by itself. The
gradients go through a reduction bucket. `fp32` below stands for the type of the optimizer's partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.layers.setup import Setup
from everybyte.layers.tape import Parameter
from everybyte.ledger.build import Line, plain
from everybyte.ledger.entry import Category
from everybyte.models.count import parts
from everybyte.rules.layout import WHOLE, Layout, Moment
from everybyte.rules.optimizer import Tensor
from everybyte.rules.recipe import Recipe
from everybyte.rules.static import DECLARED, Group, Trained, block_bytes, groups, parameter_tensors, state_lines, tensor_bytes
from everybyte.rules.static_texts import weights_text
from everybyte.rules.zero_gather import Live, gathering, live, persistent
from everybyte.rules.zero_parts import FlatGroup, Partition, Partitions, flat_group, partitions, pieces
from everybyte.rules.zero_settings import ZeroSettings

if TYPE_CHECKING:
    from everybyte.rules.events import Script
    from everybyte.rules.step import Course
    from everybyte.rules.training import Training

FLAT = "deepspeed runtime/zero/stage_1_and_2.py"
CUT = "deepspeed runtime/zero/partition_parameters.py, stage3.py"
BUCKET = "reduce_bucket_size numbers of the weights' type"
GATHERED = "deepspeed runtime/zero/partitioned_param_coordinator.py, replayed module by module: live, fetched ahead, and the buffers they came in"
OVERFLOW_BYTES = 11
"""A number of the largest gradient while stage_1_and_2.py looks for infinite ones: an fp32 copy, three masks, one mask in fp32."""
NORM_BYTES = 8
"""A number of the largest gradient while its norm is taken: a copy in fp64."""


class Zero(Layout, frozen=True):
    """What all stages have in common."""

    settings: ZeroSettings

    def trained(self, network: Network, setup: Setup, gradient: object, stepped: object) -> Trained:
        """Nothing that the core's rules of a step should count: `at_step` has the highest instant."""
        return Trained(0, 0, 0, 0, ())

    def gradients(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """They are rows of `beside` and `at_step`, or of the buffers."""
        return ()

    def accumulated(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """As `gradients`."""
        return ()

    def states(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Of this rank's partition, as far as they are on the device."""
        return state_lines(network, recipe.setup, recipe.optimizer, Partition(self.on_device(network, recipe), self.settings.master))

    def on_device(self, network: Network, recipe: Recipe) -> int:
        """Numbers that are stepped on the device."""
        raise NotImplementedError

    def flat_numel(self, network: Network, recipe: Recipe) -> int:
        """Numbers of the flat tensor of trained weights on the device."""
        raise NotImplementedError

    def stepped(self, network: Network, recipe: Recipe) -> tuple[int, ...]:
        """Numbers that are stepped on the device together, one after the other."""
        raise NotImplementedError

    def before_step(self, network: Network, recipe: Recipe) -> list[Line]:
        """What lives between backward and the step."""
        raise NotImplementedError

    def writer(self, training: Training) -> Script:
        """By CUDA stream."""
        from everybyte.rules.zero_events import ZeroScript

        return ZeroScript(training, self)

    def stepping(self, recipe: Recipe, numel: int) -> list[Line]:
        """The gradient of `numel` numbers in the master's type, and what the optimizer makes for a moment."""
        master = self.settings.master
        tensor = Tensor((numel,), master, "partition")
        made = recipe.optimizer.temporary(tensor.nbytes, (tensor,))
        return [
            _numbers("gradients/master type", "gradient", master.block_bytes, numel, "N", "the gradient of what is stepped, in the master's type"),
            Line("temporaries/optimizer", "temporary", made.nbytes, plain(made.formula, **made.symbols), str(recipe.optimizer.rule.citation), "formula"),
        ]


class ZeroFlat(Zero, frozen=True):
    """Stages 1 and 2: whole weights; each rank has an equal part of the states, and in stage 2 of the gradients."""

    def group(self, network: Network, recipe: Recipe) -> FlatGroup:
        """The flat tensor of the trained parameters."""
        return flat_group(network, recipe.setup, self.settings.degree, self.settings.round_robin)

    def on_device(self, network: Network, recipe: Recipe) -> int:
        """The whole partition, or nothing of it."""
        return 0 if self.settings.optimizer != "none" else self.group(network, recipe).partition

    def flat_numel(self, network: Network, recipe: Recipe) -> int:
        """All of them, and the padding."""
        group = self.group(network, recipe)
        return group.numel + group.padding

    def weights(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Trained ones lie in one flat tensor, the others as they are."""
        padding = self.group(network, recipe).padding
        flat = _numbers("weights/padding", "parameter", recipe.setup.weights.block_bytes, padding, "pad", f"{FLAT}: to a multiple of 2·D numbers")
        return (*whole_weights(network, recipe.setup), flat)

    def buffers(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Under optimizer offload, room for the largest gradient on its way to the host and back."""
        if self.settings.optimizer == "none":
            return ()
        largest = self.group(network, recipe).largest
        source = f"{FLAT}: temp_grad_buffer_for_gpu_offload, as large as the largest parameter"
        return (_numbers("buckets/offload", "comm_buffer", recipe.setup.weights.block_bytes, largest, "P_max", source),)

    def beside(self, course: Course, index: int, moment: Moment) -> tuple[Line, ...]:
        """Buckets, this rank's gradients, and what a reduction makes for a moment."""
        if moment == "forward":
            return tuple(self._accumulated(course))
        return tuple(line for line in (*self._accumulated(course), *self._in_backward(course, index)) if line.bytes)

    def _accumulated(self, course: Course) -> Iterator[Line]:
        """What earlier micro-batches left in this rank's partition."""
        settings = self.settings
        if settings.accumulates and settings.stage == 2 and settings.optimizer == "none":
            touched = self.group(course.network, course.recipe).touched
            yield self._partition_gradients("gradients/accumulated", course.recipe, touched, accumulated=True)

    def _partition_gradients(self, name: str, recipe: Recipe, touched: int, *, accumulated: bool = False) -> Line:
        kind = (self.settings.accumulation if accumulated else None) or recipe.setup.weights
        source = f"{FLAT} copy_grads_in_partition: whole gradients of all parameters that this rank's partition reaches into"
        return _numbers(name, "gradient", kind.block_bytes, touched, "P_own", source)

    def _in_backward(self, course: Course, index: int) -> Iterator[Line]:
        settings, recipe = self.settings, course.recipe
        group = self.group(course.network, recipe)
        width = recipe.setup.weights.block_bytes
        done, own = trained_numel(course, index + 1), trained_numel(course, index) - trained_numel(course, index + 1)
        if not group.numel or not (settings.bucket_before_loss or done or (own and course.row[index].label != "head")):
            return
        yield self._buckets(width)
        if not settings.sharded_gradients:
            return
        reduces = done + own > settings.reduce_bucket
        if settings.optimizer != "none":
            yield self._offloaded(recipe, group)
        elif reduces:
            yield self._partition_gradients("gradients/partition", recipe, group.touched)
        largest = self._waiting(course, index)
        source = f"{FLAT}: a gradient larger than the bucket is reduced by itself, when the next one is there"
        yield _numbers("gradients/waiting", "gradient", width, largest, "P_large", source)
        if settings.degree > 1 and reduces:
            source = f"{FLAT} allreduce_bucket: the parts of a full bucket that belong to several ranks are joined in a new tensor"
            yield _numbers("gathered/reduced", "comm_buffer", width, settings.reduce_bucket, "B", source)

    def _buckets(self, width: int) -> Line:
        settings = self.settings
        count = settings.buckets
        text = plain("buckets·e·B", buckets=count, e=width, B=settings.reduce_bucket)
        why = "two, because overlap_comm fills one while the other is reduced" if count == 2 else "one"
        size = block_bytes(settings.reduce_bucket * width)
        if size != settings.reduce_bucket * width:
            text = plain("buckets·(e·B + rounding)", buckets=count, e=width, B=settings.reduce_bucket, rounding=size - settings.reduce_bucket * width)
        return Line("buckets/reduce", "comm_buffer", count * size, text, f"{FLAT} setup_buckets: {BUCKET}, made anew in every backward; {why}", "formula")

    def _offloaded(self, recipe: Recipe, group: FlatGroup) -> Line:
        """The norm of a gradient that goes to the host is taken on the device, in fp64."""
        part = min(group.largest, group.partition)
        return _numbers("gathered/norm", "temporary", NORM_BYTES, part, "P_max", f"{FLAT} set_norm_for_param_grad_in_gpu: a copy in fp64")

    def _waiting(self, course: Course, index: int) -> int:
        """Numbers of the largest gradient of a layer that does not fit into the bucket."""
        part = course.row[index].part
        found = (p.numel for p in pieces(course.network, course.recipe.setup) if p.trained and p.place.partition("/")[0] == part)
        return max((n for n in found if n > self.settings.reduce_bucket), default=0)

    def stepped(self, network: Network, recipe: Recipe) -> tuple[int, ...]:
        """The partition, all at once."""
        numel = self.on_device(network, recipe)
        return (numel,) if numel else ()

    def before_step(self, network: Network, recipe: Recipe) -> list[Line]:
        """This rank's gradients, which are looked through for infinite ones, and their norm taken."""
        group, settings = self.group(network, recipe), self.settings
        factor = OVERFLOW_BYTES if settings.checks_overflow else NORM_BYTES
        largest = min(group.largest, group.partition)
        checked = _numbers("temporaries/norm", "temporary", factor, largest, "P_max", f"{FLAT} _has_inf_or_nan, get_grad_norm_direct")
        return [self._partition_gradients("gradients/partition", recipe, group.touched, accumulated=True), checked]

    def at_step(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The highest instant from the end of backward to that of the step."""
        group, settings = self.group(network, recipe), self.settings
        if settings.optimizer != "none" or not group.numel:
            return ()
        kind, n = settings.accumulation or recipe.setup.weights, group.partition
        left, checked = self.before_step(network, recipe)
        source = f"{FLAT} step: the partition's gradients in one tensor"
        joined = _numbers("gradients/joined", "gradient", kind.block_bytes, n if group.tensors > 1 else 0, "N", source)
        stepping = self.stepping(recipe, n)
        instants = [[left, checked], [left, joined, *([] if settings.master == kind else stepping[:1])], stepping]
        if not settings.sharded_gradients:
            instants.append(self._sharing(recipe, group, left))
        return _highest(instants)

    def _sharing(self, recipe: Recipe, group: FlatGroup, left: Line) -> list[Line]:
        """Stage 1 shares whole gradients when backward is done."""
        width = recipe.setup.weights.block_bytes
        whole = _numbers("gradients/whole", "gradient", width, group.numel, "P", f"{FLAT} reduce_gradients: shared when backward is done")
        return [whole, *([self._buckets(width), left] if self.settings.contiguous else [])]


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

    def buffers(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """This rank's gradients in one flat tensor and the reduction bucket, both made once; under hpZ the second copy of the weights."""
        share, settings, width = self.share(network, recipe), self.settings, recipe.setup.weights.block_bytes
        if not share.numel:
            return ()
        kind = settings.accumulation or recipe.setup.weights
        found = []
        if settings.optimizer == "none":
            source = f"{CUT} grad_partitions_flat_buffer: lives all the time, in grad_accum_dtype"
            found.append(_numbers("gradients/flat", "gradient", kind.block_bytes, share.numel, "N", source))
        if settings.contiguous:
            size = block_bytes(width * settings.reduce_bucket)
            text = plain("e·B + rounding", e=width, B=settings.reduce_bucket, rounding=size - width * settings.reduce_bucket)
            found.append(Line("buckets/reduce", "comm_buffer", size, text, f"{CUT}: {BUCKET}, made once", "formula"))
        if settings.hpz > 1 and settings.params == "none":
            second = sum(p.copies * p.dtype.nbytes(ceil_div(p.numel, settings.hpz)) for p in pieces(network, recipe.setup) if p.numel > settings.persistence)
            source = "deepspeed partition_parameters.py _partition_param_sec: hpZ keeps a second copy over the ranks of a node"
            found.append(Line("weights/second copy", "parameter", second, plain("E", E=second), source, "formula"))
        return tuple(found)

    def live(self, course: Course, index: int) -> Live:
        """Gathered bytes while a piece of the network runs."""
        told = gathering(self.settings)
        if told is None:
            return Live(0, 0)
        return live(course.network, course.recipe.setup, course.recipe.recompute, told).get(course.row[index].part, Live(0, 0))

    def beside(self, course: Course, index: int, moment: Moment) -> tuple[Line, ...]:
        """Gathered weights; in backward also gradients on their way."""
        now = self.live(course, index)
        size = now.forward if moment == "forward" else now.backward
        found = [Line(f"gathered/{course.row[index].label}", "parameter", size, plain("U", U=size), GATHERED, "formula")]
        if moment != "forward":
            found += self._reducing(course, index)
        return tuple(line for line in found if line.bytes)

    def _reducing(self, course: Course, index: int) -> Iterator[Line]:
        settings, recipe = self.settings, course.recipe
        width = recipe.setup.weights.block_bytes
        own = course.row[index].part
        numels = [p.numel for p in pieces(course.network, recipe.setup) if p.trained and p.place.partition("/")[0] == own]
        large = max((n for n in numels if n > settings.reduce_bucket), default=0)
        yield _numbers("gradients/waiting", "gradient", width, large, "P_large", f"{CUT}: a gradient larger than the bucket waits for the next one")
        if numels and trained_numel(course, index) > settings.reduce_bucket:
            small = min(settings.reduce_bucket, sum(n for n in numels if n <= settings.reduce_bucket) * course.row[index].copies)
            source = "deepspeed runtime/comm/coalesced_collectives.py reduce_scatter_coalesced: the bucket's gradients, cut by rank, in a new tensor"
            yield _numbers("gathered/reduced", "comm_buffer", width, small, "B", source)

    def stepped(self, network: Network, recipe: Recipe) -> tuple[int, ...]:
        """Sub-group by sub-group."""
        share, settings = self.share(network, recipe), self.settings
        on_device = len(share.sub_groups) if settings.optimizer == "none" else int((1 - settings.ratio) * len(share.sub_groups))
        return tuple(numel for numel in share.sub_groups[:on_device] if numel)

    def before_step(self, network: Network, recipe: Recipe) -> list[Line]:
        """The norm of the gradients."""
        largest = self.share(network, recipe).largest if self.settings.optimizer == "none" else 0
        return [_numbers("temporaries/norm", "temporary", NORM_BYTES, largest, "N_max", f"{CUT} get_grad_norm_direct: a copy in fp64")]

    def at_step(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The highest instant of the step, which goes sub-group by sub-group."""
        largest, settings = max(self.stepped(network, recipe), default=0), self.settings
        if not largest:
            return ()
        kind = settings.accumulation or recipe.setup.weights
        joined = _numbers("gradients/joined", "gradient", kind.block_bytes, largest, "S", f"{CUT} _prepare_fp32_grad_for_sub_group")
        stepping = self.stepping(recipe, largest)
        return _highest([self.before_step(network, recipe), [joined, *([] if settings.master == kind else stepping[:1])], stepping])


def trained_numel(course: Course, index: int) -> int:
    """Numbers of the gradients that backward has made when it has gone through segment `index`, all of its copies."""
    found = _trained_by_part(course.network, course.recipe.setup)
    return sum(segment.copies * found.get(segment.part, 0) for segment in course.row[index:])


@lru_cache(maxsize=256)
def _trained_by_part(network: Network, setup: Setup) -> dict[str, int]:
    """Trained numbers in one copy of each piece of the network."""
    copies = {part.label: part.copies for part in parts(network)}
    found: dict[str, int] = {}
    for piece in pieces(network, setup):
        part = piece.place.partition("/")[0]
        if piece.trained:
            found[part] = found.get(part, 0) + piece.numel * piece.copies // copies[part]
    return found


def _highest(instants: Iterable[list[Line]]) -> tuple[Line, ...]:
    """The rows of the instant with most bytes."""
    best = max(instants, key=lambda rows: sum(line.bytes for line in rows))
    return tuple(line for line in best if line.bytes)


def _numbers(name: str, category: Category, width: int, numel: int, letter: str, source: str) -> Line:
    """A tensor of so many numbers with so many bytes each, with what the allocator rounds up."""
    size = block_bytes(width * numel) if numel else 0
    if size == width * numel:
        return Line(name, category, size, plain(f"{width}·{letter}", **{letter: numel}), source, "formula")
    return Line(name, category, size, plain(f"{width}·{letter} + rounding", **{letter: numel, "rounding": size - width * numel}), source, "formula")


@lru_cache(maxsize=256)
def whole_weights(network: Network, setup: Setup) -> tuple[Line, ...]:
    """Weights that every rank has, one line a module. What is trained is part of a flat tensor: nothing is rounded up."""
    lines = []
    for group in groups(network, setup, WHOLE):
        exact = group.copies * sum(sum(parameter_tensors(p, setup)) * p.count for p in group.members)
        size = exact + group.copies * sum(
            p.count * (tensor_bytes(p, setup) - sum(parameter_tensors(p, setup))) for p in group.members if p not in group.trained
        )
        text = partial(weights_text, group.members, setup.packed, group.copies, size - exact, group.letters)
        lines.append(Line(_name(group), "parameter", size, text, f"{DECLARED}; {FLAT}: trained ones lie in one flat tensor"))
    return tuple(lines)


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
        lines.append(Line(_name(group), "parameter", group.copies * size, text, f"{CUT}: ceil(n/D) numbers of each parameter of n; buffers are whole"))
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


def _name(group: Group) -> str:
    kind = "adapters" if group.members[0].adapter else "weights"
    return f"{kind}/{group.place.removesuffix('/adapters')}"
