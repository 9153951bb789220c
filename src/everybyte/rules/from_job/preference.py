"""From the train section of a job to the parts of a preference or reinforcement-learning run.

Keys of train.extra, by the names of the framework that the job runs:

- `rlhf_type` (trl, ms-swift), `rl` (axolotl), `stage` (LLaMA-Factory): dpo, kto, orpo, cpo, simpo, rm, grpo, rloo, ppo; left out or `sft` is
  supervised training.
- `beta`: 0 leaves GRPO without a reference (trl's default 0, ms-swift's 0.04). `precompute_ref_log_probs`: the reference is not kept.
- `ref_model`, `reward_model` (a name or a list), `value_model`: models of the catalogue; a name that is not in it counts as large as the policy.
- `max_prompt_length`, `max_completion_length` (GRPO, RLOO), `response_length` (PPO): of train.seq_len tokens those that are scored.
- `use_vllm`, `vllm_mode` (colocate, server), `vllm_gpu_memory_utilization`, `vllm_enable_sleep_mode` (trl) or `sleep_level` (ms-swift).

micro_batch counts samples: pairs for DPO, ORPO, CPO, SimPO and reward models, answers for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of
from everybyte.basics.record import Record
from everybyte.catalog.releases import Release, release_in, stated
from everybyte.job import Job, Train
from everybyte.layers.network import Network
from everybyte.ledger.build import Line
from everybyte.models.count import parameter_count
from everybyte.models.source import network_of
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.over_gpus import spread
from everybyte.rules.from_job.parallel_plan import ParallelPlan, rank_of
from everybyte.rules.preference.model_roles import ALGORITHMS, Algorithm, ModelRoles, Rollout, engine_line, loss_of, with_critic, with_scores
from everybyte.rules.step.auxiliary_model import AuxiliaryModel
from everybyte.rules.step.layout import WHOLE
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.training import training

KEYS = {"axolotl": "rl", "llama-factory": "stage"}
"""Framework -> key of the algorithm, where it is not `rlhf_type`."""
TRL_OF_SWIFT = (0, 24)
"""trl that ms-swift is assumed to run with where the job names none."""
SHARDS_WEIGHTS = ("zero3", "fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-no-reshard", "hsdp")
"""Shardings that also cut weights without gradients: trl prepares a reference with DeepSpeed's stage 3 or FSDP as the policy, and whole otherwise
(models/utils.py prepare_deepspeed sets stage 0, prepare_fsdp)."""
SWIFT_UTILIZATION, TRL_UTILIZATION = 0.9, 0.3


class Preference(Record, frozen=True):
    """What a job asks for beyond supervised training."""

    name: str
    algorithm: Algorithm
    swift: bool
    trl: Release
    extra: dict[str, Any]

    def number(self, key: str, default: float) -> float:
        """A setting that is a number of 0 and above. Raises BadInput."""
        value = self.extra.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise BadInput(f"train.extra.{key}", f"must be a number of 0 and above, not {value!r}")
        return value

    def says(self, key: str) -> bool:
        """A setting that is on or off. Raises BadInput."""
        value = self.extra.get(key, False)
        if not isinstance(value, bool):
            raise BadInput(f"train.extra.{key}", f"must be true or false, not {value!r}")
        return value


def preference_of(train: Train) -> Preference | None:
    """The algorithm of a job; None for supervised training. Raises Unsupported for one that nobody modelled."""
    extra = train.extra or {}
    key = KEYS.get(train.framework or "", "rlhf_type")
    if extra.get(key) in (None, "sft", "pt"):
        return None
    name = str(extra[key]).casefold()
    if name not in ALGORITHMS:
        raise Unsupported(f"train.extra.{key}", f"{extra[key]!r} is not supported yet; supported: {', '.join(ALGORITHMS)}")
    if train.framework == "llama-factory":
        raise Unsupported(f"train.extra.{key}", "LLaMA-Factory's own trainers score in fp32 over all logits, which is not worked out yet; trl's are")
    named = stated(train.version)
    swift = extra.get("framework") == "ms-swift" or "ms-swift" in named
    trl = Release("trl", TRL_OF_SWIFT) if swift and "trl" not in named else release_in(train.version, "trl")
    return Preference(name, ALGORITHMS[name], swift, trl, extra)


def refuse_preference(train: Train, framework: str) -> None:
    """For engines that run supervised training alone."""
    if (found := preference_of(train)) is not None:
        raise Unsupported("train.extra.rlhf_type", f"{found.name} under {framework} is not supported yet; use trl")


def preferred(asked: Preference, job: Job, network: Network, device: Device, recipe: Recipe, framework: str, choices: ResolvedSettings) -> Account:
    """The account of such a run; `recipe` is that of supervised training. Data-parallel ranks are alike."""
    assert job.train is not None
    cast = cast_of(asked, job.train, network, recipe, choices)
    trained = trained_network(asked, cast, network, choices)
    found = spread(job.train, job.hardware, trained, policy_recipe(asked, recipe, choices), framework, choices)
    engine = engine_lines(asked, network, device, choices)
    bill = training(trained, found.recipe, device.compute_capability, engine, found.layout, companions(cast, job.train, found))
    return Account((rank_of(bill, found, job, device, network.experts),), choices, bill.trained_params)


def policy_recipe(asked: Preference, recipe: Recipe, choices: ResolvedSettings) -> Recipe:
    """The recipe of the trained network: as many sequences as go through it together, and the loss on them."""
    algorithm, batch = asked.algorithm, recipe.batch
    if algorithm.sequences > 1:
        choices.assume(f"{asked.name}: train.micro_batch counts pairs; a chosen and a rejected answer go through the model together")
        batch = batch._replace(b=batch.b * algorithm.sequences)
    loss = loss_of(asked.name, asked.trl, swift=asked.swift)
    kernels = replace(recipe.setup.kernels, loss=loss, rows=batch.b, scored=_scored(asked, batch.s))
    setup = replace(recipe.setup, kernels=kernels, single=batch.b == 1)
    return replace(recipe, batch=batch, setup=setup, images=recipe.images * algorithm.sequences)


def _scored(asked: Preference, length: int) -> tuple[int, int]:
    """(tokens that are scored, all): an answer and the token before it."""
    key = "response_length" if asked.algorithm.critic else "max_completion_length"
    prompt = int(asked.number("max_prompt_length", 0))
    answer = int(asked.number(key, max(length - prompt, 0) if prompt else length))
    if answer + 1 >= length:
        return 1, 1
    return answer + 1, length


def cast_of(asked: Preference, train: Train, network: Network, recipe: Recipe, choices: ResolvedSettings) -> ModelRoles:
    """The networks of a job. The value model is a copy of the reward model where it is not named (trl's and ms-swift's scripts)."""
    algorithm, origin = asked.algorithm, default_of("ms-swift" if asked.swift else "trl")
    beta = asked.number("beta", (0.04 if asked.swift else 0.0) if algorithm.reference == "with beta" else 0.1)
    refers = algorithm.reference != "none" and not (algorithm.reference == "with beta" and beta == 0) and not asked.says("precompute_ref_log_probs")
    if algorithm.reference == "with beta":
        choices.pick("train.extra.beta", asked.extra.get("beta"), beta, origin)
    named = asked.extra.get("ref_model")
    resident = refers and (train.adapter is None or named is not None)
    if refers and not resident:
        choices.assume("the reference is the policy with its adapters switched off: it has no weights of its own")
    rewards = tuple(with_scores(_network(name, "reward_model", network, choices)) for name in _names(asked.extra.get("reward_model")))
    if algorithm.critic and not rewards:
        choices.assume("the reward model is as large as the policy: train.extra.reward_model names none")
        rewards = (with_scores(network),)
    rollout = rollout_of(asked, recipe, train.grad_accum or 1) if algorithm.critic else None
    return ModelRoles(algorithm, network, _network(named, "ref_model", network, choices) if resident else None, refers, rewards, rollout)


def rollout_of(asked: Preference, recipe: Recipe, micro_batches: int) -> Rollout:
    """The answers of a PPO step: those of all its micro-batches (num_mini_batches of them, usually 1) are generated at once."""
    length = recipe.batch.s
    answer = min(int(asked.number("response_length", 53)), length)
    return Rollout(recipe.batch.b * micro_batches * max(int(asked.number("num_mini_batches", 1)), 1), length - answer, answer)


def trained_network(asked: Preference, cast: ModelRoles, network: Network, choices: ResolvedSettings) -> Network:
    """The network whose backward runs: with a score for rewards, with a value model for PPO."""
    if asked.algorithm.scores == "rewards":
        return with_scores(network)
    if not asked.algorithm.critic:
        return network
    named = asked.extra.get("value_model")
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
    if not asked.says("use_vllm"):
        return ()
    mode = asked.extra.get("vllm_mode", "colocate")
    if mode not in ("colocate", "server"):
        raise BadInput("train.extra.vllm_mode", f"must be colocate or server, not {mode!r}")
    if mode == "server":
        return ()
    usual = SWIFT_UTILIZATION if asked.swift else TRL_UTILIZATION
    given = asked.extra.get("vllm_gpu_memory_utilization")
    share = choices.pick("train.extra.vllm_gpu_memory_utilization", given, usual, default_of("ms-swift" if asked.swift else "trl"))
    if not 0 < asked.number("vllm_gpu_memory_utilization", share) <= 1:
        raise BadInput("train.extra.vllm_gpu_memory_utilization", f"must be above 0 and at most 1, not {share!r}")
    if asked.says("vllm_enable_sleep_mode") or asked.number("sleep_level", 0) > 0:
        choices.warn("vLLM sleeps while the trainer runs: its memory is given back to the device, though torch's counters keep the addresses")
        return ()
    if not device.capacity:
        raise BadInput("hardware.gpu", "is missing: a colocated vLLM takes a share of the device; name the GPU, or set train.extra.vllm_mode to server")
    ways = max(int(asked.number("vllm_tensor_parallel_size", 1)), 1)
    return (engine_line(device.capacity, float(share), 2 * parameter_count(network) // ways),)
