"""From the train section of a job to what is trained: adapters by kind, copies of whole modules, frozen parts, prepared packed bases."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP32, DType, dtype
from everybyte.basics.errors import BadInput, Unsupported, did_you_mean
from everybyte.basics.origin import default_of, inferred
from everybyte.catalog.releases import release_in
from everybyte.job import Adapter as Given
from everybyte.job import Train
from everybyte.job.extra import Section, section
from everybyte.layers.common.adapters import SIZES, WRITERS
from everybyte.layers.common.prompts import PROMPTS
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Adapter, ExpertsKernel, Kernels, Setup
from everybyte.models.count import Declared, declared, parts
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.step.adapted_network import adapted

NORMS = "ln-tuning"
"""Trains a copy of each norm that is named, and no adapter."""
KINDS = (*(kind for kind in WRITERS if kind not in ("rslora", "qlora", "multi-lora")), *PROMPTS, "prefix", NORMS)

RANKS = {"vera": 256, "miss": 64, "bone": 64, "randlora": 32, "shira": 32, "delora": 8, "gralora": 32, "hra": 8, "vblora": 4, "tinylora": 2, "adalora": 12}
"""peft's default rank, where it is not LoRA's."""
WITHOUT_RANK = (*PROMPTS, "prefix", "ia3", "fourierft", "waveft", "oft", "boft", "c3a", "road", "osf")

Rate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Option = Annotated[int, msgspec.Meta(ge=-1, le=10**9)] | bool


class AdapterKeys(Section, frozen=True, kw_only=True):
    """Keys of train.extra that say more about an adapter, by peft's names."""

    lora_dropout: Rate | None = None
    feedforward_modules: tuple[str, ...] | None = None
    """Of (IA)³: linear layers whose input is scaled."""
    n_frequency: Option | None = None
    decompose_factor: Option | None = None
    decompose_both: Option | None = None
    u: Option | None = None
    num_vectors: Option | None = None
    vector_length: Option | None = None
    topk: Option | None = None
    oft_block_size: Option | None = None
    boft_block_size: Option | None = None
    boft_n_butterfly_factor: Option | None = None
    block_size: Option | None = None
    gralora_k: Option | None = None
    num_virtual_tokens: Option | None = None
    encoder_hidden_size: Option | None = None
    num_tasks: Option | None = None
    num_ranks: Option | None = None


OPTIONS: dict[str, tuple[str, ...]] = {
    "fourierft": ("n_frequency",),
    "waveft": ("n_frequency",),
    "lokr": ("decompose_factor", "decompose_both"),
    "tinylora": ("u",),
    "vblora": ("num_vectors", "vector_length", "topk"),
    "oft": ("oft_block_size",),
    "boft": ("boft_block_size", "boft_n_butterfly_factor"),
    "c3a": ("block_size",),
    "gralora": ("gralora_k",),
    "prefix": ("num_virtual_tokens",),
    "prompt": ("num_virtual_tokens",),
    "p-tuning": ("num_virtual_tokens", "encoder_hidden_size"),
    "multitask-prompt": ("num_virtual_tokens", "num_tasks", "num_ranks"),
    "cpt": ("num_virtual_tokens",),
}
"""Which of the keys a kind reads."""
FAMILY_TARGETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("t5", "mt5"), ("q", "v")),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    **dict.fromkeys(("bloom", "gpt_neox", "falcon"), ("query_key_value",)),
    **dict.fromkeys(("bert", "roberta"), ("query", "value")),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "phi3": ("qkv_proj",),
    "mpt": ("Wqkv",),
    "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
}
"""peft's default targets of LoRA, where they are not q_proj and v_proj (peft utils/constants.py)."""
FEEDFORWARD = ("down_proj", "fc2", "dense_4h_to_h", "c_proj", "wo")
"""Layers whose input (IA)³ scales where the job names none (peft utils/constants.py)."""


