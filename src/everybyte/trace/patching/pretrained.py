"""Models of transformers that a program loads: they are built from their config, without weights. The config is the one that lies on this machine, else that of
everybyte's catalogue, so that nothing has to be downloaded for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from everybyte.basics.errors import BadInput
from everybyte.catalog.models import model_config
from everybyte.models.stored import packed_of
from everybyte.trace.hooks.on_import import patched
from everybyte.trace.hooks.patches import replaced
from everybyte.trace.jobs.attention import FLASH, register_flash
from everybyte.trace.jobs.packed import pack

DEVICE = "cuda"
FINDING = frozenset(
    {
        "cache_dir",
        "force_download",
        "local_files_only",
        "proxies",
        "revision",
        "subfolder",
        "token",
        "trust_remote_code",
        "_commit_hash",
        "_configuration_file",
        "_from_auto",
        "_from_pipeline",
    }
)
"""Arguments of from_pretrained that say where files are (configuration_utils.py _get_config_dict)."""
LOADING = frozenset(
    {
        "adapter_kwargs",
        "adapter_name",
        "device_mesh",
        "disable_mmap",
        "fusion_config",
        "generation_config",
        "gguf_file",
        "ignore_mismatched_sizes",
        "key_mapping",
        "low_cpu_mem_usage",
        "max_memory",
        "offload_buffers",
        "offload_folder",
        "offload_state_dict",
        "output_loading_info",
        "state_dict",
        "tp_plan",
        "tp_size",
        "use_kernels",
        "use_safetensors",
        "variant",
        "weights_only",
    }
)
"""Those that say how weights are read (modeling_utils.py)."""


class Pretrained:
    """Stands in the place of from_pretrained, and hears which models are loaded."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def notes(self) -> tuple[str, ...]:
        """What the answer says of them."""
        return tuple(f"{name} is built without its weights, from {origin}" for name, origin in self.names.items())

    @contextlib.contextmanager
    def met(self) -> Iterator[None]:
        """While entered, models are built so, and the packages of FlashAttention are not asked for: torch's own kernel keeps the same tensors."""
        configs = patched("transformers.configuration_utils", lambda module: self._configs(module.PretrainedConfig))
        with configs, patched("transformers.modeling_utils", lambda module: self._models(module.PreTrainedModel)):
            yield

    def _configs(self, base: Any) -> contextlib.AbstractContextManager[None]:
        before = base._get_config_dict.__func__

        def found(cls: Any, name: Any, /, **kwargs: Any) -> Any:
            try:
                return before(cls, name, **{**kwargs, "local_files_only": True})
            except OSError:
                try:
                    config = model_config(str(name))
                except BadInput:
                    return before(cls, name, **kwargs)
                self.names[str(name)] = "the catalogue's config"
                return config, _without(FINDING, kwargs)

        return replaced(base, _get_config_dict=classmethod(found))

    def _models(self, base: Any) -> contextlib.AbstractContextManager[None]:
        check = base._check_and_adjust_attn_implementation

        def from_pretrained(cls: Any, name: Any, /, *_: Any, **kwargs: Any) -> Any:
            self.names.setdefault(str(name), "its config.json")
            return _loaded(cls, name, **kwargs)

        def checked(model: Any, attention: str | None, *args: Any, **kwargs: Any) -> Any:
            if not (attention or "").startswith("flash_attention"):
                return check(model, attention, *args, **kwargs)
            register_flash()
            return FLASH

        return replaced(base, from_pretrained=classmethod(from_pretrained), _check_and_adjust_attn_implementation=checked)


def _loaded(
    cls: Any,
    name: Any,
    *,
    config: Any = None,
    dtype: Any = None,
    torch_dtype: Any = None,
    attn_implementation: Any = None,
    device_map: Any = None,
    quantization_config: Any = None,
    **kwargs: Any,
) -> Any:
    """The model that from_pretrained gives, in evaluation mode."""
    kwargs = _without(LOADING, kwargs)
    if config is None or isinstance(config, str):
        config, kwargs = cls.config_class.from_pretrained(config or name, return_unused_kwargs=True, **kwargs)
    for key, value in _without(FINDING, kwargs).items():
        setattr(config, key, value)
    asked = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    model = cls._from_config(config, dtype=_type(config, dtype or torch_dtype), **asked)
    stated = quantization_config.to_dict() if hasattr(quantization_config, "to_dict") else quantization_config
    packed = packed_of({"quantization_config": stated or getattr(config, "quantization_config", None)})
    if packed is not None:
        pack(model, packed, getattr(quantization_config, "bnb_4bit_compute_dtype", None) or model.dtype, DEVICE)
    if device_map is not None or packed is not None:
        model = model.to(DEVICE)
        model.hf_device_map = {"": 0}
    return model.eval()


def _without(names: frozenset[str], arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key not in names}


def _type(config: Any, asked: Any) -> torch.dtype:
    """Number format of the weights: `auto`, the default since transformers 5, is that of the checkpoint; before, nothing said is fp32."""
    import transformers

    if isinstance(asked, str) and asked != "auto":
        asked = getattr(torch, asked)
    if isinstance(asked, torch.dtype):
        return asked
    if asked is None and int(transformers.__version__.split(".")[0]) < 5:
        return torch.float32
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None) or getattr(config, "torch_dtype", None)
    return getattr(torch, stored) if isinstance(stored, str) else stored or torch.float32
