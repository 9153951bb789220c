"""The highest instant of vLLM's profiling run: a batch of max_num_batched_tokens made-up tokens goes through the network, then max_num_seqs of them
are sampled with top-k and top-p (worker/model_runner.py, v1/worker/gpu_model_runner.py profile_run, _dummy_sampler_run; v1/sample).

The log says it as `PyTorch activation peak memory` or `torch peak memory increase`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from everybyte.basics.units import ceil_div
from everybyte.catalog.generations import generation_of
from everybyte.engines.vllm.network import first_with
from everybyte.engines.vllm.release import is_v1
from everybyte.engines.vllm.settings import Settings, card
from everybyte.layers.network import Network, Tower
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import elements
from everybyte.ledger.build import Line, plain
from everybyte.rules.accounting.account import Device
from everybyte.rules.accounting.overhead import cublas_workspace

FORWARD = "vllm model_executor/models and layers/activation.py SiluAndMul: gate and up joined, their product, hidden states of caller, layer and residual"
EXPERTS = "vllm model_executor/layers/fused_moe: two workspaces for the tokens of all chosen experts; from 0.17 on they are kept (v1/worker/workspace.py)"
LOGITS = "vllm v1/sample/sampler.py: 16-bit logits of the caller and a copy in fp32"
SORT = "pytorch aten/src/ATen/native/cuda/SortStable.cu: sorted values and positions, an index array, alternate keys and values"
TRITON = "vllm v1/sample/ops/topk_topp_triton.py: a row of logits for every multiprocessor, kept"
EXPONENTIAL = "vllm v1/sample/ops/topk_topp_sampler.py random_sample: probabilities and exponential noise, both fp32"
IMAGES = "vllm v1/worker/gpu_model_runner.py profile_run: made-up images and what the encoder makes of them, kept while the text part runs"
ENCODER = "vllm model_executor/models: blocks of the encoder, hidden states of caller and layer, the feed-forward layer's projection and activation"
ENCODER_ATTENTION = (
    "vllm model_executor/models/qwen2_5_vl.py Qwen2_5_VisionAttention: queries, keys and values (3), queries and keys joined (2) and turned (2), the result "
    "and its projection (2), hidden states of caller and norm (2)"
)
ANGLES = 320
"""Numbers a patch of angles, their cosines and sines, in fp32 and reordered, of heads of 80."""
LISTENING = "vllm worker/enc_dec_model_runner.py profile_run: max_num_seqs sequences, each with an item for the encoder"
LARGEST_IMAGE = 16384
"""Tokens of the largest image that Qwen-VL's processors let through (max_pixels 12,845,056 of 28 × 28; of Qwen3-VL 16,777,216 of 32 × 32)."""
TAKES_VIDEOS = ("qwen2_vl", "qwen2_5_vl")
"""model_types whose processors take videos as images of any size in a row."""
LARGEST_VIDEO = 7
"""Pairs of frames of the longest video that is profiled (models/qwen2_vl.py _MAX_FRAMES_PER_VIDEO 14, two frames a patch), each as large as the largest image
where the context has room (get_num_frames_with_most_features)."""
INDEXER = "vllm v1/attention/backends/mla/indexer.py get_max_prefill_buffer_size: keys in fp8 with a scale, of 40 contexts"
OWN_WORKSPACE = ("mxfp4", "nvfp4")
"""Formats of experts whose kernels (triton_kernels, FlashInfer) do not use the shared workspace."""
FEW = 128
"""Rows below which sort takes another branch, with 12 bytes a number more."""
TRITON_ROWS = 8
"""Rows from which the Triton kernel is used."""
UNKNOWN_PROCESSORS = 108
"""Of a generation that is too old for the kernel to be known on it."""


class Peak(NamedTuple):
    """Rows that live at the highest instant."""

    lines: tuple[Line, ...]

    @property
    def bytes(self) -> int:
        """Their sum."""
        return sum(line.bytes for line in self.lines)


