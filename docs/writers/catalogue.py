"""The pages of the catalogue: models and GPUs, with their sources."""

from __future__ import annotations

import re
from pathlib import Path

from everybyte.basics.units import GiB
from everybyte.catalog import gpus as gpu_room
from everybyte.catalog.gpus import Gpu, all_gpus
from everybyte.catalog.models import ModelRow, all_models
from everybyte.report.words import count
from writers.markdown import page, table

README = Path(gpu_room.__file__).parent / "data" / "README.md"
"""Says when the facts were gathered, and what the words of the sources mean."""
MODELS = """\
A model that is not here is given by a path to its `config.json`, a model folder, a `.safetensors` or `.gguf` file, or as `hf:ORG/NAME`.
Parameters are counted on the meta device, tied weights once, without buffers; `everybyte models NAME` prints all that is known of one."""
GPUS = """\
A GPU that is not here is given by its memory: `hardware: {gpu: {memory_bytes: 25386352640}}`. Usable is what a framework sees, not what is printed on the box.
Rates are dense. `everybyte gpus NAME` prints all that is known of one, with its other names."""


def gathered() -> str:
    """The sentence that dates the catalogue."""
    found = re.search(r"Facts gathered on (\d{4}-\d{2}-\d{2})", README.read_text(encoding="utf-8"))
    assert found, f"{README} says no date"
    return f"Gathered on {found[1]}; what the words of the sources mean is in the README of `src/everybyte/catalog/data`."


def models_page() -> str:
    """Every model, by family."""
    models = all_models()
    parts = [f"{len(models)} models. {MODELS}", gathered()]
    for kind in sorted({model.model_type for model in models}):
        rows = [model_row(model) for model in models if model.model_type == kind]
        parts.append(f"## {kind}\n\n{table(('model', 'parameters', 'active', 'architecture', 'source of the configuration'), rows, 'lrrll')}")
    return page("Models", *parts, wide=True)


def model_row(model: ModelRow) -> tuple[str, ...]:
    """Name, sizes and sources."""
    params = model.params_meta or model.params_published
    active = count(model.active_params_meta) if model.active_params_meta else ""
    return f"`{model.name}`", f"{params:,}" if params else "", active, model.architecture, f"{model.config_origin}: {model.config_source}"


def gpus_page() -> str:
    """Every GPU, by segment."""
    gpus = all_gpus()
    parts = [f"{len(gpus)} devices. {GPUS}", gathered()]
    titles = ("GPU", "usable GiB", "sold as GB", "GB/s", "16-bit TFLOPS", "cc", "year", "source; confidence; what usable is")
    for segment in dict.fromkeys(gpu.segment for gpu in gpus):
        rows = [gpu_row(gpu) for gpu in gpus if gpu.segment == segment]
        parts.append(f"## {segment.capitalize()}\n\n{table(titles, rows, 'lrrrrrrl')}")
    return page("GPUs", *parts, wide=True)


def gpu_row(gpu: Gpu) -> tuple[str, ...]:
    """Sizes, rates and sources."""
    rate = gpu.bf16_tflops or gpu.fp16_tflops
    numbers = [f"{gpu.capacity / GiB:.2f}", f"{gpu.memory_gb_marketing:g}", *(f"{value:,g}" if value else "" for value in (gpu.bandwidth_gb_s, rate))]
    sources = f"{gpu.source}; {gpu.confidence}; {gpu.capacity_source}"
    return f"`{gpu.name}`", *numbers, gpu.compute_capability, str(gpu.launch_year), sources
