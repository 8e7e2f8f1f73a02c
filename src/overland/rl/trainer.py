"""Reinforcement learning from rollout to update, as one flat loop.

    deal tasks -> run episodes -> price them -> advantages -> update -> weights to the sampler -> figures -> checkpoint

Everything happens in a fixed order, in one process or in several that share the work and hold the same weights. Every
sample of a step was written by the policy that the step updates (staleness 0); a resumed run continues bit for bit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from overland.errors import OverlandError
from overland.rl.algorithms import Advantage
from overland.rl.batch import Bundle, batch_advantages, batch_figures, train_rows
from overland.rl.beside import Beside
from overland.rl.budgets import Budgets
from overland.rl.curriculum import Curriculum
from overland.rl.failures import error_messages
from overland.rl.gather import gather
from overland.rl.loss import LossFigures
from overland.rl.meters import rollout_figures
from overland.rl.quarantine import Quarantine
from overland.rl.samples import Group, Sample
from overland.rl.section import RLSection
from overland.rl.source import Rollouts
from overland.rl.state import TrainerState
from overland.rl.update import accumulate, apply_step, learning_rate, make_optimizer
from overland.rl.watchdogs import Collapse, Watchdogs
from overland.runs import RunFolder, deferred_interrupt, progress, write_jsonl_zst
from overland.train.optim import set_learning_rate
from overland.train.ranks import Ranks


@dataclass(frozen=True)
class RLResult:
    """What a finished run says about itself."""

    steps: int
    stopped: str
    """`steps` (all done), `solved` (no group had variance any more), `cpu_seconds` (the given budget is used up)."""
    tokens: int
    """Tokens sampled in all training rollouts."""
    cpu_seconds: float
    figures: Mapping[str, float]
    """The figures of the last step."""


def train_rl(
    model: nn.Module,
    engine: Any,
    tokenizer: Any,
    tasksets: Mapping[str, Any],
    section: RLSection,
    run: RunFolder,
    *,
    sandbox: Any = None,
    scoring: Any = None,
    rollouts: Rollouts | None = None,
    resume: bool = False,
    cpu_seconds: float | None = None,
    stage: str = "rl",
    teachers: Mapping[str, nn.Module] | None = None,
) -> RLResult:
    """Train `model` in place on `tasksets` (name -> Taskset) and leave metrics, episodes and checkpoints in `run`.

    `engine` samples from the same module. `sandbox` (agent.Sandbox, for domains with a shell) and `scoring`
    (environments.Scoring) go to the episodes. `rollouts` replaces the environments (tests, other sources of groups).
    `resume` continues from the last checkpoint of `stage` in the run folder, if there is one. `cpu_seconds` stops after
    the step in which the processor time (children included) is used up. `teachers` (by the folder that the recipe
    names) are taken instead of loading them. Raises OverlandError when the starting policy
    gives nothing to learn from, and Collapse when a watchdog trips. Ctrl-C finishes the step, saves it and raises
    KeyboardInterrupt; a second one stops at once.
    """
    quarantine = Quarantine.read(run.path)
    if rollouts is None:
        from overland.rl.rollout import EpisodeRollouts

        rollouts = EpisodeRollouts(
            engine,
            tokenizer,
            tasksets,
            section,
            sandbox=sandbox,
            scoring=scoring,
            stage=stage,
            quarantine=quarantine,
        )
    beside = Beside(model, section, teachers)
    curriculum = Curriculum(section, rollouts.levels)
    budgets, watchdogs = Budgets(section), Watchdogs(section.watchdogs)
    optimizer = make_optimizer(beside.trained(model), section)
    state = TrainerState(run, stage, beside.trained(model), optimizer, curriculum, budgets, watchdogs)

    resumed = state.start(resume)
    began = processor_seconds() - state.cpu_seconds
    rollouts.set_weights(model, version=state.step)
    if not resumed:
        with progress(f"{stage}: measuring the start", None):
            measured = rollouts.run(curriculum.measuring(), version=0)
        write_episodes(run, f"{stage}-start", measured)
        preflight(measured, section)
        curriculum.rates.update(measured)
        budgets.measure(measured)
        run.metrics({"stage": stage, "step": 0} | {f"rl/b0/{cell}": b0 for cell, b0 in budgets.state_dict().items()})
        state.save()
        rollouts.set_weights(model, version=state.step)  # no stored prefixes: the first step of a resumed run has none

    with deferred_interrupt() as stop, progress(stage, section.steps) as bar:
        bar.advance(state.step)
        while state.step < section.steps and not state.stopped:
            clock = time.perf_counter()
            gathered = gather(rollouts, curriculum, budgets, section, state.step)
            groups = gathered.all
            seconds_rollout = time.perf_counter() - clock
            broken = [g.task_id for g in groups if g.failed_data]
            if quarantine.extend(broken, "its data failed in training") and run.writes:
                quarantine.write(run.path)

            clock = time.perf_counter()
            figures = rollout_figures(groups) | gathered.figures()
            done, advantages = update(model, optimizer, gathered.kept, section, state.step, beside)
            figures |= done
            seconds_update = time.perf_counter() - clock
            figures |= {"rl/seconds_rollout": seconds_rollout, "rl/seconds_update": seconds_update}
            figures["rl/cpu_seconds"] = state.cpu_seconds = processor_seconds() - began
            state.tokens += sum(s.output_tokens for g in groups for s in g.samples)
            state.figures = figures

            batch_file = write_episodes(run, f"{stage}-step-{state.step:05d}", groups, advantages)
            run.metrics({"stage": stage, "step": state.step + 1} | figures)
            try:
                watchdogs.check(state.step + 1, figures)
            except Collapse as collapse:
                raise Collapse(f"{collapse} (the batch is kept in {batch_file})") from None

            state.step += 1
            rollouts.set_weights(model, version=state.step)
            bar.advance(1, success=figures.get("rl/success", 0.0), reward=figures.get("rl/reward", 0.0))
            state.empty = 0 if figures["rl/rows"] else state.empty + 1
            if state.empty >= section.max_empty_steps:
                refuse_empty(figures, section)
                state.stopped = "solved"
            elif cpu_seconds is not None and state.cpu_seconds >= cpu_seconds:
                state.stopped = "cpu_seconds"
            elif Ranks.current().any(stop.asked):
                state.save()
                raise KeyboardInterrupt
            elif section.checkpoint_every and state.step % section.checkpoint_every == 0:
                state.save()
        state.save()
    beside.close()
    return RLResult(state.step, state.stopped or "steps", state.tokens, processor_seconds() - began, state.figures)


def update(
    model: nn.Module,
    optimizer: Any,
    groups: Sequence[Group],
    section: RLSection,
    step: int,
    beside: Beside,
) -> tuple[dict[str, float], Mapping[str, Advantage]]:
    """All optimiser steps on one batch; returns its figures and the advantages by sample id.

    Mismatch KL and ratios are those of the first pass, before any optimiser step: there they measure nothing but the
    difference between trainer and sampler. An empty batch is skipped.
    """
    set_learning_rate(optimizer, learning_rate(section, step))
    longest = max(section.efforts.of(g.effort).output_tokens for g in groups)
    scored = beside.scored(model, groups)
    advantages = batch_advantages(groups, section.algorithm_of, scored)
    cut_off = {s.id for g in groups for s in g.samples if s.truncated} if section.overlong.policy == "mask" else ()
    parts = [
        train_rows(
            groups[i :: section.minibatches],
            section.algorithm_of,
            longest,
            advantages=advantages,
            scored=scored,
            without=cut_off,
        )
        for i in range(section.minibatches)
    ]
    bundles: list[Bundle] = [bundle for part in parts for bundle in part]
    figures = {f"rl/{name}": value for name, value in batch_figures(bundles).items()}
    if not bundles:
        return figures, advantages
    first, last, losses, norms = LossFigures(), LossFigures(), list[float](), list[float]()
    for epoch in range(section.epochs):
        last = LossFigures()
        for index, part in enumerate(filter(None, parts)):
            done = accumulate(model, part, section, beside.reference, beside.critic)  # added up over the ranks
            norms.append(apply_step(beside.trained(model), optimizer, section.max_grad_norm))
            losses.append(done.loss)
            last.add(done.figures)
            if epoch == index == 0:
                first = done.figures
    figures |= {f"rl/{name}": value for name, value in (first.means() | first.by_part() | first.critic()).items()}
    return figures | {
        "rl/clipped_share": last.means()["clipped_share"],
        "rl/loss": sum(losses) / len(losses),
        "rl/grad_norm": max(norms, key=lambda n: n if n == n else float("inf")),
        "rl/lr": learning_rate(section, step),
    }, advantages


def preflight(measured: Sequence[Group], section: RLSection) -> None:
    """Refuse a run that cannot learn: too few groups in which some samples succeed and some fail."""
    if not any(algorithm.wants_variance for algorithm in section.algorithms):
        return
    share = sum(g.has_variance for g in measured) / max(1, len(measured))
    if share > 0 and share >= section.min_variance:
        return
    judged = [s for g in measured for s in g.judged]
    if not judged:
        errors = [e for g in measured for s in g.samples for e in error_messages(s.episode)]
        why = f" (the first: {errors[0]})" if errors else ""
        raise OverlandError(f"rl: every measured episode failed for reasons outside the policy{why}; read the episodes")
    success = sum(s.success for s in judged) / len(judged)
    wrong = sum(s.parse_errors > 0 for s in judged) / len(judged)
    found = f"rl: {share:.0%} of {len(measured)} measured groups have both better and worse samples"
    if success > 0.5:
        raise OverlandError(f"{found}; {success:.0%} already succeed: choose harder levels (rl.domains.NAME.levels)")
    raise OverlandError(
        f"{found} (rl.min_variance = {section.min_variance}); {success:.0%} succeed, {wrong:.0%} are malformed: "
        "the policy cannot start from here; run more SFT or choose easier levels (rl.domains.NAME.levels)"
    )


def refuse_empty(figures: Mapping[str, float], section: RLSection) -> None:
    """Batches without anything to compare are an end when the tasks are solved, and an error when they are not."""
    success = figures.get("rl/success", 0.0)
    if success < section.watchdogs.solved:
        raise OverlandError(
            f"rl: no group had variance in {section.max_empty_steps} batches in a row while {success:.0%} succeed: "
            "nothing can be learnt; raise rl.group_size or choose other levels"
        )


def write_episodes(
    run: RunFolder, name: str, groups: Sequence[Group], advantages: Mapping[str, Advantage] | None = None
) -> str:
    """Every episode of a batch, whole, with what the trainer made of it; returns the path inside the run folder."""
    path = run.episodes / f"{name}.jsonl.zst"
    if run.writes:
        known = advantages or {}
        write_jsonl_zst(path, (episode_record(g, s, known.get(s.id)) for g in groups for s in g.samples))
    return str(path.relative_to(run.path))


def episode_record(group: Group, sample: Sample, advantage: Advantage | None = None) -> dict[str, Any]:
    """An episode in wire form; what the trainer made of it stands in its trace's `info.training`."""
    training = {
        "domain": group.domain,
        "level": group.level,
        "effort": group.effort,
        "reward": sample.reward,
        "success": sample.success,
        "over_budget": sample.over_budget,
        "advantage": advantage,
        "failure": sample.failure,
        "hacks": list(sample.hacks),
        "policy_version": sample.policy_version,
    }
    record: dict[str, Any] = {"id": sample.id, "group": {"id": group.task_id}, **sample.episode}
    traces = [dict(trace) for trace in record.get("traces", [])]
    for trace in traces[:1]:
        trace["info"] = {**trace.get("info", {}), "training": training}
    return {**record, "traces": traces} if traces else {**record, "training": training}


def processor_seconds() -> float:
    """CPU seconds of all ranks and of their children that have ended (sandboxes, tools)."""
    t = os.times()
    return Ranks.current().sum(t.user + t.system + t.children_user + t.children_system)[0]
