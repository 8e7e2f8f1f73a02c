"""The `[rl]` section of a recipe: every field is a decision, its docstring says what it decides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from overland.chat import EFFORTS
from overland.config import Section
from overland.rl.algorithms import GRPO, Algorithm, AlgorithmChoice
from overland.rl.correction import CorrectionSection
from overland.rl.monitors.look import MONITORS


class EffortSection(Section):
    """What one effort may spend. The soft budget is tau x b0, where b0 is measured on the starting policy."""

    share: float = Field(default=1.0, ge=0)
    """Relative share of the groups that run at this effort."""
    think_tokens: int | None = Field(default=None, ge=0)
    """Hard limit on thinking tokens in one turn: the think channel is then closed by force. None: no limit."""
    output_tokens: int = Field(default=512, ge=1)
    """Hard limit on sampled tokens in one episode: thinking, tool calls and answers together."""
    tau: float = Field(default=1.0, gt=0)
    """The soft budget as a multiple of b0. An episode above it gets `over_budget_reward` instead of its reward."""
    tau_start: float | None = Field(default=None, gt=0)
    """tau at step 0; moves linearly to `tau` over `tau_steps`. None: `tau` from the start."""
    tau_steps: int = Field(default=0, ge=0)
    """Steps over which tau_start becomes tau: cheap efforts must first learn to solve the task, then to save."""

    def tau_at(self, step: int) -> float:
        """tau at a training step (0-based)."""
        if self.tau_start is None or step >= self.tau_steps:
            return self.tau
        return self.tau_start + (self.tau - self.tau_start) * step / self.tau_steps


class EffortsSection(Section):
    """The three efforts of the template."""

    low: EffortSection = EffortSection(tau=0.5, tau_start=3.0, tau_steps=20)
    """Cheapest: answers at once where it can."""
    high: EffortSection = EffortSection(tau=1.5, tau_start=3.0, tau_steps=20)
    """The everyday effort."""
    max: EffortSection = EffortSection(tau=4.0)
    """Spends what helps."""

    def of(self, effort: str) -> EffortSection:
        section: EffortSection = getattr(self, effort)
        return section


class OverlongSection(Section):
    """Episodes at their limits (stop reason length, budget, context or turns)."""

    policy: Literal["score", "mask"] = "score"
    """`score`: a cut-off episode is trained on like any other. `mask`: it counts in its group's baseline, no more."""
    buffer: int = Field(default=0, ge=0)
    """DAPO's soft punishment: over the last `buffer` tokens before the effort's `output_tokens` the reward falls
    linearly by up to `penalty`. 0: off."""
    penalty: float = Field(default=1.0, ge=0)
    """What an episode that uses its whole limit loses."""


