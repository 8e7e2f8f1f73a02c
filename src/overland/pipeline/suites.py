"""A suite of held-out tasks run by any policy, at one effort after another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overland.agent import Limits
from overland.agent.sandbox import choose_sandbox
from overland.chat import normalise_effort
from overland.engine import Sampling
from overland.environments import DOMAINS, STARTERS, load_environment
from overland.errors import UsageError
from overland.evaluate import EvaluateSection, Scores, evaluate_policy, suite
from overland.runs import progress, write_jsonl_zst

if TYPE_CHECKING:
    from overland.agent import Policy


def domains_of(name: str) -> list[str]:
    """The domains of a suite: names with commas between, all (what the quickstart trains on) or every.

    Raises UsageError naming the nearest one.
    """
    whole = {"all": list(STARTERS), "every": list(DOMAINS)}
    names = whole[name] if name in whole else [part.strip() for part in name.split(",")]
    for one in names:
        load_environment(one)
    if len(set(names)) < len(names):
        raise UsageError(f"suite {name!r} names a domain twice")
    return names


def run_suite(
    policy: Policy,
    domains: Sequence[str],
    section: EvaluateSection,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    no_sandbox: bool = False,
    episodes: Path | None = None,
    model: str = "",
) -> dict[str, Scores]:
    """Scores by effort, over the same tasks. `episodes` is where every episode is written."""
    efforts = [normalise_effort(effort) for effort in section.efforts]
    tasks = suite(domains, section.tasks, section.levels, section.first_seed, section.max_turns)
    sandbox = choose_sandbox(no_sandbox) if any(load_environment(d).runs_commands for d in domains) else None
    limits = Limits(max_turns=section.max_turns, output_tokens=section.output_tokens)
    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=section.output_tokens)
    scores = {}
    for effort in efforts:
        with progress(f"eval {effort}", len(tasks), "task") as bar:
            scores[effort] = asyncio.run(
                evaluate_policy(
                    policy,
                    tasks,
                    effort,
                    sampling,
                    limits,
                    section.concurrency,
                    lambda done: bar.advance(1),
                    sandbox=sandbox,
                    model=model,
                )
            )
    if episodes is not None:
        write_jsonl_zst(episodes, (record for found in scores.values() for record in found.records))
    for found in scores.values():
        found.require_judged(0.0)  # what is left out is counted in the table
    return scores
