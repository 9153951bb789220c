"""From the train section of a job to the parts of a preference or reinforcement-learning run.

Keys of train.extra, by the names of the framework that the job runs:

- `rlhf_type` (trl, ms-swift), `rl` (axolotl), `stage` (LLaMA-Factory, with `pref_loss` for orpo and simpo): dpo, kto, orpo, cpo, simpo, rm, grpo, rloo,
  ppo; left out or `sft` is supervised training.
- `beta`: 0 leaves GRPO without a reference (trl's default 0, ms-swift's 0.04). `precompute_ref_log_probs`: the reference is not kept.
- `ref_model`, `reward_model` (a name or a list), `value_model`: models of the catalogue; a name that is not in it counts as large as the policy.
- `max_prompt_length`, `max_completion_length` (GRPO, RLOO), `response_length` (PPO): of train.seq_len tokens those that are scored.
- `use_vllm`, `vllm_mode` (colocate, server), `vllm_gpu_memory_utilization`, `vllm_enable_sleep_mode` (trl) or `sleep_level` (ms-swift).

micro_batch counts samples: pairs for DPO, ORPO, CPO, SimPO and reward models, answers for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of
from everybyte.basics.record import Record
from everybyte.catalog.releases import Release, release_in, stated
from everybyte.job import Job, Train
from everybyte.job.extra import Section, section
from everybyte.job.form import Share
from everybyte.layers.network import Network
from everybyte.ledger.build import Line
from everybyte.models.count import parameter_count
from everybyte.models.source import network_of
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.over_gpus import spread
from everybyte.rules.from_job.parallel_plan import ParallelPlan, rank_of
from everybyte.rules.from_job.recipe import Defaults
from everybyte.rules.preference.model_roles import ALGORITHMS, Algorithm, ModelRoles, Rollout, engine_line, loss_of, with_critic, with_scores, with_values
from everybyte.rules.step.auxiliary_model import AuxiliaryModel
from everybyte.rules.step.layout import WHOLE
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.training import training

SHARDS_WEIGHTS = ("zero3", "fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-no-reshard", "hsdp")
"""Shardings that also cut weights without gradients: trl prepares a reference with DeepSpeed's stage 3 or FSDP as the policy, and whole otherwise
(models/utils.py prepare_deepspeed sets stage 0, prepare_fsdp)."""
PPO_ANSWER = 53
"""response_length of trl's PPOConfig."""


NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class PreferenceKeys(Section, frozen=True, kw_only=True):
    """Keys of train.extra that these trainers read."""

    rlhf_type: str | None = None
    rl: str | None = None
    stage: str | None = None
    pref_loss: str | None = None
    """The loss of LLaMA-Factory's stage dpo: sigmoid, hinge, ipo, kto_pair, orpo, simpo."""
    loss_type: str | tuple[str, ...] | None = None
    """The same in the words of trl, whose algorithm says already which it is."""
    beta: NotNegative | None = None
    precompute_ref_log_probs: bool = False
    ref_model: str | None = None
    reward_model: str | tuple[str, ...] | None = None
    value_model: str | None = None
    max_prompt_length: NotNegative = 0
    max_completion_length: NotNegative | None = None
    response_length: NotNegative | None = None
    num_mini_batches: NotNegative = 1
    use_vllm: bool = False
    vllm_mode: Literal["colocate", "server"] = "colocate"
    vllm_gpu_memory_utilization: Share | None = None
    vllm_enable_sleep_mode: bool = False
    vllm_tensor_parallel_size: NotNegative = 1
    sleep_level: NotNegative = 0


class Trainer(Record, frozen=True):
    """Whose trainers run the algorithms, and what they do where the job is silent. An engine hands it."""

    name: str
    """As it is written in origins."""
    key: Literal["rlhf_type", "rl", "stage"] = "rlhf_type"
    """The key of train.extra that names the algorithm."""
    trl: Release | None = None
    """trl that it is assumed to run with where the job names none; None for the newest."""
    own_log_probabilities: bool = False
    """It works log-probabilities out itself, whatever trl does."""
    in_fp32: bool = False
    """It does so in fp32 over the logits of all tokens, and trains a reward model with the language model's head beside it."""
    beta: float = 0.0
    """Weight of the reference where an algorithm can do without one (GRPO)."""
    vllm_share: float = 0.3
    """vllm_gpu_memory_utilization of an engine that shares the device."""


