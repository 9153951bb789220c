"""ZeRO 1 and 2: the trained parameters lie in one flat tensor, of which each rank steps an equal part; gradients go through a reduction bucket."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.build import Line, plain
from everybyte.models.count import tensors
from everybyte.rules.sharding.zero.partitions import FlatGroup, flat_group, pieces
from everybyte.rules.sharding.zero.stages import BUCKET, NORM_BYTES, Zero, highest, name_of, numbers, trained_numel
from everybyte.rules.step.layout import WHOLE
from everybyte.rules.step.persistent_state import DECLARED, block_bytes, groups, parameter_tensors, tensor_bytes
from everybyte.rules.step.persistent_state_text import weights_text
from everybyte.rules.step.program import Free, Make, Op, ShardEvent
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.row import StepRow

FLAT = "deepspeed runtime/zero/stage_1_and_2.py"
OVERFLOW_BYTES = 11
"""A number of the largest gradient while it is looked through for infinite ones: an fp32 copy, three masks, one mask in fp32."""


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
        flat = numbers("weights/padding", "parameter", recipe.setup.weights.block_bytes, padding, "pad", f"{FLAT}: to a multiple of 2·D numbers")
        return (*whole_weights(network, recipe.setup), flat)

    def parted(self, network: Network, recipe: Recipe) -> list[Op]:
        """Where the device has room, the flat tensor is made beside the trained ones."""
        setup = recipe.setup
        found = tensors(network, setup)
        frozen = [Make("weights", tensor_bytes(p, setup)) for p in found if not p.trainable or p.buffer]
        moving = [tensor_bytes(p, setup) for p in found if p.trainable and not p.buffer]
        return [*frozen, *(Make("moving", size) for size in moving), *(Free("moving", size) for size in moving)]

    def buffers(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Under optimizer offload, room for the largest gradient on its way to the host and back."""
        if self.settings.optimizer == "none":
            return ()
        largest = self.group(network, recipe).largest
        source = f"{FLAT}: temp_grad_buffer_for_gpu_offload, as large as the largest parameter"
        return (numbers("buckets/offload", "comm_buffer", recipe.setup.weights.block_bytes, largest, "P_max", source),)

    def beside(self, step: StepRow, index: int, moment: ShardEvent) -> tuple[Line, ...]:
        """Buckets, this rank's gradients, and what a reduction makes for a moment."""
        if moment == "forward":
            return tuple(self._accumulated(step))
        return tuple(line for line in (*self._accumulated(step), *self._in_backward(step, index)) if line.bytes)

    def _accumulated(self, step: StepRow) -> Iterator[Line]:
        """What earlier micro-batches left in this rank's partition."""
        settings = self.settings
        if settings.accumulates and settings.stage == 2 and settings.optimizer == "none":
            touched = self.group(step.network, step.recipe).touched
            yield self._partition_gradients("gradients/accumulated", step.recipe, touched, accumulated=True)

    def _partition_gradients(self, name: str, recipe: Recipe, touched: int, *, accumulated: bool = False) -> Line:
        kind = (self.settings.accumulation if accumulated else None) or recipe.setup.weights
        source = f"{FLAT} copy_grads_in_partition: whole gradients of all parameters that this rank's partition reaches into"
        return numbers(name, "gradient", kind.block_bytes, touched, "P_own", source)

    def _in_backward(self, step: StepRow, index: int) -> Iterator[Line]:
        settings, recipe = self.settings, step.recipe
        group = self.group(step.network, recipe)
        width = recipe.setup.weights.block_bytes
        done, own = trained_numel(step, index + 1), trained_numel(step, index) - trained_numel(step, index + 1)
        if not group.numel or not (settings.bucket_before_loss or done or (own and step.row[index].label != "head")):
            return
        yield self._buckets(width)
        if not settings.sharded_gradients:
            return
        reduces = done + own > settings.reduce_bucket
        if settings.optimizer != "none":
            yield self._offloaded(recipe, group)
        elif reduces:
            yield self._partition_gradients("gradients/partition", recipe, group.touched)
        largest = self._waiting(step, index)
        source = f"{FLAT}: a gradient larger than the bucket is reduced by itself, when the next one is there"
        yield numbers("gradients/waiting", "gradient", width, largest, "P_large", source)
        if settings.degree > 1 and reduces:
            source = f"{FLAT} allreduce_bucket: the parts of a full bucket that belong to several ranks are joined in a new tensor"
            yield numbers("gathered/reduced", "comm_buffer", width, settings.reduce_bucket, "B", source)

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
        return numbers("gathered/norm", "temporary", NORM_BYTES, part, "P_max", f"{FLAT} set_norm_for_param_grad_in_gpu: a copy in fp64")

    def _waiting(self, step: StepRow, index: int) -> int:
        """Numbers of the largest gradient of a layer that does not fit into the bucket."""
        part = step.row[index].part
        found = (p.numel for p in pieces(step.network, step.recipe.setup) if p.trained and p.place.partition("/")[0] == part)
        return max((n for n in found if n > self.settings.reduce_bucket), default=0)

    def stepped(self, network: Network, recipe: Recipe) -> tuple[int, ...]:
        """The partition, all at once."""
        numel = self.on_device(network, recipe)
        return (numel,) if numel else ()

    def before_step(self, network: Network, recipe: Recipe) -> list[Line]:
        """This rank's gradients, which are looked through for infinite ones, and their norm taken; nothing where the optimizer runs on the host."""
        group, settings = self.group(network, recipe), self.settings
        if settings.optimizer != "none" or not group.numel:
            return []
        factor = OVERFLOW_BYTES if settings.checks_overflow else NORM_BYTES
        largest = min(group.largest, group.partition)
        checked = numbers("temporaries/norm", "temporary", factor, largest, "P_max", f"{FLAT} _has_inf_or_nan, get_grad_norm_direct")
        return [self._partition_gradients("gradients/partition", recipe, group.touched, accumulated=True), checked]

    def at_step(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The highest instant from the end of backward to that of the step."""
        group, settings = self.group(network, recipe), self.settings
        if settings.optimizer != "none" or not group.numel:
            return ()
        kind, n = settings.accumulation or recipe.setup.weights, group.partition
        left, checked = self.before_step(network, recipe)
        source = f"{FLAT} step: the partition's gradients in one tensor"
        joined = numbers("gradients/joined", "gradient", kind.block_bytes, n if group.tensors > 1 else 0, "N", source)
        stepping = self.stepping(network, recipe, n)
        instants = [[left, checked], [left, joined, *([] if settings.master == kind else stepping[:1])], stepping]
        if not settings.sharded_gradients:
            instants.append(self._sharing(recipe, group, left))
        return highest(instants)

    def sharing(self, recipe: Recipe) -> list[Line]:
        """Stage 1 has its buckets then."""
        settings = self.settings
        return [] if settings.sharded_gradients or not settings.contiguous else [self._buckets(recipe.setup.weights.block_bytes)]

    def _sharing(self, recipe: Recipe, group: FlatGroup, left: Line) -> list[Line]:
        """Stage 1 shares whole gradients when backward is done."""
        width = recipe.setup.weights.block_bytes
        whole = numbers("gradients/whole", "gradient", width, group.numel, "P", f"{FLAT} reduce_gradients: shared when backward is done")
        return [whole, *([self._buckets(width), left] if self.settings.contiguous else [])]


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
        lines.append(Line(name_of(group), "parameter", size, text, f"{DECLARED}; {FLAT}: trained ones lie in one flat tensor"))
    return tuple(lines)
