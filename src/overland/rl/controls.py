"""What RL has to beat for the same CPU seconds. More SFT is `train`'s own loop again; the other two are here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from overland.rl.algorithms import Successes
from overland.rl.beside import Beside
from overland.rl.budgets import Budgets
from overland.rl.curriculum import Curriculum
from overland.rl.gather import gather
from overland.rl.meters import rollout_figures
from overland.rl.quarantine import Quarantine
from overland.rl.samples import Group
from overland.rl.section import RLSection
from overland.rl.source import Rollouts
from overland.rl.trainer import RLResult, preflight, processor_seconds, train_rl, update
from overland.rl.update import make_optimizer
from overland.runs import RunFolder, progress

SAMPLING = 0.5
"""The share of its CPU seconds that rejection sampling samples for; the rest it learns."""


def rejection_sampling(
    model: nn.Module,
    engine: Any,
    tokenizer: Any,
    tasksets: Mapping[str, Any],
    section: RLSection,
    run: RunFolder,
    cpu_seconds: float,
    *,
    sandbox: Any = None,
    scoring: Any = None,
    rollouts: Rollouts | None = None,
) -> RLResult:
    """SFT on the starting model's own successes (Yuan et al. 2023, RFT): sampled once, then learnt pass after pass.

    Tasks, curriculum, budgets, sampler, optimiser and batches are those of `train_rl` with the same `section`. Half of
    `cpu_seconds` goes into sampling, one batch at the least. Raises OverlandError when the starting model
    gives nothing to learn from.
    """
    section = _learning_from_successes(section)
    if rollouts is None:
        from overland.rl.rollout import EpisodeRollouts

        rollouts = EpisodeRollouts(
            engine, tokenizer, tasksets, section,
            sandbox=sandbox, scoring=scoring, stage="rejection_sampling", quarantine=Quarantine.read(run.path),
        )  # fmt: skip
    beside, optimizer = Beside(model, section, None), make_optimizer(model, section)
    curriculum, budgets = Curriculum(section, rollouts.levels), Budgets(section)
    began = processor_seconds()
    rollouts.set_weights(model, version=0)
    measured = rollouts.run(curriculum.measuring(), version=0)
    preflight(measured, section)
    curriculum.rates.update(measured)
    budgets.measure(measured)

    pile: list[Group] = []
    with progress("rejection_sampling: sampling", None) as bar:
        while processor_seconds() - began < SAMPLING * cpu_seconds or not pile:
            pile += gather(rollouts, curriculum, budgets, section, 0).kept
            bar.advance(section.tasks_per_step)
    sampled = rollout_figures(pile)
    run.metrics({"stage": "rejection_sampling", "step": 0} | sampled)

    steps, figures = 0, dict[str, float]()
    with progress("rejection_sampling: learning", None) as bar:
        for batch in _passes(pile, section):
            figures, _ = update(model, optimizer, batch, section, steps, beside)
            steps += 1
            figures["rl/cpu_seconds"] = spent = processor_seconds() - began
            run.metrics({"stage": "rejection_sampling", "step": steps} | figures)
            bar.advance(1, loss=figures.get("rl/loss", 0.0))
            if spent >= cpu_seconds:
                break
    beside.close()
    tokens = sum(s.output_tokens for g in pile for s in g.samples)
    return RLResult(steps, "cpu_seconds", tokens, spent, sampled | figures)


def expert_iteration(
    model: nn.Module,
    engine: Any,
    tokenizer: Any,
    tasksets: Mapping[str, Any],
    section: RLSection,
    run: RunFolder,
    cpu_seconds: float,
    *,
    sandbox: Any = None,
    scoring: Any = None,
    rollouts: Rollouts | None = None,
    resume: bool = False,
) -> RLResult:
    """Rejection sampling again and again (Singh et al. 2023, ReST-EM), anew in every step: the hardest control.

    All of RL's machinery with the same `section` (and, seed for seed, the same first prompts); only what is learnt from
    the episodes differs: maximum likelihood on those that succeeded within their budget. Ends when `cpu_seconds` are
    used up, however many steps that takes.
    """
    return train_rl(
        model,
        engine,
        tokenizer,
        tasksets,
        _learning_from_successes(section),
        run,
        sandbox=sandbox,
        scoring=scoring,
        rollouts=rollouts,
        resume=resume,
        cpu_seconds=cpu_seconds,
        stage="expert_iteration",
    )


def _learning_from_successes(section: RLSection) -> RLSection:
    return section.model_copy(
        update={
            "algorithm": Successes(),
            "domains": {name: d.model_copy(update={"algorithm": None}) for name, d in section.domains.items()},
            "steps": 20 * max(section.steps, 1),
            "final_lr": 1.0,
            "reference_kl": 0.0,
        }
    )


def _passes(pile: Sequence[Group], section: RLSection) -> Iterator[Sequence[Group]]:
    """Batches of a step's size, each group once a pass, in an order drawn anew for every pass."""
    order = random.Random(section.seed)
    while True:
        shuffled = order.sample(pile, len(pile))
        for start in range(0, len(shuffled), section.tasks_per_step):
            yield shuffled[start : start + section.tasks_per_step]
