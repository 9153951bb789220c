"""Builds what a job describes out of torch and transformers: the model with random weights, its adapters, its batch, its optimizer.

Everything is read from the job, so that what runs is what is predicted. `everybyte` itself is not needed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

Fields = dict[str, Any]
CLASSES = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForImageClassification": "AutoModelForImageClassification",
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def weight_dtype(job: Fields) -> torch.dtype:
    """Type of the weights: autocast works over fp32 weights."""
    if "serve" in job:
        return DTYPES[job["serve"]["weights"]]
    word = job["train"]["precision"]
    return DTYPES["fp32" if word.endswith("mixed") else word]


def build_model(job: Fields, device: str) -> nn.Module:
    """The model on `device`, one tensor after the other in the order of its modules, with random weights."""
    section = job.get("train") or job["serve"]
    if "shape" in job["model"]:
        from cnn import ResNet

        model: nn.Module = ResNet(job["model"]["shape"])
    else:
        model = transformers_model(job["model"]["config"], section["attention"])
    materialise(model, device, weight_dtype(job))
    if "serve" in job:
        return model.eval().requires_grad_(False)
    return prepare(model, job["train"], device)


def transformers_model(config: Fields, attention: str) -> nn.Module:
    """A model of transformers whose parameters have no memory yet."""
    import transformers

    fields = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    made = transformers.AutoConfig.for_model(config["model_type"], **fields)
    suffix = next(s for s in CLASSES if config["architectures"][0].endswith(s))
    with parameters_on_meta():
        model: nn.Module = getattr(transformers, CLASSES[suffix]).from_config(made, attn_implementation=attention)
    return model


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Parameters are made without memory and without values; buffers as ever."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def materialise(model: nn.Module, device: str, dtype: torch.dtype) -> None:
    """Gives every parameter memory and values on `device`, tied ones once, and moves the buffers there."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                values = torch.empty(parameter.shape, dtype=dtype, device=device)
                values.normal_(0, 0.02) if values.dim() > 1 else values.fill_(0.0 if name == "bias" else 1.0)
                made[id(parameter)] = nn.Parameter(values)
            module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def prepare(model: nn.Module, train: Fields, device: str) -> nn.Module:
    """Fused kernels, packed weights, recomputing, adapters: in the order in which a script does it."""
    if "liger" in train.get("kernels", ()):
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model)
    if "quantization" in train:
        pack(model, train["quantization"], device)
    recompute = train["recompute"]
    if recompute != "none":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": recompute["reentrant"]})
    freeze(model, train.get("freeze", ()))
    if "adapter" in train:
        model = add_adapter(model, train["adapter"])
        if recompute != "none" and recompute["reentrant"]:
            model.enable_input_require_grads()
    return model.train()


def freeze(model: nn.Module, names: Sequence[str]) -> None:
    """Parameters with one of the names as a part of theirs get no gradient."""
    for name, parameter in model.named_parameters():
        if any(f".{frozen}." in f".{name}." for frozen in names):
            parameter.requires_grad_(False)


def pack(model: nn.Module, quantization: Fields, device: str) -> None:
    """4-bit layers of bitsandbytes instead of all linear layers but the head, packed from random weights."""
    import bitsandbytes as bnb

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name != "lm_head":
                packed = bnb.nn.Linear4bit(
                    child.in_features,
                    child.out_features,
                    bias=child.bias is not None,
                    compute_dtype=child.weight.dtype,
                    compress_statistics=quantization.get("double", False),
                    quant_type=quantization["format"],
                )
                packed.weight = bnb.nn.Params4bit(
                    child.weight.data.cpu(), requires_grad=False, compress_statistics=quantization.get("double", False), quant_type=quantization["format"]
                )
                setattr(parent, name, packed.to(device))


class LowRank(nn.Module):
    """A frozen linear layer with `B(A(x))·scale` beside it, operation by operation as peft writes it (tuners/lora/layer.py)."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.base_layer, self.scale = base, scale
        device = base.weight.device
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=dtype, device=device)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in) -> (..., out)."""
        result = self.base_layer(x)
        result_dtype = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(x)) * self.scale
        return result.to(result_dtype)


def add_adapter(model: nn.Module, adapter: Fields) -> nn.Module:
    """Freezes the model and adds the adapter: with peft if it is installed, else with modules of our own."""
    rank, scale = adapter["rank"], adapter["alpha"] / adapter["rank"]
    try:
        import peft
    except ImportError:
        model.requires_grad_(False)
        targets = adapter["targets"]
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear) and name != "lm_head" and (targets == "all-linear" or name in targets):
                    setattr(parent, name, LowRank(child, rank, scale, DTYPES[adapter["dtype"]]))
        return model
    config = peft.LoraConfig(r=rank, lora_alpha=adapter["alpha"], target_modules=adapter["targets"], lora_dropout=0.0, task_type="CAUSAL_LM")
    wrapped: nn.Module = peft.get_peft_model(model, config, autocast_adapter_dtype=adapter["dtype"] == "fp32")
    return wrapped


def build_optimizer(model: nn.Module, train: Fields) -> torch.optim.Optimizer:
    """The optimizer of the job over what is trained."""
    given = train["optimizer"]
    parameters = [p for p in model.parameters() if p.requires_grad]
    name, impl = given["name"], given.get("impl")
    if name == "adamw-8bit":
        import bitsandbytes as bnb

        return bnb.optim.AdamW8bit(parameters, lr=1e-4)  # type: ignore[no-any-return]
    if name == "adamw-torchao-8bit":
        from torchao.optim import AdamW8bit

        return AdamW8bit(parameters, lr=1e-4)  # type: ignore[no-any-return]
    choice = {"foreach": impl == "foreach"} if impl != "fused" else {"fused": True}
    if name == "adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-4, foreach=impl == "foreach")
    if name.startswith("sgd"):
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9 if name == "sgd-momentum" else 0.0, **choice)
    return torch.optim.AdamW(parameters, lr=1e-4, **choice)


def build_batch(job: Fields, device: str) -> Fields:
    """Random inputs with labels, as the loop passes them to the model."""
    section = job.get("train") or job["serve"]
    if "shape" in job["model"]:
        from cnn import images

        return images(job, device, weight_dtype(job))
    config = job["model"]["config"]
    if "serve" in job:
        prompt = section["context"] - section["extra"].get("new_tokens", 0)
        return {"input_ids": torch.randint(3, config["vocab_size"], (section["sequences"], prompt), device=device)}
    rows = section["micro_batch"]
    if "image_size" in config:
        side, kinds = config["image_size"], len(config["id2label"])
        pixels = torch.randn(rows, config["num_channels"], side, side, device=device, dtype=weight_dtype(job))
        return {"pixel_values": pixels, "labels": torch.randint(0, kinds, (rows,), device=device)}
    ids = torch.randint(0, config["vocab_size"], (rows, section["seq_len"]), device=device)
    return {"input_ids": ids, "labels": ids.clone()}
