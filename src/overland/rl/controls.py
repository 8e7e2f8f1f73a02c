"""What RL has to beat for the same CPU seconds. More SFT is `train`'s own loop again; the other control is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from overland.rl.algorithms import Successes
from overland.rl.section import RLSection
from overland.rl.source import Rollouts
from overland.rl.trainer import RLResult, train_rl
from overland.runs import RunFolder


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
    resume: bool = False,
) -> RLResult:
    """SFT on the model's own successes, sampled anew each step by the model it has become.

    Tasks, curriculum, budgets, sampler, optimiser and micro-batches are those of `train_rl` with the same `section`
    (and, seed for seed, the same first prompts); only what is learnt from them differs: maximum likelihood on the
    episodes that succeeded within their budget. This is the strong, iterated form of the control, refreshed every
    step; a frozen pile of the starting model's successes would be easier to beat. Ends when `cpu_seconds` are used up,
    however many steps that takes.
    """
    control = section.model_copy(
        update={
            "algorithm": Successes(),
            "domains": {name: d.model_copy(update={"algorithm": None}) for name, d in section.domains.items()},
            "steps": 20 * max(section.steps, 1),
            "final_lr": 1.0,
            "reference_kl": 0.0,
        }
    )
    return train_rl(
        model,
        engine,
        tokenizer,
        tasksets,
        control,
        run,
        sandbox=sandbox,
        scoring=scoring,
        rollouts=rollouts,
        resume=resume,
        cpu_seconds=cpu_seconds,
        stage="rejection_sampling",
    )
