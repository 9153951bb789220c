"""The time of layouts by the ledger of time. What layouts share is worked out once, so that thirty thousand of them take seconds."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job.form import DTypes, Offload, Train
from everybyte.plan.layouts.asked import Asked
from everybyte.plan.layouts.layout import Layout, Policy
from everybyte.plan.time.figures import card_of, step_interval
from everybyte.plan.time.training.setting import TrainSetting, train_setting
from everybyte.plan.time.training.step import LayerTimes, layer_times, training_step


class Timed(NamedTuple):
    """Seconds of a step by what they are for; they add up to it."""

    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    recompute: float = 0.0
    head: float = 0.0
    host: float = 0.0
    bubble: float = 0.0
    pipeline: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    data: float = 0.0
    optimizer: float = 0.0

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(self)


WORDS: dict[str, str] = {
    "products": "matrix products",
    "attention": "attention",
    "elementwise": "elementwise kernels",
    "recompute": "recomputation",
    "head": "head and loss",
    "host": "launching kernels",
    "bubble": "pipeline bubble and uneven stages",
    "pipeline": "hidden states between pipeline stages",
    "tensor": "tensor-parallel traffic",
    "context": "context-parallel traffic",
    "expert": "expert-parallel traffic",
    "data": "gradients and weights between data-parallel ranks",
    "optimizer": "optimizer step",
}
"""What each term is called."""

FIELD_OF: dict[str, str] = {
    "matrix products": "products",
    "attention": "attention",
    "elementwise": "elementwise",
    "unpacking of weights": "elementwise",
    "recomputation": "recompute",
    "head and loss": "head",
    "host": "host",
    "uneven stages": "bubble",
    "pipeline bubble": "bubble",
    "pipeline messages": "pipeline",
    "tensor parallelism": "tensor",
    "context parallelism": "context",
    "expert parallelism": "expert",
    "data parallelism": "data",
    "optimizer": "optimizer",
    "offload": "optimizer",
}
"""Term of the ledger of time -> field of Timed."""


class Clock:
    """The time of the layouts of one question."""

    def __init__(self, asked: Asked) -> None:
        card = card_of(asked.job)
        if card is None:
            raise BadInput("hardware.gpu", "a plan needs the speed of a card of the catalogue (`everybyte gpus`), and of this one no rates are known")
        self.asked, self.card, self.shape = asked, card, asked.shape
        self._bases: dict[tuple[str, ...], TrainSetting] = {}
        self._layers: dict[tuple[object, ...], LayerTimes] = {}

    def __call__(self, layout: Layout) -> Timed:
        """The terms of a layout."""
        setting = self._setting(layout)
        found = dict.fromkeys(Timed._fields, 0.0)
        for term in training_step(self.shape, setting, self.card, self._layer_times(layout, setting)).terms:
            found[FIELD_OF[term.name]] += term.seconds
        return Timed(**found)

    def interval(self) -> tuple[float, float]:
        """Measured over predicted time, between which 9 of 10 measured steps lie."""
        return step_interval(self.shape)

    def _setting(self, layout: Layout) -> TrainSetting:
        base = self._base(layout)
        policy = layout.recompute
        return msgspec.structs.replace(
            base,
            gpus=layout.gpus,
            tp=layout.tp,
            pp=layout.pp,
            cp=layout.cp,
            ep=layout.ep,
            etp=layout.etp if layout.ep > 1 else layout.tp,
            dp=layout.dp,
            shard=layout.dp * layout.cp,
            micro_batch=layout.micro_batch,
            grad_accum=layout.grad_accum,
            sequence_parallel=layout.tp > 1,
            virtual=layout.virtual,
            schedule="interleaved" if layout.virtual > 1 else "1f1b",
            recompute=policy.policy,
            recompute_modules=policy.modules,
            recompute_share=self._share(policy, layout),
            recompute_every=0,
        )

    def _share(self, policy: Policy, layout: Layout) -> float:
        """Of the layers, those that run again."""
        return min(1.0, policy.layers * layout.pp * layout.virtual / self.shape.count) if policy.layers else 1.0

    def _base(self, layout: Layout) -> TrainSetting:
        """What layouts of one sharding, precision and type of gradients have in common."""
        key = (layout.sharding, layout.precision, layout.grads, layout.offload)
        found = self._bases.get(key)
        if found is None:
            train = self.asked.job.train
            assert train is not None
            job = msgspec.structs.replace(self.asked.job, train=_changed(train, layout))
            found = self._bases[key] = train_setting(job, self.shape, self.card)
        return found

    def _layer_times(self, layout: Layout, s: TrainSetting) -> LayerTimes:
        """A layer's time does not know of stages, ranks of data parallelism and micro-batches behind one another."""
        key = (s.form, s.tp, s.cp, s.ep, s.etp, s.micro_batch, layout.recompute, s.recompute_share)
        found = self._layers.get(key)
        if found is None:
            found = self._layers[key] = layer_times(self.shape, s, self.card)
        return found


def _changed(train: Train, layout: Layout) -> Train:
    offload = Offload(optimizer="cpu", params="cpu" if layout.offload == "params" else None) if layout.offload != "none" else None
    found = msgspec.structs.replace(train, sharding=layout.sharding, offload=offload, mesh=None, pipeline=None)
    if layout.precision:
        found = msgspec.structs.replace(found, precision=layout.precision)
    if layout.grads:
        found = msgspec.structs.replace(found, dtypes=msgspec.structs.replace(train.dtypes or DTypes(), grads=layout.grads))
    return found
