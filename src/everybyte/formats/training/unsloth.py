"""Unsloth: what its loader says in a script or notebook, and files of its studio; the trainer beneath is TRL's."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.training import trl


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A file of arguments."""
    return [as_unsloth(draft) for draft in trl.read_document(document, context)]


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`unsloth-cli.py --model_name ...`."""
    return [as_unsloth(draft) for draft in trl.read_command(command, context)]


def as_unsloth(draft: JobDraft) -> JobDraft:
    """The job with what Unsloth does by itself: its kernels, its checkpoints in host memory, its fused loss."""
    draft.framework = "unsloth"
    draft.drop("train.framework")
    draft.infer("train.framework", "unsloth", "the program is Unsloth's")
    draft.default("train.recompute.offload", True, of="unsloth (use_gradient_checkpointing: unsloth)")
    return draft
