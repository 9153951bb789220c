"""Preference and reinforcement learning as trl and ms-swift run them: which networks are there, how many sequences go through them, and what is
scored. Read in trl 0.24, 0.29, 1.13, 1.14, 1.16 (trainer/*_trainer.py, experimental/*) and ms-swift 3602360 (swift/rlhf_trainers)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.catalog.releases import Release
from everybyte.layers.heads.logprobs import ScoreHead, ValuedHead
from everybyte.layers.network import Network, Tower
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Batch
from everybyte.layers.recording.tape import Tape, Value
from everybyte.ledger.build import Line, plain
from everybyte.rules.step.auxiliary_model import AuxiliaryModel
from everybyte.rules.step.cache import Format, cache_lines
from everybyte.rules.step.layout import WHOLE, Layout
from everybyte.rules.step.recipe import Recipe, RecomputePlan

Scores = Literal["log-probs", "log-probs and entropy", "rewards", "scaled log-probs"]
"""What stands on the last hidden states: log-probabilities of the labels; beside them a cross entropy of the chosen answers; one number a token;
log-probabilities at a temperature."""


class Algorithm(Record, frozen=True):
    """What an algorithm asks of memory."""

    scores: Scores = "log-probs"
    sequences: int = 1
    """Sequences of a sample: 2 for a chosen and a rejected answer, which go through the model together."""
    reference: Literal["none", "within", "before", "with beta"] = "none"
    """Whether a frozen reference is scored: between forward and backward of the policy, before the step, or before it if `beta` is not 0."""
    estimates: bool = False
    """The policy itself is run without gradients before the step (KTO's mismatched answers, log-probabilities of a rollout)."""
    generates: bool = False
    """Answers are generated: an engine may share the device, the length of an answer is a setting."""
    critic: bool = False
    """A value model is trained along with the policy, and a reward model scores."""


ALGORITHMS: dict[str, Algorithm] = {
    "dpo": Algorithm(sequences=2, reference="within"),
    "kto": Algorithm(reference="within", estimates=True),
    "orpo": Algorithm("log-probs and entropy", sequences=2),
    "cpo": Algorithm("log-probs and entropy", sequences=2),
    "simpo": Algorithm("log-probs and entropy", sequences=2),
    "rm": Algorithm("rewards", sequences=2),
    "grpo": Algorithm("scaled log-probs", reference="with beta", estimates=True, generates=True),
    "rloo": Algorithm("scaled log-probs", reference="before", estimates=True, generates=True),
    "ppo": Algorithm("scaled log-probs", reference="before", generates=True, critic=True),
}

FUSED = ("dpo", "kto", "grpo", "rloo")
"""Trainers that have the fused head; CPO, ORPO and PPO (trl.experimental) do not."""


def loss_of(name: str, trl: Release, *, own: bool, wide: bool = False) -> str:
    """Name of the loss (`layers.loss.LOSSES`) of an algorithm under a trl version; `own`: the trainer works out log-probabilities itself; `wide`: it does so
    in fp32 over all logits."""
    if wide and not ALGORITHMS[name].critic:
        return "logps-wide-and-entropy" if ALGORITHMS[name].scores == "log-probs and entropy" else "logps-wide"
    if name in FUSED and trl.has("fused_head") and not own:
        return "logps-fused"
    if name == "dpo":
        return "logps-copied" if trl.has("copies_dpo_logits") and not own else "logps-rolled"
    if ALGORITHMS[name].scores == "scaled log-probs":
        return "logps-pinned" if ALGORITHMS[name].critic else "logps-scaled"
    return "logps-and-entropy" if ALGORITHMS[name].scores == "log-probs and entropy" else "logps-sliced"


# -- networks ---------------------------------------------------------------------------------------------------------------
class Scored(Record, frozen=True):
    """A final norm with a score on top of it."""

    norm: Any
    hidden: int

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> scores (n, 1)."""
        return ScoreHead(self.hidden).score(t, x if self.norm is None else self.norm.forward(t, x))


@lru_cache(maxsize=64)
def with_scores(network: Network) -> Network:
    """The network with one number a token in place of logits (AutoModelForSequenceClassification)."""
    return replace(network, head=ScoreHead(network.hidden), tied=False)


@lru_cache(maxsize=64)
def with_values(network: Network) -> Network:
    """The network with one number a token beside its logits (trl AutoModelForCausalLMWithValueHead)."""
    return replace(network, head=ValuedHead(network.head, network.hidden))


@lru_cache(maxsize=64)
def with_critic(network: Network, critic: Network) -> Network:
    """The policy with a value model that runs before it in one module (trl ppo_trainer.py PolicyAndValueWrapper)."""
    tower = Tower("critic", 0, critic.runs, critic.hidden, critic.stem, Scored(critic.tail, critic.hidden), critic.stem_dims)
    return replace(network, towers=(*network.towers, tower))


# -- what runs without gradients --------------------------------------------------------------------------------------------
def without_gradients(recipe: Recipe, *, adapters: bool = False) -> Recipe:
    """The recipe under torch.no_grad; the adapters are switched off, or left on."""
    adapter = recipe.setup.adapter if adapters else None
    setup: Setup = replace(recipe.setup, grad=False, trainable=(), frozen=(), keeps_originals=False, input_grads=False, adapter=adapter)
    return replace(recipe, setup=setup, recompute=RecomputePlan(), gradients_live="backward")


SCORES = (
    "trl trainer/ppo_trainer.py batch_generation: the sampler's fp32 scores of every generated token, stacked (utils.py generate), then padded to one "
    "tensor (pad): twice at the highest instant"
)


class Rollout(NamedTuple):
    """Answers that transformers' generate makes before a PPO step."""

    sequences: int
    """Of all micro-batches of the step."""
    prompt: int
    answer: int

    def companion(self, policy: Network, recipe: Recipe) -> AuxiliaryModel:
        """The last token's forward, with the cache and the scores of all."""
        batch = Batch(self.sequences, 1, self.prompt + self.answer)
        setup = replace(recipe.setup, cache="decode", single=self.sequences == 1, kernels=replace(recipe.setup.kernels, loss="last-logits"))
        words = {"b": self.sequences, "r": self.answer, "V": policy.vocab}
        scores = Line("scores", "temporary", 8 * self.sequences * self.answer * policy.vocab, plain("2·4·b·r·V", **words), SCORES, "formula")
        cache = tuple(cache_lines(policy, batch, Format(recipe.setup.compute or recipe.setup.weights), windows=True))
        return AuxiliaryModel("rollout", policy, replace(recipe, setup=setup, batch=batch), WHOLE, resident=False, within=False, beside=(scores, *cache))


class ModelRoles(Record, frozen=True):
    """The networks of a job beside the one that is trained."""

    algorithm: Algorithm
    policy: Network
    """Without a critic."""
    reference: Network | None = None
    """With weights of its own. None: there is no reference, or it is the policy without its adapters."""
    refers: bool = False
    """A reference is scored in every step."""
    rewards: tuple[Network, ...] = ()
    rollout: Rollout | None = None

    def companions(self, recipe: Recipe, layout: Layout = WHOLE) -> tuple[AuxiliaryModel, ...]:
        """All that runs without gradients. `layout`: how weights without gradients lie over the ranks."""
        off, within = without_gradients(recipe), self.algorithm.reference == "within"
        found = []
        if self.refers:
            found.append(AuxiliaryModel("reference", self.reference or self.policy, off, layout, self.reference is not None, within))
        if self.algorithm.estimates:
            on = without_gradients(recipe, adapters=True)
            found.append(AuxiliaryModel("policy", self.policy, on, layout, resident=False, within=False))
        if self.rollout is not None:
            found.append(self.rollout.companion(self.policy, without_gradients(recipe, adapters=True)))
        found += [AuxiliaryModel(f"reward.{i}" if i else "reward", network, off, layout, within=False) for i, network in enumerate(self.rewards)]
        return tuple(found)


# -- the engine that generates ----------------------------------------------------------------------------------------------
COLOCATED = (
    "vLLM in the same process (trl generation/vllm_generation.py, external_launcher): its budget of gpu_memory_utilization · device, of which weights and "
    "cache stay between rollouts in torch's allocator"
)


def engine_line(capacity: int, utilization: float, weights: int) -> Line:
    """The share of the device that a colocated engine has. It holds at least its weights; what it sets aside for its own activations is free for the
    trainer between rollouts, which is the lower end."""
    share = int(capacity * utilization)
    return Line("engine/vllm", "kv_cache", share, plain("share", share=share), COLOCATED, "assumed", min(weights, share), share)