def profile(stage: Network, s: Settings, setup: Setup, device: Device, fields: Mapping[str, Any], *, first: bool, last: bool) -> Peak:
    """The highest instant on one rank of a stage."""
    images = tuple(_images(stage, s, fields)) if first else ()
    own = (setup.packed is not None and setup.packed.format in OWN_WORKSPACE) or fields.get("expert_dtype") == "fp4"
    experts = () if own else tuple(_experts(stage, s))
    streams = _streams(fields)
    forward = Peak((*_forward(stage, s, device, streams), *experts, *images))
    if first:
        encoders = (Peak((*_encoding(stage, s, device, fields), *images)), Peak(tuple(_listening(stage, s, device))))
        forward = max(forward, *encoders, key=lambda peak: peak.bytes)
    if not last or (s.release.has("profile_leaves_sampler_out") and s.batched_tokens == s.release.whole("chunk")):
        return forward  # 0.6 with prompts cut up by itself: the log's peak does not hold the sampler's tensors
    sampling = Peak((*_sampling(stage, s, experts, device, streams, first=first), *images))
    return max(forward, sampling, key=lambda peak: peak.bytes)


def _workspace(device: Device) -> Line:
    found = card(device)
    size = cublas_workspace(found.compute_capability if found else device.compute_capability)
    return Line("profile/cublas", "workspace", size, plain("w", w=size), "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp", "formula")


def _streams(fields: Mapping[str, Any]) -> int:
    """Residual streams of hyper-connections: the network's hidden states are so many times as wide as what a layer sees."""
    value = fields.get("hc_mult")
    return value if isinstance(value, int) and value > 1 else 1


def _forward(stage: Network, s: Settings, device: Device, streams: int) -> Iterator[Line]:
    """A layer's dense feed-forward part at its highest."""
    e, n, h = s.compute.block_bytes, s.batched_tokens, stage.hidden // streams
    live = s.release.whole("live_hidden")
    live += 2 if s.tp > 1 or s.pp > 1 else 0  # an all-reduce's result beside its input; hidden states and residual between stages
    live += 2 * streams if streams > 1 else 0  # the streams before and behind the layer
    wide = max((_feed_forward(run.layer) for run in stage.runs), default=0) // s.tp
    text = plain("e·n·(k·h + f)", e=e, n=n, k=live, h=h, f=wide)
    yield Line("profile/forward", "activation", e * n * (live * h + wide), text, FORWARD, "formula")
    yield _workspace(device)


def _feed_forward(layer: object) -> int:
    """Numbers a token of a dense feed-forward layer at its highest: gate, up and their product, or one projection and its activation."""
    found = [part for part in (first_with(layer, "ffn", "fused_gate"),) if part is not None]
    if found:
        return 3 * int(found[0].ffn)
    part = first_with(layer, "ffn")
    return 2 * int(part.ffn) if part is not None and not hasattr(part, "count") else 0


def _experts(stage: Network, s: Settings) -> Iterator[Line]:
    """Workspaces of the fused experts: tokens × chosen experts × (width of gate and up, or hidden)."""
    found = next((part for run in stage.runs if (part := first_with(run.layer, "count", "top_k", "ffn")) is not None), None)
    if found is None:
        return
    ffn = found.ffn if s.experts_parallel else ceil_div(found.ffn, s.tp)
    e, n, k, h = s.compute.block_bytes, s.batched_tokens, found.top_k, found.hidden
    first, second = max(ffn, h), max(2 * ffn, h)
    if not s.release.has("workspace_for_experts"):
        first, second = ffn, max(2 * ffn, h)
    text = plain("e·n·top_k·(W_1 + W_2)", e=e, n=n, top_k=k, W_1=first, W_2=second)
    yield Line("profile/experts", "activation", e * n * k * (first + second), text, EXPERTS, "formula")


