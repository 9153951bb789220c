"""Accounts for ExLlamaV2 and ExLlamaV3 on one GPU.

What is known: EXL3 tensors (exllamav3 modules/quant/exl3.py: a trellis of K bits a number, a 16-bit sign and scale for each input and output), the head in
6 bits, a cache allocated whole (cache/fp16.py, cache/quant.py), a dense copy of one weight while a prompt is computed. The embedding stays in host memory.
Not modelled: bits that differ from layer to layer (the mean that the tool prints is taken for all), splits over several GPUs, the generator's buffers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from everybyte.basics.dtypes import FP16
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of, inferred
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div, round_up
from everybyte.engines.exllama.extra import Keys
from everybyte.job import Job, Serve
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels, Packed, Setup
from everybyte.layers.recording.size import elements
from everybyte.layers.recording.tape import Cache
from everybyte.ledger.build import Line, plain
from everybyte.models.widths import widths_of
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.overhead import workspace_line
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.serving.kv_pool_server import prompt_line
from everybyte.rules.serving.pages import layer_caches, prices
from everybyte.rules.serving.server_phases import Phases, ServerPhases
from everybyte.rules.serving.settings import known_of, mesh_of
from everybyte.rules.serving.tensor_parallel import Cut
from everybyte.rules.step.cache import Format
from everybyte.rules.step.persistent_state import weight_lines

NAME = "ExLlama"
PAGE = 256
"""Tokens of a page (constants.py)."""
HEAD_BITS = 6
"""Of the head, where the conversion says nothing (convert.py --head_bits)."""
CHUNK = 2048
"""Tokens of a prompt that are computed at once (generator max_chunk_size)."""
SLICE = 32768
"""Columns of a weight that are made dense at once (MAX_RECONSTRUCT_SLICE_N)."""
CACHE_SOURCE = "exllamav3 cache/fp16.py, cache/quant.py: 16 bits, or k bits and a 16-bit scale for 32 numbers"
HEAD_SOURCE = "exllamav3 models: lm_head is a linear layer of its own, converted to head_bits from the embedding where a checkpoint ties them"
DENSE_SOURCE = "exllamav3 modules/quant/exl3.py reconstruct_hgemm: a weight in 16 bits while more than a few rows are multiplied"


class Bits(Record, frozen=True):
    """Prices a cache whose keys and values have numbers of their own width; 16: plain."""

    keys: int
    values: int

    def __call__(self, cache: Cache, kind: Format) -> int | None:
        """Bytes of one token of one cache; None for other caches than keys and values."""
        bits = {"key": self.keys, "value": self.values}.get(cache.name)
        numbers = elements(cache.dims)[0]
        if bits is None:
            return None
        return 2 * numbers if bits == 16 else ceil_div(numbers, 32) * (4 * bits + 2)


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one process."""
    assert job.serve is not None
    serve, choices, known = job.serve, ResolvedSettings(), known_of(job)
    keys = section(serve.extra, Keys, "serve.extra")
    if (mesh_of(job).tp or 1) > 1:
        raise Unsupported("serve.mesh", "ExLlama over several GPUs is not supported yet; supported: one GPU")
    if network.towers and not serve.multimodal:
        choices.assume("the tower of images is a component of its own that text does not load; serve.multimodal: true counts it")
        network = replace(network, towers=())
    context = choices.pick("serve.context", serve.context, network.max_positions or 8192, inferred("the model's maximum"))
    tokens = round_up(keys.cache_size or context * (serve.sequences or 1), PAGE)
    bits = _cache_bits(serve, choices)
    weights, host = _weights(serve, network, keys, choices)
    found = prices(layer_caches(network, Cut(), Format(FP16), priced=bits))
    token = found.token
    pool = known.get("kv.pool", tokens * token)
    cache = Line("kv_cache/tokens", "kv_cache", tokens * token, plain("tokens·token", tokens=tokens, token=token), CACHE_SOURCE)
    always = (*weights, workspace_line(device.compute_capability, 1), cache)
    phases: Phases = (("load", weights), ("prefill", (*always, *_work(network, min(CHUNK, context)))), ("decode", always))
    figures: dict[str, Any] = {
        "weights": known.get("weights", sum(line.bytes for line in weights)),
        "kv.bytes_per_token": token,
        "kv.pool": pool,
        "kv.bytes": tokens * token,
        "kv.tokens": pool // token if token else 0,
        "kv.concurrency": pool / token / context if token else 0.0,
        "kv.block_size": PAGE,
    }
    choices.assume("the embedding stays in host memory; all other layers have the same bits per weight")
    return Account((Rank(ServerPhases(phases), host=host),), choices, figures=figures)


