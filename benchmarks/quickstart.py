"""What the default quickstart reaches on held-out tasks, against three controls given the same CPU seconds.

    python -m benchmarks.quickstart --seeds 0 1 2 --json build/benchmarks/quickstart.json [--quick] [--out DIR]

For every seed: the default recipe with 300 held-out tasks a domain; then, from its SFT checkpoint, three controls that
may use the CPU seconds RL used: more SFT over the same demonstrations; rejection sampling (SFT on that checkpoint's own
successes); expert iteration (the same, sampled anew by every step's model). All checkpoints meet the same tasks, greedy
at effort max. No peer library runs this job on a CPU, so the controls are the comparison. A seed that is already in DIR
is continued, not run again.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

from overland.chat import XTML
from overland.engine import Engine
from overland.environments import STARTERS, load_environment
from overland.evaluate import paired_difference
from overland.evaluate.outcomes import outcome
from overland.model import load_model, save_model
from overland.pipeline import QuickstartRecipe, quickstart, recipe_for_minutes
from overland.pipeline.oracles import oracle_dialogues
from overland.pipeline.stages import Context, held_out_tasks, policy_for, run_tasks
from overland.rl import expert_iteration, rejection_sampling
from overland.runs import RunFolder, read_json, read_jsonl_zst, write_json, write_jsonl_zst
from overland.train import Ranks, in_ranks, sft

CONTROLS = ("more_sft", "rejection_sampling", "expert_iteration")


def run_seed(recipe: QuickstartRecipe, out: Path) -> dict[str, Any]:
    """The quickstart and the controls of one seed; returns its figures."""
    resume = (out / "recipe.toml").exists()
    summary = quickstart(recipe, out, resume=resume)
    for control in CONTROLS:
        folder = out.with_name(f"{out.name}-{control}")
        if not (folder / "scores.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            in_ranks(recipe.ranks, run_control, control, recipe.seeded(), out, folder)
        summary["held_out"][control] = read_json(folder / "scores.json")
    summary["paired"] = {
        f"{a} - {b}": difference(out, a, b)
        for a, b in [("rl", "sft"), ("mxfp4", "rl"), *(("rl", control) for control in CONTROLS)]
    }
    return summary


def run_control(ranks: Ranks, control: str, recipe: QuickstartRecipe, out: Path, folder: Path) -> None:
    """Train from the SFT checkpoint for RL's CPU seconds, then measure."""
    run = RunFolder(folder, writes=ranks.writes)
    ranks.check_in()
    source = Context(recipe, RunFolder(out, writes=False), ranks, False, False)
    summary = read_json(out / "summary.json")
    budget = summary["cpu_seconds"]["rl"]
    model, tokenizer = load_model(source.model_folder("sft")), source.tokenizer()
    if control == "more_sft":
        per_step = summary["cpu_seconds"]["sft"] / recipe.sft.steps
        section = recipe.sft.model_copy(
            update={"steps": max(1, round(budget / per_step)), "seed": recipe.seed + 1000, "warmup": 10}
        )
        sft(model, oracle_dialogues(recipe.demonstrations, tokenizer, XTML()), section, run, stage="more_sft")
    else:
        tasksets = {name: load_environment(name) for name in STARTERS}
        engine = Engine(model, max_batch=recipe.rl.live_episodes)
        learn = {"rejection_sampling": rejection_sampling, "expert_iteration": expert_iteration}[control]
        learn(model, engine, tokenizer, tasksets, recipe.rl, run, budget, sandbox=source.sandbox())
    if ranks.writes:
        save_model(model, run.model)
    engine = Engine(model.eval(), max_batch=recipe.evaluate.concurrency)
    scores = run_tasks(source, policy_for(source, engine), held_out_tasks(source), "max", f"evaluate {control}")
    if ranks.writes:
        write_jsonl_zst(out / "episodes" / f"held-out-{control}-max.jsonl.zst", scores.records)
        write_json(folder / "scores.json", scores.held_out())