class DomainSection(Section):
    """One domain's part in the joint batches."""

    share: float = Field(default=1.0, ge=0)
    """Relative share of the groups that come from this domain."""
    levels: tuple[int, ...] = ()
    """Levels to draw from. Empty: those that `max_turns` has room for."""
    count: Literal["thinking", "output"] = "output"
    """What the budget counts: `thinking` tokens (general tasks) or all `output` tokens (agentic tasks)."""
    algorithm: AlgorithmChoice | None = None
    """This domain's own algorithm. None: the run's."""

    @field_validator("levels")
    @classmethod
    def _levels(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(level < 0 for level in value) or len(set(value)) != len(value):
            raise ValueError("levels are different numbers from 0 up")
        return value


class WatchdogSection(Section):
    """When to stop rather than to keep spending. The offending batch is kept in the run folder."""

    mismatch_kl: float = Field(default=0.01, gt=0)
    """Stop when trainer and sampler disagree by more than this many nats a token before an update."""
    entropy_floor: float = Field(default=0.002, ge=0)
    """Stop when the entropy over trained tokens stays below this (nats a token) for `patience` steps while success is
    below `solved`: a policy that has stopped exploring learns nothing more."""
    grad_norm: float = Field(default=100.0, gt=0)
    """Stop when the gradient's norm, before clipping, exceeds this or is not finite."""
    parse_failures: float = Field(default=0.9, gt=0, le=1)
    """Stop when the share of episodes with a malformed turn stays above this for `patience` steps."""
    solved: float = Field(default=0.9, gt=0, le=1)
    """Success above which low entropy is no alarm."""
    patience: int = Field(default=5, ge=1)
    """Steps in a row with no success at all, or past a slow alarm's threshold, before the run stops."""


class MonitorSection(Section):
    """What follows when a monitor suspects an episode of having cheated (overland.rl.monitors)."""

    action: Literal["flag", "zero", "drop"] = "flag"
    """`flag`: it is counted and kept for a person to read. `zero`: its reward is at most 0. `drop`: it gets none."""
    kinds: tuple[str, ...] = tuple(MONITORS)
    """The monitors that count."""

    @field_validator("kinds")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [kind for kind in value if kind not in MONITORS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no monitor; there are {', '.join(MONITORS)}")
        return value


class RLSection(Section):
    """Reinforcement learning: grouped rollouts in real environments, group-relative advantages, a clipped update."""

    steps: int = Field(default=60, ge=0)
    """Training steps. One step is one batch of rollouts and the update on it."""
    tasks_per_step: int = Field(default=16, ge=1)
    """Groups in a batch. A group is one task at one effort."""
    tasks: int = Field(default=0, ge=0)
    """Tasks before the same come round again; 0 draws a new one for every group."""
    group_size: int = Field(default=8, ge=2)
    """Episodes in a group: the same task, sampled independently."""
    seed: int = Field(default=0, ge=0)
    """Decides tasks, sampling and order. The same seed gives the same run, bit for bit on a CPU."""

    lr: float = Field(default=5e-4, gt=0)
    """AdamW's peak learning rate (5e-4 suits a model of about a million parameters; 1e-6 suits billions)."""
    warmup_steps: int = Field(default=3, ge=0)
    """Steps of linear warm-up."""
    final_lr: float = Field(default=1.0, ge=0, le=1)
    """The learning rate at the last step, as a fraction of `lr` (linear decay; 1 keeps it constant)."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay of the first and the second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's floor under the root of the squares. Near the size of a gradient's elements it keeps parameters that see
    little but noise from wandering."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The gradient is scaled down to this norm."""
    epochs: int = Field(default=1, ge=1, le=4)
    """Passes over a batch of rollouts. Above 1 the clip does real work."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser steps in one pass. Each takes every minibatches-th group and has its own global denominators."""
    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Tokens in one forward and backward pass. Changes memory and speed, never the gradient."""
    qat: Literal["none", "even", "floor", "ceil"] = "none"
    """Train and sample on what MXFP4 will keep of the routed experts, with this rule for a block's scale; the gradient
    goes straight to the weights, which are saved as they are."""
    checkpointing: Literal["none", "layer"] = "none"
    """Activation checkpointing: with `layer` each layer is computed a second time in the backward pass, and a step
    holds the activations of one layer instead of all. The gradient is the same."""

    algorithm: AlgorithmChoice = GRPO()
    """How rewards become advantages and what each trained token costs; `type` chooses. A domain can have its own."""
    correction: CorrectionSection = CorrectionSection()
    """What is done about a sampler that is not quite the trainer (other kernels, other precision, older weights)."""
    max_age: int | None = Field(default=None, ge=0)
    """Updates that a sample may lie behind the policy that is trained; older ones take no part (staleness.py). None:
    no bound. Rollouts in this process are always of age 0."""
    check_weights: bool = True
    """After every update, hold the sampler's weights against the trainer's: a checksum and a canary prompt."""
    extra_rounds: int = Field(default=0, ge=0)
    """Dynamic sampling: groups without variance are replaced by new ones, dealt in at most this many more rounds; then
    the step trains on what there is."""
    overlong: OverlongSection = OverlongSection()
    """What becomes of episodes that were cut off at a limit, or came near it."""
    reference_kl: float = Field(default=0.0, ge=0)
    """Weight of the KL to the starting policy. 0: no reference is kept."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the rollouts; the trainer scores at the same temperature."""

    domains: dict[str, DomainSection] = Field(default_factory=dict)
    """Share, levels and counting rule by domain. A taskset without an entry takes part with the defaults."""
    efforts: EffortsSection = EffortsSection()
    """Share and budgets by effort."""
    over_budget_reward: float = -1.0
    """The reward of an episode that spent more than its soft budget, whatever it achieved (K3's rule)."""
    parse_penalty: float = Field(default=0.0, ge=0)
    """Subtracted from the reward of an episode with a malformed turn (once, not per turn)."""
    monitors: MonitorSection = MonitorSection()
    """What follows when an episode looks like cheating."""
    max_turns: int = Field(default=12, ge=1)
    """Assistant turns in one episode."""
    turn_tokens: int = Field(default=128, ge=1)
    """Sampled tokens in one turn."""
    episode_seconds: float = Field(default=120.0, gt=0)
    """Wall time of one episode. What exceeds it is an infrastructure failure: no reward, no part in the baseline."""
    live_episodes: int = Field(default=128, ge=1)
    """Episodes (and sandboxes) open at once. More are run in waves, in a fixed order."""

    curriculum_floor: float = Field(default=0.15, gt=0, le=1)
    """The least weight of a level, relative to the best one: easy levels never vanish, hard ones are always probed."""
    curriculum_domains: bool = False
    """Whether a domain's share follows what its levels teach (their mean variance), as levels do; otherwise the shares
    of the recipe hold exactly. Efforts keep their shares within a domain either way."""
    pass_rate_memory: float = Field(default=0.8, ge=0, lt=1)
    """How much of the old pass rate and variance of a (domain, level, effort) survives a new group."""
    measure_groups: int = Field(default=1, ge=1)
    """Groups per (domain, level, effort) that the starting policy runs before step 0: they give b0 and the first pass
    rates, and the run is refused when too few of them could teach anything."""
    min_variance: float = Field(default=0.05, ge=0, le=1)
    """The least share of measured groups with variance; below it the run is refused."""
    max_empty_steps: int = Field(default=3, ge=1)
    """Batches in a row in which no group had variance before the run stops: there is nothing left to learn from."""
    checkpoint_every: int = Field(default=10, ge=0)
    """Steps between resumable checkpoints; 0 keeps only the last one."""
    watchdogs: WatchdogSection = WatchdogSection()
    """Thresholds that stop a collapsing run."""

    def algorithm_of(self, domain: str) -> Algorithm:
        """The algorithm that trains a domain."""
        return self.domains.get(domain, DomainSection()).algorithm or self.algorithm

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """Every algorithm that the recipe names."""
        return (self.algorithm, *(d.algorithm for d in self.domains.values() if d.algorithm is not None))

    @model_validator(mode="after")
    def _shares(self) -> RLSection:
        if not any(self.efforts.of(effort).share > 0 for effort in EFFORTS):
            raise ValueError("efforts: at least one of low, high and max needs a share above 0")
        if self.domains and all(domain.share == 0 for domain in self.domains.values()):
            raise ValueError("domains: at least one needs a share above 0")
        if self.minibatches > self.tasks_per_step:
            raise ValueError(f"minibatches = {self.minibatches} is more than tasks_per_step = {self.tasks_per_step}")
        return self