def _sampling(stage: Network, s: Settings, experts: tuple[Line, ...], device: Device, streams: int, *, first: bool) -> Iterator[Line]:
    """Logits of R rows and what choosing tokens makes of them."""
    e, n, h, v, rows = s.compute.block_bytes, s.batched_tokens, stage.hidden // streams, stage.vocab, s.sequences
    if not is_v1(s.release) and s.images:
        rows = max(min(rows, n // (max((t.tokens_per_item for t in stage.towers), default=0) or n)), 1)  # as many as whole images fit
    yield Line(
        "profile/hidden", "activation", e * (n + rows) * h, plain("e·(n + R)·h", e=e, n=n, R=rows, h=h), "vllm _dummy_run, _dummy_sampler_run", "formula"
    )
    if not first:
        yield Line("profile/handed over", "activation", 2 * e * n * h, plain("2·e·n·h", e=e, n=n, h=h), "vllm sequence.py IntermediateTensors", "formula")
    copy = 4 if e < 4 else 0
    yield Line("profile/logits", "activation", (e + copy) * rows * v, plain("(e + copy)·R·V", e=e, copy=copy, R=rows, V=v), LOGITS, "formula")
    if s.release.has("sorts_to_sample") or rows < TRITON_ROWS:
        each = 44 if 2 <= rows < FEW else 32
        yield Line("profile/sort", "temporary", each * rows * v, plain("each·R·V", each=each, R=rows, V=v), SORT, "formula")
    else:
        yield Line("profile/probabilities", "activation", 8 * rows * v, plain("8·R·V", R=rows, V=v), EXPONENTIAL, "formula")
        most = processors(device)
        kept = min(1 << (min(most, rows) - 1).bit_length(), most)
        yield Line("profile/top-k", "workspace", 4 * kept * v, plain("4·m·V", m=kept, V=v), TRITON, "formula")
    if s.release.has("workspace_for_experts"):
        yield from sorted((*experts, *_indexed(stage, s)), key=lambda line: line.bytes)[-1:]
    yield _workspace(device)


def _indexed(stage: Network, s: Settings) -> Iterator[Line]:
    """The keys that an indexer gathers, in the one workspace that all layers share and that stays."""
    indexer = next(
        (part for run in stage.runs if (part := first_with(run.layer, "top_k", "head_dim", "rope")) is not None and not hasattr(part, "count")), None
    )
    if indexer is not None:
        width = indexer.head_dim
        yield Line("profile/indexer", "workspace", 40 * s.context * (width + 4), plain("40·t·(d_i + 4)", t=s.context, d_i=width), INDEXER, "formula")


def processors(device: Device) -> int:
    """Multiprocessors of a card; those of the best known card of its generation where the catalogue does not say."""
    found = card(device)
    if found is not None and found.multiprocessors is not None:
        return found.multiprocessors
    generation = generation_of(found.compute_capability if found else device.compute_capability)
    return generation.multiprocessors or UNKNOWN_PROCESSORS


def _images(stage: Network, s: Settings, fields: Mapping[str, Any]) -> Iterator[Line]:
    """As many images as their tokens fit into the batch, one at least: what the encoder makes of them, and the patches that it is given."""
    tower = _tower(stage, s)
    if tower is None:
        return
    e, n, h = s.compute.block_bytes, _image_tokens(tower, s, fields), stage.hidden
    yield Line("profile/encoder cache", "activation", e * n * h, plain("e·n·h", e=e, n=n, h=h), IMAGES, "formula")
    each = _patches_of_token(tower, fields)
    pixels = elements(tower.stem_dims)[0] // max(tower.tokens_per_item, 1) if tower.stem_dims else 0
    if pixels:
        text = plain("e·n·patches·p", e=e, n=n, patches=each, p=pixels)
        yield Line("profile/images", "input", e * n * each * pixels, text, IMAGES, "formula")


def _encoding(stage: Network, s: Settings, device: Device, fields: Mapping[str, Any]) -> Iterator[Line]:
    """The encoder's own highest instant: its feed-forward layer over all patches, or attention where that holds more."""
    tower = _tower(stage, s)
    if tower is None:
        return
    e, n, each, h = s.compute.block_bytes, _image_tokens(tower, s, fields), _patches_of_token(tower, fields), tower.hidden
    wide = max((_feed_forward(run.layer) for run in tower.runs), default=0) // s.tp
    if fields.get("model_type") in TAKES_VIDEOS and is_v1(s.release) and 9 * h // s.tp > wide:
        text = plain("e·n·patches·(2·h + 9·h/t + d)", e=e, n=n, patches=each, h=h, t=s.tp, d=ANGLES)
        yield Line("profile/encoder", "activation", e * n * each * (2 * h + 9 * h // s.tp + ANGLES), text, ENCODER_ATTENTION, "formula")
    else:
        text = plain("e·n·patches·(2·h + f)", e=e, n=n, patches=each, h=h, f=wide)
        yield Line("profile/encoder", "activation", e * n * each * (2 * h + wide), text, ENCODER, "formula")
    yield _workspace(device)


def _listening(stage: Network, s: Settings, device: Device) -> Iterator[Line]:
    """V0 runs an encoder of its own on one item for each sequence at once."""
    tower = next((t for t in stage.towers if t.name == "encoder"), None)
    if tower is None or is_v1(s.release):
        return
    e, n, h = s.compute.block_bytes, s.sequences * stage.memory(s.context), tower.hidden
    wide = max((_feed_forward(run.layer) for run in tower.runs), default=0) // s.tp
    text = plain("e·n·(2·h + f)", e=e, n=n, h=h, f=wide)
    yield Line("profile/encoder", "activation", e * n * (2 * h + wide), text, LISTENING, "formula")
    yield _workspace(device)


def _tower(stage: Network, s: Settings) -> Tower | None:
    """The encoder of images, if the profiling run uses it."""
    return next((t for t in stage.towers if t.name != "encoder"), None) if s.images and s.profiles_images else None


def _image_tokens(tower: Tower, s: Settings, fields: Mapping[str, Any]) -> int:
    """Tokens of all items of the profiling run, one at least: of a tower that takes any size, the largest image, or video, that its processor and the
    context let through (v1/core/encoder_cache_manager.py compute_encoder_budget: the kind with the largest item)."""
    largest = min(LARGEST_IMAGE, s.context)
    vision, merge = fields.get("vision_config"), _merge(fields)
    side, patch = (vision.get("image_size"), vision.get("patch_size")) if isinstance(vision, Mapping) else (None, None)
    if isinstance(side, int) and isinstance(patch, int) and merge and patch:
        largest = max(side // (patch * merge), 1) ** 2
        return max(s.batched_tokens // largest, 1) * largest
    if tower.tokens_per_item or not merge:
        return s.batched_tokens
    if s.videos and is_v1(s.release) and fields.get("model_type") in TAKES_VIDEOS:
        largest *= max(min(s.context // LARGEST_IMAGE, LARGEST_VIDEO), 1)
    return max(s.batched_tokens, largest)


def _patches_of_token(tower: Tower, fields: Mapping[str, Any]) -> int:
    """Patches of an image that become one token of text."""
    whole = fields.get("mm_tokens_per_image")
    if isinstance(whole, int) and whole and tower.tokens_per_item:
        return max(tower.tokens_per_item // whole, 1)
    return _merge(fields) ** 2 or 1


def _merge(fields: Mapping[str, Any]) -> int:
    """Patches along either side that are merged into one token, 0 where none are."""
    vision = fields.get("vision_config")
    merge = fields.get("spatial_merge_size") or (vision.get("spatial_merge_size") if isinstance(vision, Mapping) else None)
    return merge if isinstance(merge, int) else 0