def difference(out: Path, first: str, second: str) -> dict[str, float]:
    """Success of `first` minus `second` over the same tasks, with its 95% interval, in points."""
    found = []
    for stage in (first, second):
        records = read_jsonl_zst(out / "episodes" / f"held-out-{stage}-max.jsonl.zst")
        found.append({r["task"]["key"]: bool(outcome(r).success) for r in records})
    tasks = sorted(found[0].keys() & found[1].keys())
    interval = paired_difference([found[1][t] for t in tasks], [found[0][t] for t in tasks]).difference
    return {"points": 100 * interval.estimate, "low95": 100 * interval.low, "high95": 100 * interval.high}


def goals(seeds: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """What the quickstart promises, judged over all seeds."""
    every = list(seeds.values())

    def success(s: dict[str, Any], stage: str, domain: str = "all") -> float:
        return float(s["held_out"][stage][domain]["success"])

    return {
        "RL at least 80% over all domains": all(success(s, "rl") >= 0.80 for s in every),
        "at least 20 points above SFT": all(success(s, "rl") - success(s, "sft") >= 0.20 for s in every),
        "every domain above SFT": all(success(s, "rl", d) > success(s, "sft", d) for s in every for d in STARTERS),
        **{
            f"above {control} in all": all(success(s, "rl") > success(s, control) for s in every)
            for control in CONTROLS
        },
        "max effort better than low, intervals apart": all(
            s["efforts"]["max"]["low95"] > s["efforts"]["low"]["high95"] for s in every
        ),
        "low cheaper than max": all(s["efforts"]["low"]["tokens"] < s["efforts"]["max"]["tokens"] for s in every),
        "MXFP4 within 3 points": all(abs(s["paired"]["mxfp4 - rl"]["points"]) <= 3.0 for s in every),
        "server answers as the engine does": all(
            s["served"]["same_as_in_process"] == s["served"]["conversations"] for s in every
        ),
    }


def table(seeds: dict[str, dict[str, Any]]) -> str:
    """The figures, one line a checkpoint and seed."""
    lines = [f"{'seed':<5}{'checkpoint':<20}{'all':>14}" + "".join(f"{d:>10}" for d in STARTERS)]
    for seed, s in seeds.items():
        for stage, found in s["held_out"].items():
            whole = found["all"]
            interval = f"{whole['success']:.3f} ±{(whole['high95'] - whole['low95']) / 2:.3f}"
            cells = "".join(f"{found[d]['success']:>10.3f}" for d in STARTERS)
            lines.append(f"{seed:<5}{stage:<20}{interval:>14}{cells}")
        efforts = ", ".join(f"{e} {v['success']:.3f} at {v['tokens']:.0f} tokens" for e, v in s["efforts"].items())
        lines.append(f"{seed:<5}efforts: {efforts}")
        total, processor = sum(s["seconds"].values()), sum(s["cpu_seconds"].values())
        lines.append(f"{seed:<5}{total:.0f} s wall, {processor:.0f} CPU seconds; bits per byte {s['bpb']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks/quickstart"))
    parser.add_argument("--quick", action="store_true", help="one-minute recipe, 12 tasks a domain: does it run?")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    seeds: dict[str, dict[str, Any]] = {}
    for seed in chosen.seeds:
        recipe = recipe_for_minutes(1) if chosen.quick else QuickstartRecipe()
        tasks = 12 if chosen.quick else 300
        recipe = recipe.model_copy(
            update={"seed": seed, "evaluate": recipe.evaluate.model_copy(update={"tasks": tasks})}
        )
        seeds[str(seed)] = run_seed(recipe, chosen.out / f"seed-{seed}")
        print(table(seeds), flush=True)
    reached = goals(seeds)
    for goal, held in reached.items():
        print(f"{'yes' if held else 'NO ':<4} {goal}")
    if chosen.json:
        host = {"machine": platform.machine(), "python": platform.python_version(), "torch": torch.__version__}
        write_json(chosen.json, {"date": str(date.today()), **host, "seeds": seeds, "goals": reached})
        print(json.dumps({"written": str(chosen.json)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
