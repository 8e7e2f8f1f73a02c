"""The main job: raw text to a served agent on one machine, stage after stage, each resumable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from overland.agent.sandbox import choose_sandbox
from overland.config import dump_toml
from overland.pipeline import stages
from overland.pipeline.recipe import QuickstartRecipe
from overland.pipeline.stages import Context
from overland.pipeline.standalone import check_place, make_place
from overland.runs import RunFolder, atomic_write, peak_bytes, read_json, remove_unfinished, restart_peak
from overland.studio import write_report
from overland.train import Ranks, in_ranks

Stage = Callable[[Context], dict[str, Any]]


def stages_of(recipe: QuickstartRecipe) -> dict[str, Stage]:
    """Every stage by name, in order."""
    section = recipe.evaluate
    everything = tuple(dict.fromkeys((*section.efforts, "max")))
    return {
        "corpus": stages.corpus_stage,
        "pretrain": stages.pretrain_stage,
        "sft": stages.sft_stage,
        "evaluate-sft": partial(stages.evaluate_stage, stage="sft", efforts=("max",), sampled=section.sampled),
        "rl": stages.rl_stage,
        "evaluate-rl": partial(stages.evaluate_stage, stage="rl", efforts=everything, sampled=section.sampled),
        "quantize": stages.quantize_stage,
        "evaluate-mxfp4": partial(stages.evaluate_stage, stage="mxfp4", efforts=("max",), sampled=False),
        "serve": stages.serve_stage,
    }


def quickstart(
    recipe: QuickstartRecipe, out: Path, *, resume: bool = False, no_sandbox: bool = False
) -> dict[str, Any]:
    """Run what is not done yet and return the summary; OUT/report.html is written at the end.

    Raises UsageError before anything is written where OUT, the recipe or the machine's sandboxes are not fit.
    """
    recipe = recipe.seeded()
    check_place(out, recipe, resume)
    choose_sandbox(no_sandbox)
    make_place(out)
    in_ranks(recipe.ranks, run_stages, recipe, out, resume, no_sandbox)
    write_report(out)
    summary: dict[str, Any] = read_json(out / "summary.json")
    return summary


def run_stages(ranks: Ranks, recipe: QuickstartRecipe, out: Path, resume: bool, no_sandbox: bool) -> None:
    """Every rank's part: the stages in order, those left out that rank 0 finds done."""
    run = RunFolder(out, writes=ranks.writes)
    c = Context(recipe, run, ranks, resume, no_sandbox)
    if ranks.writes and not (resume and (out / "recipe.toml").exists()):
        atomic_write(out / "recipe.toml", dump_toml(recipe))
        run.write_manifest({"job": "quickstart", "seed": recipe.seed, "ranks": recipe.ranks})
    if ranks.writes and resume:
        remove_unfinished(out)
    for name, stage in stages_of(recipe).items():
        done = ranks.gather(ranks.writes and resume and run.stage_done(name) is not None)[0]
        if done:
            continue
        clock, processor = time.perf_counter(), _processor_seconds(ranks)
        restart_peak()
        if ranks.writes:
            run.start_stage(name)
        outputs = stage(c)
        c.summary(
            seconds={name: round(time.perf_counter() - clock, 1)},
            cpu_seconds={name: round(_processor_seconds(ranks) - processor, 1)},
            memory_bytes={name: int(ranks.sum(peak_bytes())[0])},
        )
        run.finish_stage(name, outputs)
        ranks.check_in()
        write_report_quietly(run)


def write_report_quietly(run: RunFolder) -> None:
    """The page so far: whoever looks during the run, or after a kill, sees what is there."""
    if run.writes:
        write_report(run.path)


def _processor_seconds(ranks: Ranks) -> float:
    t = os.times()
    return ranks.sum(t.user + t.system + t.children_user + t.children_system)[0]