def adapter_of(train: Train, network: Network, framework: str, usual: Adapter, experts: ExpertsKernel, choices: ResolvedSettings) -> Adapter | None:
    """The adapter, or None where none is trained; `usual` has the framework's defaults, `experts` says whether they are linear
    layers. Raises Unsupported for a kind that is not known."""
    given = train.adapter
    if given is None or given.kind == NORMS:
        return None
    kind = choices.pick("train.adapter.kind", given.kind, "lora", inferred("an adapter without kind"))
    if kind not in KINDS:
        raise Unsupported("train.adapter.kind", f"{kind!r} is not supported by {framework} yet; supported: {', '.join(KINDS)}")
    if kind in SIZES:
        choices.assume(f"{kind} keeps a copy of its input and its own result in the adapter's type; its parameters are exact")
    listed = given.targets
    targets = ("*",) if listed == "all-linear" else (tuple(listed) if listed is not None else _usual_targets(usual, network))
    noted = listed if listed == "all-linear" else list(targets)
    choices.note("train.adapter.targets", noted, "given" if listed is not None else default_of(framework))
    word = choices.pick("train.adapter.dtype", given.dtype, usual.dtype.name, default_of(framework))
    keys = section(train.extra, AdapterKeys)
    rate = choices.pick("train.extra.lora_dropout", keys.lora_dropout, usual.dropout, default_of(framework))
    found = Adapter(kind, given.rank or 0, targets, dtype(word, "train.adapter.dtype"), float(rate), _options(kind, keys, train), _feedforward(kind, keys))
    found = _with_rank(found, given, network, framework, usual, experts, choices)
    reached = adapter_names(network, found, experts)
    if not reached:
        raise BadInput("train.adapter.targets", f"{', '.join(targets)} match no linear layer of this model; all-linear takes every one")
    # peft too leaves out what it does not find as long as it finds one
    missed = [target for target in targets if listed is not None and target != "*" and not any(f".{target}." in f".{name}" for name in reached)]
    if missed and kind not in (*PROMPTS, "prefix"):
        choices.warn(f"train.adapter.targets: {', '.join(missed)} match no linear layer of this model and get no adapter")
    printed, ours = given.trainable_params, trained_count(network, found, experts) if given.trainable_params and not given.modules_to_save else None
    if ours is not None and ours != printed:
        choices.warn(f"train.adapter.trainable_params: the run printed {printed:,}; these adapters on this model have {ours:,}")
    return found


def _usual_targets(usual: Adapter, network: Network) -> tuple[str, ...]:
    """The framework's default, or peft's for the family."""
    return FAMILY_TARGETS.get(network.family, usual.targets) if usual.targets == ("q_proj", "v_proj") else usual.targets


def _options(kind: str, keys: AdapterKeys, train: Train) -> tuple[tuple[str, int], ...]:
    """The settings that only this kind has."""
    found = [(key, int(value)) for key in OPTIONS.get(kind, ()) if (value := getattr(keys, key)) is not None]
    if kind == "adalora" and not release_in(train.version, "peft").has("ranknum_trained"):
        found.append(("ranknum", 0))
    return tuple(found)


def _feedforward(kind: str, keys: AdapterKeys) -> tuple[str, ...]:
    if kind != "ia3":
        return ()
    return FEEDFORWARD if keys.feedforward_modules is None else keys.feedforward_modules


def _with_rank(adapter: Adapter, given: Given, network: Network, framework: str, usual: Adapter, experts: ExpertsKernel, choices: ResolvedSettings) -> Adapter:
    """The rank: given, or what the printed number of trained parameters says, or the default of the kind."""
    if given.rank is None and given.trainable_params and adapter.kind not in (*PROMPTS, "prefix"):
        one = trained_count(network, replace(adapter, rank=1), experts)
        rank, rest = divmod(given.trainable_params, max(one, 1))
        if rank and not rest and one != trained_count(network, replace(adapter, rank=2), experts):
            choices.note("train.adapter.rank", rank, inferred("train.adapter.trainable_params"))
            return replace(adapter, rank=rank)
    if adapter.kind in WITHOUT_RANK:
        return adapter
    return replace(adapter, rank=choices.pick("train.adapter.rank", given.rank, RANKS.get(adapter.kind, usual.rank), default_of(framework)))


