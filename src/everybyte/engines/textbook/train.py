"""Accounts for a training step by the equations of the formula book: what the literature would say, to compare with what is counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from everybyte.basics.errors import Unsupported
from everybyte.job import Job, Train
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.entry import Phase
from everybyte.ledger.ledger import Ledger
from everybyte.models.count import parameter_count
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.adapters import adapter_of
from everybyte.rules.from_job.recipe import Defaults
from everybyte.rules.step.adapted_network import adapted
from everybyte.rules.step.layout import WHOLE
from everybyte.textbook.estimate import Outline, textbook_ledger

DEFAULTS = Defaults("the textbook")


class HandBill(msgspec.Struct, frozen=True, eq=False):
    """A ledger of equations. They know no allocator: to it the peak is one block."""

    rows: Ledger

    def totals(self) -> dict[Phase, int]:
        """Allocated bytes of each phase."""
        return {total.name: total.allocated for total in self.rows.phases()}

    def ledger(self) -> Ledger:
        """All rows."""
        return self.rows

    def script(self) -> Iterable[tuple[int, int]]:
        """The peak as one allocation."""
        return [(1, self.rows.peak().allocated)]


def account(job: Job, network: Network, device: Device) -> Account:  # all engines are asked alike; the equations know no device
    """The account of the first pipeline stage's rank. Raises Unsupported for what the equations do not know."""
    assert job.train is not None
    choices = ResolvedSettings()
    choices.note("train.framework", "textbook", "given")
    choices.assume("equations of the literature for GPT blocks; no temporaries, workspaces or allocator")
    trainable = trainable_params(job.train, network, choices)
    bill = HandBill(textbook_ledger(job, outline(network, trainable)))
    return Account((Rank(bill, gpus=(job.hardware.gpus if job.hardware else None) or 1),), choices, trainable)


def outline(network: Network, trainable: int) -> Outline:
    """The sizes that the equations ask for, from the first attention layer. Raises Unsupported for a network without one."""
    mixer = next((m for m in (getattr(run.layer, "mixer", None) for run in network.runs) if hasattr(m, "heads")), None)
    if mixer is None:
        raise Unsupported("train.framework", f"the textbook has equations for Transformers, and {network.name or 'this model'} has no attention they know")
    heads: Any = mixer.heads
    return Outline(
        P=parameter_count(network),
        trainable=trainable,
        L=network.layers,
        h=network.hidden,
        a=heads,
        k=getattr(mixer, "kv_heads", heads),
        d=getattr(mixer, "head_dim", network.hidden // heads),
        V=network.vocab,
        context=network.max_positions or DEFAULTS.seq_len,
    )


def trainable_params(train: Train, network: Network, choices: ResolvedSettings) -> int:
    """Parameters that get a gradient: those of the adapter, if there is one."""
    adapter = adapter_of(train, network, DEFAULTS.framework, DEFAULTS.adapter, DEFAULTS.kernels.experts, choices)
    if adapter is None:
        return parameter_count(network)
    setup = Setup(trainable=(), adapter=adapter)
    return WHOLE.trained(adapted(network, setup), setup, None, None).numel
