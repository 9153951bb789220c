"""The training loops of the frameworks: what their variables hold, and for how long, decides what lives at the peak."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from everybyte.trace.jobs.losses import use_loss
from everybyte.trace.jobs.model import DEVICE, model_of, torch_type
from everybyte.trace.jobs.optimizers import Groups, decay_groups, optimizer_of
from everybyte.trace.jobs.plan import Plan

Step = Callable[[], None]
TRAINER_CLIP = 1.0
"""TrainingArguments.max_grad_norm."""


def step_of(plan: Plan) -> Step:
    """Builds everything and returns one step of the job's loop."""
    model = model_of(plan)
    use_loss(model, plan.recipe.setup.kernels.loss)
    trained: Groups = [{"params": [parameter for parameter in model.parameters() if parameter.requires_grad]}]
    optimizer = optimizer_of(plan.recipe.optimizer, decay_groups(model) if plan.loop == "trainer" else trained)
    run = {"plain": _plain_step, "trainer": _trainer_step}[plan.loop]
    return run(plan, model, optimizer)


def _batch(plan: Plan) -> dict[str, torch.Tensor]:
    """A batch on the device: ids and labels, from the Trainer's collator a mask too."""
    shape = (plan.recipe.batch.b, plan.recipe.batch.s)
    batch = {name: torch.randint(2, shape, device=DEVICE) for name in ("input_ids", "labels")}
    if plan.loop == "trainer":
        batch["attention_mask"] = torch.ones(shape, dtype=torch.int64, device=DEVICE)
    return batch


def _mask(plan: Plan) -> dict[str, torch.Tensor]:
    """The mask of padded batches as attention gets it, which some releases of transformers made though nothing is padded (engines/pytorch/train.py
    MASK_WITHOUT_ONE)."""
    batch = plan.recipe.batch
    if not plan.recipe.setup.kernels.masked:
        return {}
    return {"attention_mask": torch.ones((batch.b, 1, batch.s, batch.s), dtype=torch.bool, device=DEVICE).tril_()}


def _plain_step(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Step:
    """`out = model(ids, labels=ids); out.loss.backward(); optimizer.step(); optimizer.zero_grad()`."""
    batch = _batch(plan)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    scaler = _scaler(plan)

    def micro_batch() -> None:
        with _autocast(plan):
            out = model(**batch, **_mask(plan))
        loss = out.loss if plan.accumulation == 1 else out.loss / plan.accumulation
        if not plan.keeps_outputs:
            del out
        scaler.scale(loss).backward()

    def step() -> None:
        for _ in range(plan.accumulation):
            micro_batch()
        _clip_and_step(parameters, optimizer, scaler, plan.setting("train.grad_clip", plan.job.train.grad_clip if plan.job.train else None))
        model.zero_grad(set_to_none=not plan.recipe.gradients_between)
        if plan.recipe.empties_cache:
            torch.cuda.empty_cache()

    return step


def _trainer_step(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Step:
    """transformers/trainer.py training_step: each batch comes from the host, outputs end with compute_loss, gradients are clipped."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    scaler = _scaler(plan)
    forward = _fp32_outputs(model) if plan.recipe.setup.compute is not None else model
    given = plan.job.train.grad_clip if plan.job.train else None
    total = torch.zeros((), device=DEVICE)

    def compute_loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with _autocast(plan):
            outputs = forward(**batch)
        loss: torch.Tensor = outputs["loss"]
        return loss

    def training_step() -> torch.Tensor:
        loss = compute_loss(_batch(plan))
        scaler.scale(loss / plan.accumulation if plan.accumulation > 1 else loss).backward()
        return loss.detach()

    def step() -> None:
        for _ in range(plan.accumulation):
            total.add_(training_step())
        _clip_and_step(parameters, optimizer, scaler, TRAINER_CLIP if given is None else given)
        model.zero_grad(set_to_none=not plan.recipe.gradients_between)

    return step


def _fp32_outputs(model: nn.Module) -> Callable[..., Any]:
    """accelerate/accelerator.py prepare_model and utils/operations.py convert_to_fp32: with mixed precision the outputs of forward are copied to fp32."""

    def raised(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value

    return lambda **batch: tree_map(raised, model(**batch))


def _autocast(plan: Plan) -> contextlib.AbstractContextManager[Any]:
    compute = plan.recipe.setup.compute
    return contextlib.nullcontext() if compute is None else torch.autocast("cuda", torch_type(compute))


def _scaler(plan: Plan) -> torch.amp.GradScaler:
    """Scales the loss of fp16 autocast; else does nothing."""
    compute = plan.recipe.setup.compute
    return torch.amp.GradScaler("cuda", enabled=compute is not None and compute.name == "fp16")


def _clip_and_step(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer | None, scaler: torch.amp.GradScaler, clip: float | None) -> None:
    if optimizer is None:
        return
    if clip:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    scaler.step(optimizer)
    scaler.update()