def trained_count(network: Network, adapter: Adapter, experts: ExpertsKernel) -> int:
    """Numbers that an adapter trains on a network."""
    return sum(row.copies * row.parameter.numel for row in _trained(network, adapter, experts))


def adapter_names(network: Network, adapter: Adapter, experts: ExpertsKernel) -> list[str]:
    """Names of an adapter's parameters inside their blocks, such as `self_attn.q_proj.lora_A.weight`."""
    return [row.parameter.name for row in _trained(network, adapter, experts)]


def _trained(network: Network, adapter: Adapter, experts: ExpertsKernel) -> list[Declared]:
    setup = Setup(trainable=(), adapter=adapter, kernels=Kernels(loss="logits", experts=experts))
    return [row for row in declared(adapted(network, setup), setup) if row.parameter.trainable]


def trainable_of(train: Train) -> tuple[str, ...]:
    """Patterns of the base's parameters that are trained: all of them, or beside an adapter the modules that are saved whole."""
    given = train.adapter
    if given is None:
        return ("*",)
    names = [*(given.modules_to_save or ())]
    if given.kind == NORMS:
        names += [name for name in (given.targets or ()) if given.targets != "all-linear"]
        if not names:
            names = ["*norm", "ln_*"]
    return tuple(pattern for name in names for pattern in (f"{name}.*", f"*.{name}.*"))


def frozen_of(train: Train, network: Network) -> tuple[str, ...]:
    """Patterns of the parameters that `freeze` names, by any part of their name or of the path of their blocks. Raises BadInput for a name that
    no parameter has."""
    patterns: list[str] = []
    for name in train.freeze or ():
        found = (name, f"{name}.*", f"*.{name}", f"*.{name}.*")
        names = [*(row.parameter.name for row in declared(network)), *(part.path for part in parts(network))]
        if not any(fnmatchcase(known, pattern) for known in names for pattern in found):
            pieces = dict.fromkeys(piece for known in names for piece in known.split("."))
            raise BadInput("train.freeze", f"no parameter of this model is called {name!r}{did_you_mean(name, pieces)}")
        patterns += found
    return tuple(patterns)


PREPARED = ("nf4", "fp4", "int8")
"""bitsandbytes formats: peft's preparation leaves other packed models as they are."""


def prepared_types(train: Train, keeps: str, choices: ResolvedSettings) -> tuple[DType | None, DType | None]:
    """(norms, embedding and head): fp32 where k-bit preparation leaves them so; None: the type of the other weights.

    peft.prepare_model_for_kbit_training turns every 16-bit parameter that is not packed into fp32. `keeps` says what a framework leaves of
    that: `all`; `norms` (trl peft_module_casting_to_bf16 turns embedding and head back); `none` (axolotl turns the norms back as well).
    """
    given = train.quantization
    if given is None or given.format not in PREPARED or keeps == "none":
        return None, None
    prepared = choices.pick("train.quantization.kbit_prep", given.kbit_prep, True, inferred("how peft's guides train a packed base"))
    return (FP32, FP32 if keeps == "all" else None) if prepared else (None, None)


def prepared_by_trl(train: Train) -> str:
    """trl turns embedding and head back to bf16 for 4-bit bases that are trained in bf16."""
    half = (train.precision or "bf16").startswith("bf16") or (train.dtypes is not None and train.dtypes.compute == BF16.name)
    four = train.quantization is not None and train.quantization.format in ("nf4", "fp4")
    return "norms" if half and four else "all"