def _cache_bits(serve: Serve, choices: ResolvedSettings) -> Bits:
    given = serve.kv_dtype
    words = (choices.pick("serve.kv_dtype.k", given.k if given else None, "fp16", default_of(NAME)), (given.v or given.k) if given else "fp16")
    return Bits(*(_width(word or "fp16") for word in words))


def _width(word: str) -> int:
    """Bits of `fp16`, `q6`, `int8` ..."""
    if word in ("auto", "fp16", "bf16"):
        return 16
    digits = word.removeprefix("q").removeprefix("int").partition("_")[0]
    if digits.isdigit() and 2 <= int(digits) <= 8:
        return int(digits)
    raise BadInput("serve.kv_dtype", f"{word!r} is no cache format of ExLlama; it has fp16 and q2 to q8")


def _weights(serve: Serve, network: Network, keys: Keys, choices: ResolvedSettings) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """(rows on the device, rows in host memory)."""
    asked = serve.weights
    word = asked.format if asked is not None and asked.format else "fp16"
    if word not in ("exl3", "exl2", "fp16", "bf16"):
        raise Unsupported("serve.weights.format", f"{word!r} is not supported for ExLlama; supported: exl3, exl2, fp16")
    stated = asked.bits if asked is not None and asked.bits else 16
    bits = Fraction(str(stated))
    setup = Setup(weights=FP16, grad=False, trainable=(), kernels=Kernels(loss="logits"))
    if word in ("exl3", "exl2"):
        choices.note("serve.weights.bits", float(bits), inferred("the job"))
        packed = Packed("exl3", (), 0, bits=bits.numerator, parts=bits.denominator, experts=True)
        setup = replace(setup, packed=packed)
        head = replace(setup, packed=replace(packed, bits=keys.head_bits or HEAD_BITS, parts=1))
    else:
        head = setup
    rows = [line for line in weight_lines(network, setup, Cut()) if not line.id.startswith("weights/head")]
    rows += [line for line in weight_lines(network, head, Cut()) if line.id.startswith("weights/head")]
    on_host = tuple(line for line in rows if line.id.startswith("weights/embed"))
    on_gpu = tuple(line for line in rows if line not in on_host)
    return (*on_gpu, *((_head_of_table(network, head),) if network.tied else ())), on_host


def _head_of_table(network: Network, setup: Setup) -> Line:
    """The head of a model whose embedding is its head too: the table on the host stays as it is, the GPU gets a packed matrix of its own."""
    packed, numbers = setup.packed, network.vocab * network.hidden
    bits = Fraction(packed.bits, packed.parts) if packed is not None else Fraction(setup.weights.bits)
    size = ceil_div(numbers * bits.numerator, 8 * bits.denominator)
    text = plain("V·h·k/8", V=network.vocab, h=network.hidden, k=round(bits))
    return Line("weights/head/lm_head", "parameter", size, text, HEAD_SOURCE)


def _work(network: Network, tokens: int) -> tuple[Line, ...]:
    """One dense weight and the hidden states around the feed-forward layer of a prompt's chunk."""
    hidden, wide = network.hidden, max((*widths_of(network).ffn, *widths_of(network).expert_ffn), default=0)
    columns = min(wide, SLICE)
    text = plain("2·h·c", h=hidden, c=columns)
    dense = Line("activation/dense_weight", "activation", 2 * hidden * columns, text, DENSE_SOURCE)
    return dense, prompt_line(tokens, hidden, wide)