class Preference(Record, frozen=True):
    """What a job asks for beyond supervised training."""

    name: str
    algorithm: Algorithm
    trainer: Trainer
    trl: Release
    keys: PreferenceKeys


def preference_of(train: Train, trainer: Trainer) -> Preference | None:
    """The algorithm of a job; None for supervised training. Raises Unsupported for one that nobody modelled."""
    keys = section(train.extra, PreferenceKeys)
    word: str | None = getattr(keys, trainer.key)
    if word in (None, "sft", "pt"):
        return None
    name = word.casefold()
    if trainer.in_fp32 and name == "dpo":
        name = next((loss for loss in (keys.pref_loss, keys.loss_type) if loss in ("orpo", "simpo")), name)
    if name not in ALGORITHMS:
        raise Unsupported(f"train.extra.{trainer.key}", f"{word!r} is not supported yet; supported: {', '.join(ALGORITHMS)}")
    assumed = trainer.trl if trainer.trl is not None and "trl" not in stated(train.version) else None
    return Preference(name, ALGORITHMS[name], trainer, assumed or release_in(train.version, "trl"), keys)


def refuse_preference(train: Train, framework: str) -> None:
    """For engines that run supervised training alone."""
    if (found := preference_of(train, Trainer(framework))) is not None:
        raise Unsupported("train.extra.rlhf_type", f"{found.name} under {framework} is not supported yet; use trl")


def preferred(asked: Preference, job: Job, network: Network, device: Device, recipe: Recipe, defaults: Defaults, choices: ResolvedSettings) -> Account:
    """The account of such a run; `recipe` is that of supervised training. Data-parallel ranks are alike."""
    assert job.train is not None
    cast = cast_of(asked, job.train, network, recipe, choices)
    trained = trained_network(asked, cast, network, choices)
    found = spread(job.train, job.hardware, trained, policy_recipe(asked, recipe, choices), defaults, choices)
    engine = engine_lines(asked, network, device, choices)
    bill = training(trained, found.recipe, device.compute_capability, engine, found.layout, companions(cast, job.train, found))
    return Account((rank_of(bill, found, job, device, network.experts),), choices, bill.trained_params)


def policy_recipe(asked: Preference, recipe: Recipe, choices: ResolvedSettings) -> Recipe:
    """The recipe of the trained network: as many sequences as go through it together, and the loss on them."""
    algorithm, batch = asked.algorithm, recipe.batch
    if algorithm.sequences > 1:
        choices.assume(f"{asked.name}: train.micro_batch counts pairs; a chosen and a rejected answer go through the model together")
        batch = batch._replace(b=batch.b * algorithm.sequences)
    loss = loss_of(asked.name, asked.trl, own=asked.trainer.own_log_probabilities, wide=asked.trainer.in_fp32)
    kernels = replace(recipe.setup.kernels, loss=loss, rows=batch.b, scored=_scored(asked, batch.s))
    setup = replace(recipe.setup, kernels=kernels, single=batch.b == 1)
    return replace(recipe, batch=batch, setup=setup, images=recipe.images * algorithm.sequences)


def _scored(asked: Preference, length: int) -> tuple[int, int]:
    """(tokens that are scored, all): an answer and the token before it."""
    keys = asked.keys
    prompt, answer = int(keys.max_prompt_length), keys.response_length if asked.algorithm.critic else keys.max_completion_length
    answer = int(answer) if answer is not None else max(length - prompt, 0) if prompt else length
    if answer + 1 >= length:
        return 1, 1
    return answer + 1, length


