"""The optimizers of a job: classes of torch.optim and of bitsandbytes by the names of rules.optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everybyte.basics.errors import Unsupported
from everybyte.rules.optimizers.plan import OptimizerPlan

if TYPE_CHECKING:
    import torch

Groups = list[dict[str, Any]]
"""Parameters to step, and how."""
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "sgd-momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "adamw-amsgrad": ("AdamW", {"amsgrad": True}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "adamax": ("Adamax", {}),
    "rmsprop": ("RMSprop", {}),
    "adagrad": ("Adagrad", {}),
    "adadelta": ("Adadelta", {}),
    "rprop": ("Rprop", {}),
    "asgd": ("ASGD", {}),
    "adafactor": ("Adafactor", {}),
}
"""Name -> the class of torch.optim and its own settings."""
BITSANDBYTES = {
    "adamw-8bit": "AdamW8bit",
    "adamw-32bit": "AdamW32bit",
    "lion-8bit": "Lion8bit",
    "lion-32bit": "Lion32bit",
    "ademamix-8bit": "AdEMAMix8bit",
    "ademamix-32bit": "AdEMAMix32bit",
    "rmsprop-8bit": "RMSprop8bit",
    "rmsprop-32bit": "RMSprop32bit",
    "sgd-8bit": "SGD8bit",
    "adagrad-8bit": "Adagrad8bit",
}
"""Name -> the class of bitsandbytes.optim; one whose states are paged is called Paged in front."""
OPTIMIZERS = ("none", *CLASSES, *BITSANDBYTES)


def optimizer_of(chosen: OptimizerPlan, groups: Groups) -> torch.optim.Optimizer | None:
    """The optimizer over groups of parameters."""
    if chosen.name == "none":
        return None
    return _of_bitsandbytes(chosen, groups) if chosen.name in BITSANDBYTES else _of_torch(chosen, groups)


def _of_torch(chosen: OptimizerPlan, groups: Groups) -> torch.optim.Optimizer:
    from torch import optim

    name, settings = CLASSES[chosen.name]
    impl = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False}}[chosen.impl]
    try:
        made: torch.optim.Optimizer = getattr(optim, name)(groups, lr=1e-4, **settings, **impl)
    except TypeError:
        raise Unsupported("train.optimizer.impl", f"torch.optim.{name} has no {chosen.impl} way") from None
    return made


def _of_bitsandbytes(chosen: OptimizerPlan, groups: Groups) -> torch.optim.Optimizer:
    """Its own code: the kernels of a step are operations that know fake tensors, and make nothing."""
    try:
        from bitsandbytes import functional, optim
    except ImportError:
        raise Unsupported("train.optimizer.name", f"a trace of {chosen.name} runs bitsandbytes' code: pip install bitsandbytes") from None
    # functional.py get_paged: managed memory, which is none of PyTorch's allocator
    functional.get_paged, functional.fill, functional.prefetch_tensor = _managed, _nothing, _nothing
    name = ("Paged" if chosen.paged else "") + BITSANDBYTES[chosen.name]
    made: torch.optim.Optimizer | None = getattr(optim, name, None)
    if made is None:
        raise Unsupported("train.optimizer.paged", f"bitsandbytes has no {name}")
    return made(groups, lr=1e-4)


def _managed(*shape: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A tensor outside the device's memory, which the kernels of bitsandbytes take all the same."""
    from torch import empty

    made: Any = empty(shape, dtype=dtype, device="cpu")
    made.is_paged = True
    return made


def _nothing(*_: Any) -> None:
    """In place of a kernel."""


def decay_groups(model: torch.nn.Module) -> Groups:
    """transformers/trainer.py create_optimizer and get_decay_parameter_names: biases and norms do not decay."""
    from torch.nn import LayerNorm
    from transformers.trainer_pt_utils import get_parameter_names

    decaying = set(get_parameter_names(model, [LayerNorm], [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]))
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [[parameter for name, parameter in trained if (name in decaying) is decays] for decays in (True, False)]
    return [{"params": group} for group in groups if group]
