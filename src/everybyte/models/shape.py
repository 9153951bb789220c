"""`model: {shape: {...}}`: a network by its sizes, for which no config.json is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.grouped import Attention, Projections, Rotary, Scores
from everybyte.layers.attention.mla import MLA
from everybyte.layers.blocks.encoder import Chain
from everybyte.layers.blocks.mixer import MixerBlock
from everybyte.layers.blocks.mtp import NextToken
from everybyte.layers.blocks.transformer import Block, FinalNorm
from everybyte.layers.common.mlp import GatedMLP, PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Embedding, Network, Run
from everybyte.layers.recording.setup import WHERE_ASKED
from everybyte.layers.recurrent.mamba2 import Mamba2
from everybyte.models.config import Config
from everybyte.models.encoders import bert
from everybyte.models.fields import Fields
from everybyte.models.moe.deepseek import CORRECTION
from everybyte.models.patterns import runs_of

KEYS = (
    "family",
    "layers",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "padded_vocab",
    "tied",
    "activation",
    "norm",
    "position",
    "max_positions",
    "bias",
    "experts",
    "top_k",
    "moe_ffn",
    "shared_expert_ffn",
    "moe_layers",
    "mla",
    "mtp",
    "sliding_window",
    "window_pattern",
    "ssm",
    "pattern",
)
"""Keys of a shape (contract, section 2)."""
MLA_KEYS = ("q_lora", "kv_lora", "qk_nope", "qk_rope", "v")
SSM_KEYS = ("heads", "head_dim", "state", "groups", "conv", "chunk")
MOST_LAYERS = 10_000

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gpt": {"activation": "gelu", "norm": "layernorm", "position": "learned", "bias": True, "tied": True},
    "llama": {"activation": "swiglu", "norm": "rmsnorm", "position": "rope", "bias": False, "tied": False},
    "moe": {"activation": "swiglu", "norm": "rmsnorm", "position": "rope", "bias": False, "tied": False},
    "mla": {"activation": "swiglu", "norm": "rmsnorm", "position": "rope", "bias": False, "tied": False},
    "hybrid": {"activation": "squared-relu", "norm": "rmsnorm", "position": "none", "bias": False, "tied": False},
    "bert": {"activation": "gelu", "norm": "layernorm", "position": "learned", "bias": True, "tied": True},
    "cnn": {},
}
"""Family -> what its keys mean where they are left out."""

ACTIVATIONS: Mapping[str, tuple[str, bool]] = {
    "gelu": ("gelu", False),
    "gelu-tanh": ("gelu_tanh", False),
    "gelu-new": ("gelu_new", False),
    "quick-gelu": ("quick_gelu", False),
    "relu": ("relu", False),
    "silu": ("silu", False),
    "squared-relu": ("relu2", False),
    "xielu": ("xielu", False),
    "swiglu": ("silu", True),
    "geglu": ("gelu_tanh", True),
    "reglu": ("relu", True),
}
"""Name -> (activation function, whether a second projection stands beside it)."""


def network_of_shape(values: object, path: str = "model.shape") -> Network:
    """The network of a shape. Raises BadInput with the key's path for an unknown key, a missing or impossible size."""
    family = Fields(values, path, values if isinstance(values, Mapping) else ()).word("family", FAMILIES)
    if family == "cnn":
        from everybyte.models.encoders.cnn import network_of_stages

        return network_of_stages(values, path)
    return _Shape(values, path, family).network()


