"""PEFT's adapter_config.json, alone (a partial job) or beside the file that trains it."""

from __future__ import annotations

from everybyte.formats.bag import Bag
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.table import table
from everybyte.formats.training.adapters import state_targets
from everybyte.formats.training.run import Run, finished, of_document
from everybyte.formats.values import boolean, names, number, whole

KINDS = {
    "lora": "lora",
    "adalora": "adalora",
    "ia3": "ia3",
    "prefix_tuning": "prefix",
    "prompt_tuning": "prompt",
    "p_tuning": "p-tuning",
    "multitask_prompt_tuning": "multitask-prompt",
    "adaption_prompt": "adaption-prompt",
    "trainable_tokens": "trainable-tokens",
    "ln_tuning": "ln-tuning",
}
"""peft_type -> the job's word, where they differ by more than case."""
RANK_OF = {
    "adalora": ("init_r",),
    "loha": ("r",),
    "lokr": ("r",),
    "prefix_tuning": ("num_virtual_tokens",),
    "prompt_tuning": ("num_virtual_tokens",),
    "p_tuning": ("num_virtual_tokens",),
    "multitask_prompt_tuning": ("num_virtual_tokens",),
    "boft": ("boft_block_size",),
    "oft": ("r", "oft_block_size"),
    "adaption_prompt": ("adapter_len",),
}
"""peft_type -> the key that stands for the rank; AdaLoRA starts from init_r and never reads r."""
USUAL_RANK = {"adalora": 12, "lora": 8}


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration that nothing names."""
    run = of_document(document, context, "peft")
    run.draft.infer("train.framework", "transformers", "peft adapts models of transformers")
    apply(run.bag, run.draft)
    return finished(run)


def attached(run: Run) -> bool:
    """Applies the adapter that was given beside a run; whether there was one."""
    document = run.context.companion("peft")
    if document is not None:
        apply(document.bag(), run.draft)
    return document is not None


def apply(bag: Bag, draft: JobDraft) -> None:
    """States what the adapter's configuration says."""
    kind = bag.take("peft_type")
    word = str(kind.value if kind else "lora").casefold()
    if kind is not None:
        draft.state("train.adapter.kind", KINDS.get(word, word), kind.place)
    base = bag.take("base_model_name_or_path")
    if base is not None and base.value and "model" not in draft:
        draft.state("model", str(base.value), base.place)
    ranks = RANK_OF.get(word, ("r",))
    rank = bag.take(*ranks)
    if rank is not None and (found := whole(rank.value)):
        draft.state("train.adapter.rank", found, rank.place)
    elif word in USUAL_RANK:
        draft.default("train.adapter.rank", USUAL_RANK[word], of="peft")
    if word == "adalora":
        unread = bag.take("r")
        if unread is not None:
            draft.find("adalora-rank", "note", unread.place, f"AdaLoRA starts from init_r; r = {unread.value} is not read", "set init_r")
    alpha = bag.take("lora_alpha", "alpha")
    if alpha is not None:
        draft.state("train.adapter.alpha", number(alpha.value), alpha.place)
    dora = bag.take("use_dora")
    if dora is not None and boolean(dora.value):
        draft.state("train.adapter.kind", "dora", dora.place)
    _modules(bag, draft)
    table("training/peft.csv").read(bag, draft)
    draft.report(bag)


def _modules(bag: Bag, draft: JobDraft) -> None:
    state_targets(Run(bag, draft, Context(())), bag.take("target_modules"))
    saved = bag.take("modules_to_save")
    if saved is not None and (modules := names(saved.value)):
        draft.state("train.adapter.modules_to_save", modules, saved.place)
    layers = bag.take("layers_to_transform")
    if layers is not None and layers.value not in ([], None):
        draft.state("train.adapter.layers", layers.value if isinstance(layers.value, list) else [layers.value], layers.place)
    patterns = bag.sub("rank_pattern")
    written = list(patterns)
    if written:
        draft.find(
            "rank-pattern",
            "warning",
            patterns.place(written[0]) or "rank_pattern",
            "rank_pattern gives some modules other ranks, which are counted at the common rank",
        )
        patterns.ignore(written)
