"""Builds the model of a job on the fake GPU: transformers' class from the config, without weights; then peft's adapters, frozen parts, recomputing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from everybyte.basics.dtypes import DType
from everybyte.basics.errors import BadInput, MissingExtra, Unsupported
from everybyte.layers.recording.setup import Setup
from everybyte.rules.step.recipe import Recipe
from everybyte.trace.jobs.attention import FLASH, register_flash
from everybyte.trace.jobs.packed import is_packed, pack
from everybyte.trace.jobs.plan import Plan

DEVICE = "cuda"
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DROPOUTS = (
    "attention_dropout",
    "attn_pdrop",
    "resid_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "hidden_dropout_prob",
    "dropout",
    "activation_dropout",
    "classifier_dropout",
    "summary_first_dropout",
    "resid_dropout",
    "attention_probs_dropout_prob",
    "layerdrop",
)
"""How configs call their dropout rates."""


def torch_type(kind: DType) -> torch.dtype:
    """torch's name of a number format."""
    return TYPES[kind.name]


def model_of(plan: Plan) -> nn.Module:
    """The model as the loop gets it: on the device, in training mode."""
    recipe = plan.recipe
    setup = recipe.setup
    model = _bare(plan)
    _prepare(model, setup)
    _freeze(model, setup.frozen)
    if setup.adapter is not None:
        model = _adapted(model, plan)
    _recompute(model, recipe)
    model.train()
    return model


def _bare(plan: Plan) -> nn.Module:
    """The class of transformers that the config names, with empty parameters."""
    try:
        import transformers
    except ImportError:
        raise MissingExtra("tracing a job", "trace") from None
    config = _config(plan)
    architecture = next(iter(plan.config.get("architectures") or ("AutoModelForCausalLM",)))
    kind: Any = getattr(transformers, architecture, None)
    build = getattr(kind, "_from_config", None) or getattr(kind, "from_config", None)
    if build is None:
        raise Unsupported("model", f"the installed transformers has no model {architecture}; trace a script that builds it")
    attention = {"sdpa": "sdpa", "eager": "eager", "flash": FLASH}[plan.recipe.setup.kernels.attention]
    if attention == FLASH:
        register_flash()
    asked = {"dtype": torch_type(plan.recipe.setup.weights), "attn_implementation": attention}
    model: nn.Module = build(config, **asked)
    if plan.recipe.setup.packed is not None:
        pack(model, plan.recipe.setup.packed, torch_type(plan.recipe.setup.compute or plan.recipe.setup.weights), DEVICE)
    return model.to(DEVICE)


def _config(plan: Plan) -> Any:
    """The config as transformers' own class. The cache of keys and values is off, as the Trainer has it (TrainingArguments.use_cache), unless the
    job's loop leaves it on."""
    import transformers

    fields = dict(plan.config)
    kind = fields.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise Unsupported("model.config.model_type", f"the installed transformers {transformers.__version__} does not know {kind!r}")
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(fields)
    except (TypeError, ValueError, KeyError) as error:
        raise BadInput("model.config", f"transformers does not take it: {error}") from None
    text = config.get_text_config()
    config.use_cache = text.use_cache = plan.recipe.setup.kernels.past != "none"
    if plan.recipe.setup.dropout is not None:
        for name in DROPOUTS:
            if getattr(text, name, None):
                setattr(text, name, plan.recipe.setup.dropout)
    return config


def _prepare(model: Any, setup: Setup) -> None:
    """peft.prepare_model_for_kbit_training: what is not packed becomes fp32, if the framework leaves it so (rules/from_job/adapters.py prepared_types).
    Layers of bitsandbytes give their bias the type of their input again (nn/modules.py forward)."""
    head = model.get_output_embeddings()
    for module in model.modules():
        kind = setup.outer_weights if module is head or isinstance(module, nn.Embedding) else setup.norm_weights
        if kind is None or is_packed(module):
            continue
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(torch_type(kind))


def _freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Parameters that `train.freeze` names need no gradient."""
    from fnmatch import fnmatchcase

    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)


def _adapted(model: nn.Module, plan: Plan) -> nn.Module:
    """peft's model around the base, its adapters in the asked type."""
    try:
        import peft
    except ImportError:
        raise MissingExtra("tracing a job with an adapter", "trace") from None
    adapter = plan.recipe.setup.adapter
    assert adapter is not None
    given = plan.job.train.adapter if plan.job.train else None
    targets: Any = "all-linear" if adapter.targets == ("*",) else list(adapter.targets)
    config = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=(given.alpha if given else None) or 2 * adapter.rank,
        lora_dropout=adapter.dropout,
        target_modules=targets,
        use_dora=adapter.kind == "dora",
        use_rslora=adapter.kind == "rslora",
        modules_to_save=list(given.modules_to_save or ()) or None if given else None,
        task_type="CAUSAL_LM",
    )
    kind = torch_type(adapter.dtype)
    wrapped: nn.Module = peft.get_peft_model(model, config, autocast_adapter_dtype=kind == torch.float32)
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad and "modules_to_save" not in name and parameter.dtype != kind:
            parameter.data = parameter.data.to(kind)
    return wrapped


def _recompute(model: Any, recipe: Recipe) -> None:
    """Gradient checkpointing as the framework switches it on."""
    mode = recipe.recompute.mode
    if mode != "none":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": mode == "reentrant"})
    if recipe.setup.input_grads:
        model.enable_input_require_grads()