class _Shape:
    """One shape of a transformer, read key by key."""

    def __init__(self, values: object, path: str, family: str) -> None:
        self.f = Fields(values, path, KEYS)
        self.family = family
        self.defaults = FAMILIES[family]
        f = self.f
        self.layers = f.integer("layers")
        if self.layers > MOST_LAYERS:
            raise BadInput(f"{path}.layers", f"must be at most {MOST_LAYERS:,}, not {self.layers:,}")
        self.hidden, self.heads = f.integer("hidden"), f.integer("heads")
        self.kv_heads = f.integer("kv_heads", self.heads)
        self.head_dim = f.integer("head_dim", max(self.hidden // self.heads, 1))
        if self.heads % self.kv_heads:
            raise BadInput(f"{path}.kv_heads", f"must divide heads: {self.kv_heads} does not divide {self.heads}")
        if not f.has("head_dim") and self.hidden % self.heads:
            raise BadInput(f"{path}.heads", f"must divide hidden ({self.hidden}) unless head_dim is given, and {self.heads} does not")
        self.vocab = f.integer("padded_vocab", f.integer("vocab"))
        if self.vocab < f.integer("vocab"):
            raise BadInput(f"{path}.padded_vocab", f"must be at least vocab ({f.integer('vocab'):,}), not {self.vocab:,}")
        self.activation, self.gated = ACTIVATIONS[f.word("activation", ACTIVATIONS, self.defaults["activation"])]
        self.bias = f.flag("bias", self.defaults["bias"])
        self.tied = f.flag("tied", self.defaults["tied"])
        self.norm = Norm({"layernorm": "layer", "rmsnorm": "rms"}[f.word("norm", ("layernorm", "rmsnorm"), self.defaults["norm"])])
        self.position = f.word("position", ("learned", "rope", "none"), self.defaults["position"])
        self.positions = f.integer("max_positions", 0, least=0)
        if self.position == "learned" and not self.positions:
            raise BadInput(f"{path}.max_positions", "is missing: it is the number of rows of the table of learned positions")
        self.experts = self._experts()

    @property
    def drops(self) -> float:
        """Where GPT-2 drops (embedding, attention, the end of both branches), a gpt does too, at the rate of the job."""
        return WHERE_ASKED if self.family == "gpt" else 0.0

    def network(self) -> Network:
        """The network."""
        if self.family == "bert":
            return self._bert()
        if self.family == "hybrid":
            main, _, ahead = str(self.f.values.get("pattern") or "").partition("/")
            blocks: Sequence[Any] = self._hybrid(main, self.layers)
            further: Any = Chain(tuple(self._hybrid(ahead.partition("/")[0], 0))) if ahead else blocks[-1]
        else:
            blocks = self._blocks()
            further = blocks[-1]
        mtp = self.f.integer("mtp", 0, least=0)
        runs = runs_of("model.layers", blocks)
        if mtp:
            runs = (*runs, Run("mtp.layers", 0, mtp, NextToken(self.hidden, further, self.norm)))
        learned = self.positions if self.position == "learned" else 0
        return Network(
            "",
            self.family,
            self.hidden,
            self.vocab,
            runs,
            Embedding(self.vocab, self.hidden, "model.embed_tokens", positions=learned, position_leaf="model.embed_positions", dropout=self.drops),
            FinalNorm(self.norm, "model.norm"),
            Head(self.hidden, self.vocab, self.tied),
            self.tied,
            max_positions=self.positions,
            experts=self.experts[0] if self.experts else 0,
            top_k=self.experts[1] if self.experts else 0,
            mtp=mtp,
        )

    def _bert(self) -> Network:
        """BERT with its masked-language head, as transformers writes it."""
        for key in ("experts", "mla", "mtp", "sliding_window", "ssm", "pattern"):
            if self.f.has(key):
                raise BadInput(f"{self.f.path}.{key}", "does not go with the family bert")
        if self.activation != "gelu" or self.gated:
            raise BadInput(f"{self.f.path}.activation", "must be gelu in the family bert")
        fields = {
            "architectures": ["BertForMaskedLM"],
            "model_type": "bert",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.f.integer("ffn"),
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "tie_word_embeddings": self.tied,
            "head_dim": self.head_dim,
        }
        return bert.build(Config(fields, self.f.path))

    # -- blocks ---------------------------------------------------------------------------------------------------------------
    def _hybrid(self, pattern: str, layers: int) -> list[MixerBlock]:
        """One mixer a layer, by the letters of `pattern` (Megatron-LM's hybrid layer pattern): M Mamba-2, * attention, - dense, E experts; behind
        a slash, the layers of one block of multi-token prediction. `layers` 0: as many as there are letters."""
        makers: Mapping[str, Callable[[], Any]] = {
            "M": self._mamba,
            "*": lambda: self._attention(0),
            "-": lambda: self._mlp(self.f.integer("ffn")),
            "E": self._moe,
        }
        if (layers and len(pattern) != layers) or set(pattern) - set(makers):
            raise BadInput(
                f"{self.f.path}.pattern",
                f"must say of each of the {self.layers} layers what it is: M Mamba-2, * attention, - feed-forward, E experts, as in MEMEM*E",
            )
        if "E" in pattern and self.experts is None:
            raise BadInput(f"{self.f.path}.experts", "is missing: the pattern has layers of experts")
        mixers = {letter: makers[letter]() for letter in set(pattern)}
        return [MixerBlock(mixers[letter], self.norm) for letter in pattern]

    def _mamba(self) -> Mamba2:
        part = self.f.part("ssm", SSM_KEYS)
        return Mamba2(
            self.hidden,
            part.integer("heads"),
            part.integer("head_dim"),
            part.integer("groups", 1),
            part.integer("state"),
            part.integer("conv", 4),
            part.integer("chunk", 128),
            bias=self.bias,
            out_bias=self.bias,
        )

    def _blocks(self) -> list[Block]:
        for key in ("ssm", "pattern"):
            if self.f.has(key):
                raise BadInput(f"{self.f.path}.{key}", "goes with the family hybrid alone")
        routed = self._routed_layers()
        dense = None if all(routed) else self._mlp(self.f.integer("ffn"))
        moe = self._moe() if any(routed) else None
        mixers = self._mixers()
        return [Block(mixer, moe if is_routed else dense, self.norm) for mixer, is_routed in zip(mixers, routed, strict=True)]

    def _mixers(self) -> list[Attention | MLA]:
        """Attention of every layer: the last of each `window_pattern` layers sees all tokens, the others `sliding_window`."""
        if self.f.has("mla"):
            return [self._mla()] * self.layers
        if self.family == "mla":
            raise BadInput(f"{self.f.path}.mla", f"is missing: the family mla needs {', '.join(MLA_KEYS)}")
        window = self.f.integer("sliding_window", 0, least=0)
        period = self.f.integer("window_pattern", 0, least=0)
        if period and not window:
            raise BadInput(f"{self.f.path}.window_pattern", "needs sliding_window, the number of tokens that a sliding layer sees")
        wide, narrow = self._attention(0), self._attention(window)
        return [wide if period and (index + 1) % period == 0 else narrow for index in range(self.layers)]

    def _attention(self, window: int) -> Attention:
        return Attention(
            self.hidden,
            self.heads,
            self.kv_heads,
            self.head_dim,
            projections=Projections(qkv_bias=self.bias, out_bias=self.bias),
            rotary=Rotary() if self.position == "rope" else None,
            scores=Scores(wide_softmax=self.family != "gpt"),
            dropout=self.drops,
            out_dropout=self.drops,
            window=window,
        )

    def _mla(self) -> MLA:
        part = self.f.part("mla", MLA_KEYS)
        return MLA(
            self.hidden,
            self.heads,
            part.integer("q_lora", 0, least=0),
            part.integer("kv_lora"),
            part.integer("qk_nope"),
            part.integer("qk_rope"),
            part.integer("v"),
            bias=self.bias,
        )

    def _mlp(self, ffn: int) -> GatedMLP | PlainMLP:
        if self.gated:
            return GatedMLP(self.hidden, ffn, self.activation, bias=self.bias, dropout=self.drops)
        return PlainMLP(self.hidden, ffn, self.activation, bias=self.bias, names=("up_proj", "down_proj"), dropout=self.drops)

    def _experts(self) -> tuple[int, int] | None:
        """(experts, used by one token), or None for a dense network."""
        if not self.f.has("experts"):
            for key in ("top_k", "moe_ffn", "shared_expert_ffn", "moe_layers"):
                if self.f.has(key):
                    raise BadInput(f"{self.f.path}.{key}", "needs experts, their number")
            if self.family == "moe":
                raise BadInput(f"{self.f.path}.experts", "is missing: the family moe needs experts and top_k")
            return None
        experts, top_k = self.f.integer("experts"), self.f.integer("top_k")
        if top_k > experts:
            raise BadInput(f"{self.f.path}.top_k", f"must be at most experts ({experts}), not {top_k}")
        return experts, top_k

    def _routed_layers(self) -> list[bool]:
        listed = self.f.integers("moe_layers")
        if listed is None:
            return [self.experts is not None] * self.layers
        wrong = next((index for index in listed if index >= self.layers), None)
        if wrong is not None:
            raise BadInput(f"{self.f.path}.moe_layers", f"counts layers from 0 to {self.layers - 1}, and {wrong} is not among them")
        return [index in set(listed) for index in range(self.layers)]

    def _moe(self) -> MoE:
        assert self.experts is not None  # moe_layers without experts has been refused
        experts, top_k = self.experts
        ffn = self.f.integer("moe_ffn", self.f.integer("ffn", 0, least=0) or None)
        gate = Gate(self.activation) if self.gated else None
        shared = self.f.integer("shared_expert_ffn", 0, least=0)
        routed = Experts(self.hidden, ffn, experts, top_k, gate, self.activation)
        router = Router(experts, top_k)
        if self.family == "mla":
            router = Router(experts, top_k, score="sigmoid", wide=True, normalize="epsilon", scaled=True, correction=CORRECTION)
        return MoE(self.hidden, router, routed, self._mlp(shared) if shared else None)
