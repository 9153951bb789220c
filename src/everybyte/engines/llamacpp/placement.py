"""Which device holds which tensor: layers by -ngl and the split, single tensors by overrides (llama.cpp llama-model.cpp load_tensors)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from everybyte.allocator.ggml import Kind, kind
from everybyte.basics.errors import BadInput
from everybyte.basics.record import Record
from everybyte.catalog.releases import Release
from everybyte.engines.llamacpp.extra import Keys
from everybyte.engines.llamacpp.settings import Override, overrides_of
from everybyte.job import Job


class Formats(Record, frozen=True):
    """Formats of the weights as the graph needs them."""

    base: str
    """Of matrices."""
    by_name: tuple[tuple[str, str], ...] = ()
    """Of single tensors, as the file has them."""
    interleaved: bool = False
    """Rows lie interleaved (`_r4`): formats for CPUs."""
    repacked: bool = False
    """Rows in host memory are interleaved at loading (-rtr)."""


class Split(NamedTuple):
    """Devices of layers: GPUs from 0, host memory last."""

    gpus: int
    layers: int
    first: int
    """First layer on a GPU."""
    counted: int
    """Layers (and the output) on GPUs."""
    shares: tuple[float, ...]
    """Cumulated shares of the GPUs."""
    overrides: tuple[Override, ...]
    formats: Formats
    release: Release
    mode: str = "layer"
    """`row` cuts every matrix over the GPUs, `tensor` the caches too; `layer` gives each whole layers."""
    caches_on_host: bool = False

    @property
    def whole(self) -> bool:
        """Every layer and the output are on GPUs."""
        return self.gpus > 0 and self.first == 0 and self.counted > self.layers

    def keeping(self, asked: int, release: Release) -> Split:
        """The same with `asked` layers, the output among them, on GPUs (-ngl)."""
        first = max(self.layers + (1 if release.has("counts_output_first") else 0) - asked, 0)
        return self._replace(first=first, counted=min(asked, self.layers + 1))

    def layer(self, index: int) -> int:
        """The device of a layer; index = number of layers: the output; -1: the embedding, which stays on the host."""
        if not self.gpus or index < self.first or index - self.first >= self.counted:
            return self.gpus
        share = (index - self.first) / self.counted
        return next((gpu for gpu, end in enumerate(self.shares) if share < end), self.gpus - 1)

    def share(self, gpu: int) -> float:
        """The part of a GPU where everything is cut."""
        return self.shares[gpu] - (self.shares[gpu - 1] if gpu else 0.0)

    def cache_share(self, index: int, device: int) -> float:
        """The part of a layer's cache that a device holds, from 0 to 1."""
        home = self.gpus if self.caches_on_host else self.layer(index)
        if self.mode == "tensor" and home < self.gpus:
            return self.share(device) if device < self.gpus else 0.0
        return 1.0 if home == device else 0.0

    def tensor(self, name: str, index: int) -> int:
        """The device of a tensor, by the first override that fits its full name."""
        if not self.overrides:
            return self.layer(index)
        leaf = name if name.endswith((".bias", ".scale")) or "." in name else f"{name}.weight"
        return self.named(leaf if index < 0 or index >= self.layers else f"blk.{index}.{leaf}", index)

    def named(self, full: str, index: int) -> int:
        """The device of a tensor by its name in the file."""
        for rule in self.overrides:
            if rule.pattern.search(full):
                return _device(rule.device, self.gpus, self.layer(index))
        return self.layer(index)

    def cpu_of(self, full: str) -> int:
        """The device of an embedding: the host, unless overridden."""
        return next((_device(rule.device, self.gpus, self.gpus) for rule in self.overrides if rule.pattern.search(full)), self.gpus)

    def kind(self, name: str, index: int) -> Kind:
        """The format of a weight matrix."""
        full = f"{name}.weight" if index < 0 or index >= self.layers else f"blk.{index}.{name}.weight"
        return kind(_table(self.formats).get(full, self.formats.base))

    def stays(self, name: str, index: int) -> bool:
        """Whether a weight in host memory is in a format that no GPU computes with: it is not copied for large batches."""
        del name, index
        formats = self.formats
        return formats.repacked or (formats.interleaved and not self.release.has(f"interleaved_{formats.base}_on_cuda"))


@lru_cache(maxsize=64)
def _table(formats: Formats) -> dict[str, str]:
    return dict(formats.by_name)


def _device(name: str, gpus: int, own: int) -> int:
    if name == "CPU":
        return gpus
    number = int("".join(letter for letter in name if letter.isdigit()) or 0)
    return number if number < gpus else own


def split_of(job: Job, layers: int, release: Release, keys: Keys, formats: Formats) -> Split:
    """Where the layers of a job are. Raises BadInput for a tensor_split that does not fit the GPUs."""
    serve = job.serve
    assert serve is not None
    stated = job.hardware.gpus if job.hardware else None
    gpus = 1 if stated is None else stated
    shares = _shares(keys, tuple(float(share) for share in serve.tensor_split or ()), gpus)
    if gpus and (len(shares) > gpus or sum(shares) <= 0):
        raise BadInput("serve.tensor_split", f"has {len(shares)} shares for {gpus} GPUs, or none above 0")
    shares += (0.0,) * (gpus - len(shares))
    total = sum(shares) or 1.0
    ends = tuple(sum(shares[: index + 1]) / total for index in range(gpus))
    split = Split(gpus, layers, layers + 1, 0, ends, overrides_of(keys), formats, release, keys.mode, keys.keeps_cache_on_host)
    if not gpus:
        return split
    return split.keeping(layers + 1 if serve.gpu_layers is None or serve.gpu_layers < 0 else serve.gpu_layers, release)


def _shares(keys: Keys, stated: tuple[float, ...], gpus: int) -> tuple[float, ...]:
    """What the job says, or equal parts; without a split all is on one GPU. Raises BadInput for a main GPU that is not there."""
    main = (keys.main_gpu if keys.main_gpu is not None else keys.mg) or 0
    if gpus and main >= gpus:
        raise BadInput("serve.extra.main_gpu", f"is {main}, and there are {gpus} GPUs, counted from 0")
    if keys.mode == "none":
        return tuple(float(gpu == main) for gpu in range(gpus))
    return stated or (1.0,) * gpus