def cast_of(asked: Preference, train: Train, network: Network, recipe: Recipe, choices: ResolvedSettings) -> ModelRoles:
    """The networks of a job. The value model is a copy of the reward model where it is not named (trl's and ms-swift's scripts)."""
    algorithm, origin = asked.algorithm, default_of(asked.trainer.name)
    usual = asked.trainer.beta if algorithm.reference == "with beta" else 0.1
    beta = usual if asked.keys.beta is None else asked.keys.beta
    refers = algorithm.reference != "none" and not (algorithm.reference == "with beta" and beta == 0) and not asked.keys.precompute_ref_log_probs
    if algorithm.reference == "with beta":
        choices.pick("train.extra.beta", asked.keys.beta, beta, origin)
    named = asked.keys.ref_model
    resident = refers and (train.adapter is None or named is not None)
    if refers and not resident:
        choices.assume("the reference is the policy with its adapters switched off: it has no weights of its own")
    rewards = tuple(with_scores(_network(name, "reward_model", network, choices)) for name in _names(asked.keys.reward_model))
    if algorithm.critic and not rewards:
        choices.assume("the reward model is as large as the policy: train.extra.reward_model names none")
        rewards = (with_scores(network),)
    rollout = rollout_of(asked, recipe, train.grad_accum or 1) if algorithm.critic else None
    return ModelRoles(algorithm, network, _network(named, "ref_model", network, choices) if resident else None, refers, rewards, rollout)


def rollout_of(asked: Preference, recipe: Recipe, micro_batches: int) -> Rollout:
    """The answers of a PPO step: those of all its micro-batches (num_mini_batches of them, usually 1) are generated at once."""
    length = recipe.batch.s
    stated = asked.keys.response_length
    answer = min(PPO_ANSWER if stated is None else int(stated), length)
    return Rollout(recipe.batch.b * micro_batches * max(int(asked.keys.num_mini_batches), 1), length - answer, answer)


def trained_network(asked: Preference, cast: ModelRoles, network: Network, choices: ResolvedSettings) -> Network:
    """The network whose backward runs: with a score for rewards, with a value model for PPO."""
    if asked.algorithm.scores == "rewards":
        return with_values(network) if asked.trainer.in_fp32 else with_scores(network)
    if not asked.algorithm.critic:
        return network
    named = asked.keys.value_model
    return with_critic(network, _network(named, "value_model", network, choices) if named else cast.rewards[0])


def _names(value: Any) -> Iterator[str]:
    yield from ([] if value is None else [value] if isinstance(value, str) else map(str, value))


def _network(name: Any, key: str, policy: Network, choices: ResolvedSettings) -> Network:
    """A network of the catalogue, or one like the policy."""
    if name is None or name == policy.name:
        return policy
    try:
        return network_of(str(name), f"train.extra.{key}")
    except (BadInput, Unsupported):
        choices.assume(f"train.extra.{key}: {name} is not in the catalogue; it counts as large as {policy.name}")
        return policy


def companions(cast: ModelRoles, train: Train, found: ParallelPlan) -> tuple[AuxiliaryModel, ...]:
    """What runs without gradients beside a recipe that lies over the ranks."""
    return cast.companions(found.recipe, found.layout if train.sharding in SHARDS_WEIGHTS else WHOLE)


def engine_lines(asked: Preference, network: Network, device: Device, choices: ResolvedSettings) -> tuple[Line, ...]:
    """The row of an engine that shares the device. Raises BadInput where the job names no device."""
    keys = asked.keys
    if not keys.use_vllm or keys.vllm_mode == "server":
        return ()
    usual, origin = asked.trainer.vllm_share, default_of(asked.trainer.name)
    share = choices.pick("train.extra.vllm_gpu_memory_utilization", keys.vllm_gpu_memory_utilization, usual, origin)
    if keys.vllm_enable_sleep_mode or keys.sleep_level > 0:
        choices.warn("vLLM sleeps while the trainer runs: its memory is given back to the device, though torch's counters keep the addresses")
        return ()
    if not device.capacity:
        raise BadInput("hardware.gpu", "is missing: a colocated vLLM takes a share of the device; name the GPU, or set train.extra.vllm_mode to server")
    ways = max(int(keys.vllm_tensor_parallel_size), 1)
    return (engine_line(device.capacity, float(share), 2 * parameter_count(network) // ways),)
