"""How well the planner predicts runs it never saw, and the fit of its factors.

    python -m benchmarks.planner --runs published_runs.csv [--fit] [--quick] [--json OUT] [--chart OUT.svg]
    python -m benchmarks.planner --k3

`--runs` is a table of measured runs (columns as in the head of `read_runs`). Every model is left out in turn: the
factors are fitted on all other models and predict it. Beside that, runs read off papers and project pages that are not
in the table (`planner_elsewhere.csv`). `--fit` writes the shipped factors anew from the table, deterministically.
`--k3` lays out K3 on four kinds of GPU, beside what NeMo AutoModel runs.
The peer is SimuMax, whose own predictions stand in the notes of the runs it measured.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from overland.errors import OverlandError
from overland.parallel.layout import Layout
from overland.parallel.planner.architecture import flops_per_token
from overland.parallel.planner.factors import COEFFICIENTS
from overland.parallel.planner.fit import Run, fit_factors, fit_memory, left_out, predict, with_software
from overland.parallel.planner.gpus import gpu
from overland.parallel.planner.job import Job
from overland.parallel.planner.memory import MemoryFit, memory
from overland.parallel.planner.models import architecture, truncated
from overland.parallel.planner.prediction import Prediction
from overland.parallel.planner.prediction import predict as predict_job
from overland.parallel.planner.search import rank
from overland.runs.atomic import atomic_write, write_json

MODELS = {
    "DeepSeekV3": "deepseek-v3",
    "GPT OSS 120B": "gpt-oss-120b",
    "LLAMA3.1_405B": "llama3-405b",
    "LLAMA3_70B": "llama3-70b",
    "LLAMA3_8B": "llama3-8b",
    "Llama3.1-70B": "llama3-70b",
    "Llama3.1-8B": "llama3-8b",
    "Nemotron_3_Nano": "nemotron3-nano",
    "Nemotron_3_Super": "nemotron3-super",
    "Nemotron_3_Ultra": "nemotron3-ultra",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Kimi_K2": "kimi-k2",
    "Mixtral-8x22B": "mixtral-8x22b",
    "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}
PRECISIONS = {"BF16": "bf16", "FP8": "fp8", "FP8-CS": "fp8", "FP8-CS (FP8-MX)": "fp8", "FP8-MX": "mxfp8"}
MEMORY_START = MemoryFit(6.0, 12.0, 0.8, 1.5, 3.0)

ELSEWHERE = Path(__file__).with_name("planner_elsewhere.csv")
"""Runs read off papers and project pages that are in none of the table's rows. Never fitted on."""


def read_runs(path: Path) -> list[Run]:
    """The runs of a table that the planner can express: its models and GPU kinds, pre-training or full fine-tuning."""
    found = []
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            run = _run(row)
            if run is not None:
                found.append(run)
    return found


def _run(row: dict[str, str]) -> Run | None:
    name, note = row["model"], row["note"]
    cut = re.fullmatch(r"(\w+) truncated to (\d+) layers", name)
    known = MODELS.get(cut[1] if cut else name.split(" (")[0])
    count = re.search(r"micro-batch count (\d+)", note)
    if known is None or "lora" in note or not row["seq"] or not (row["gbs"] or count):
        return None
    model = truncated(architecture(known), int(cut[2])) if cut else architecture(known)

    def number(field: str, default: int = 1) -> int:
        return int(row[field]) if row[field] else default

    kind = row["system"].removeprefix("DGX-").split("-")[0].lower()
    precision = PRECISIONS.get(row["precision"], row["precision"].lower())
    recompute = "full" if "full AC" in note else "selective" if "selective AC" in note else "none"
    degrees = (number(field) for field in ("tp", "pp", "vp", "ep", "cp"))
    layout = Layout(*degrees, fsdp=number("fsdp", 0), recompute=recompute)
    ranks, seq, mbs = number("gpus"), number("seq"), number("mbs")
    gbs = int(count[1]) * mbs * layout.dp(ranks) if count else number("gbs")
    job = Job(model, gpu(kind), ranks, layout, seq, gbs, mbs, precision, "natural" not in note, _software(row))
    tokens = gbs * seq / ranks
    if row["step_s"]:
        step = float(row["step_s"])
    elif row["tokens_per_s_per_gpu"]:
        step = tokens / float(row["tokens_per_s_per_gpu"])
    else:
        step = tokens * flops_per_token(model, seq) / (float(row["tflops_per_gpu"]) * 1e12)
    return Run(job, step, float(row["mem_gib"]) if row["mem_gib"] else None, known)


def _software(row: dict[str, str]) -> str:
    release = re.search(r"NeMo (\d\d\.\d\d)", row["note"])
    if release:
        return release[1]
    if "torchtitan" in row["source"]:
        return "torchtitan"
    return "megatron-0.14" if "Megatron 0.14" in row["note"] else "modelzoo"


def elsewhere() -> list[tuple[str, Run, str]]:
    """(name, run, source) of the runs in ELSEWHERE."""
    found = []
    with ELSEWHERE.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            model, value = architecture(row["model"]), float(row["value"])
            ranks, seq, gbs, mbs = (int(row[field]) for field in ("gpus", "seq", "gbs", "mbs"))
            layout, balanced = Layout.parse(row["layout"]), row["routing"] == "balanced"
            kind = gpu(row["gpu"])
            job = Job(model, kind, ranks, layout, seq, gbs, mbs, row["precision"], balanced, row["software"])
            tokens = gbs * seq / ranks
            flops = flops_per_token(model, seq)
            step = {"step": value, "tokens": tokens / value, "tflops": tokens * flops / value / 1e12}[row["figure"]]
            found.append((row["name"], Run(job, step, None, model.name), row["source"]))
    return found


def peer_errors(path: Path) -> list[float]:
    """SimuMax's own predictions over the times it measured, minus 1, as the notes of the table give them."""
    with path.open(encoding="utf-8", newline="") as lines:
        notes = [
            re.search(r"SimuMax's own prediction [\d.]+ ms \(([-+][\d.]+)%\)", r["note"]) for r in csv.DictReader(lines)
        ]
    return [float(note[1]) / 100 for note in notes if note]


def spread(errors: list[float]) -> dict[str, float]:
    """Median, three quarters and nine tenths of the absolute errors, and their median with sign."""
    size = sorted(map(abs, errors))
    return {
        "n": len(size),
        "median": median(size),
        "p75": size[ceil(0.75 * len(size)) - 1],
        "p90": size[ceil(0.9 * len(size)) - 1],
        "bias": median(errors),
    }


def grouped(runs: list[Run], errors: list[float], key: Callable[[Run], str]) -> dict[str, dict[str, float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for run, error in zip(runs, errors, strict=True):
        found[key(run)].append(error)
    return {name: spread(found[name]) for name in sorted(found)}


def memory_left_out(runs: list[Run]) -> tuple[list[Run], list[float]]:
    """Memory predicted for every model by constants fitted on the other models' runs."""
    known = [run for run in runs if run.mem_gib]
    errors = []
    for run in known:
        fit = fit_memory([other for other in known if other.model != run.model], MEMORY_START)
        errors.append(memory(run.job, fit).gib / (run.mem_gib or 1) - 1)
    return known, errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--k3", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--quick", action="store_true", help="leave out models only, not (model, GPU kind) pairs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    arguments = parser.parse_args()
    if arguments.k3:
        print("\n".join(k3_layouts()))
        return
    if arguments.runs is None:
        parser.error("--runs is needed: a table of measured runs")
    runs = read_runs(arguments.runs)
    factors, memories = fit_factors(runs), fit_memory(runs, MEMORY_START)
    if arguments.fit:
        write_fit(arguments.runs, runs, factors, memories)

    errors = left_out(runs, lambda run: run.model)
    result: dict[str, Any] = {
        "date": str(date.today()),
        "runs": len(runs),
        "in_sample": spread([predict(run.job, factors) / run.step_s - 1 for run in runs]),
        "model_left_out": spread(errors),
        "by_model": grouped(runs, errors, lambda run: run.model),
    }
    if not arguments.quick:
        pairs = left_out(runs, lambda run: (run.model, run.job.gpu.name))
        result["model_and_gpu_left_out"] = spread(pairs)
    unsaid = [predict(with_software(run, "typical").job, factors) / run.step_s - 1 for run in runs]
    result["in_sample_software_unsaid"] = spread(unsaid)
    known, memory_errors = memory_left_out(runs)
    result["memory_in_sample"] = spread([memory(run.job, memories).gib / (run.mem_gib or 1) - 1 for run in known])
    result["memory_model_left_out"] = spread(memory_errors)
    result["memory_by_model"] = grouped(known, memory_errors, lambda run: run.model)
    result["elsewhere"] = {
        name: {"measured_s": run.step_s, "predicted_s": predict(run.job, factors), "source": source}
        for name, run, source in elsewhere()
    }
    result["simumax"] = spread(peer_errors(arguments.runs))
    ours = [error for run, error in zip(runs, errors, strict=True) if run.job.software == "megatron-0.14"]
    result["same_runs_model_left_out"] = spread(ours)
    report(result)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.json, result)
    if arguments.chart:
        from overland.parallel.planner.chart import error_chart

        points = [(error, run.model) for run, error in zip(runs, errors, strict=True)]
        atomic_write(arguments.chart, error_chart(points))


def k3_layouts() -> list[str]:
    """The fastest layout of K3 on each cluster, as rows of a Markdown table; batches of 8,192 x 4,096 tokens."""
    rows = ["| GPUs | kind | layout | step s | tok/s/GPU | MFU | GiB | limit |", "| --- " * 8 + "|"]

    def row(found: Prediction, layout: str) -> str:
        return (
            f"| {found.job.ranks:,} | {found.job.gpu.name} | {layout} | {found.step_s:.1f} | "
            f"{found.tokens_per_s_per_gpu:,.0f} | {found.mfu:.0%} | {found.memory.gib:.0f} | {found.limit} |"
        )

    for ranks in (256, 1024, 4096):
        for kind in ("h100", "h200", "gb200", "gb300"):
            precision = "fp8" if kind[0] == "h" else "mxfp8"
            asked = Job(architecture("k3"), gpu(kind), ranks, Layout(), 4096, 8192, 1, precision)
            try:
                best = rank(asked, 1).best[0]
                rows.append(row(best, f"`{best.job.layout}` mbs {best.job.mbs}"))
            except OverlandError as error:
                rows.append(f"| {ranks:,} | {kind} | {str(error).split('; ')[1].split('.')[0]} | | | | | |")
    theirs = Job(architecture("k3"), gpu("gb200"), 256, Layout(pp=8, ep=32, fsdp=32, recompute="full"), 4096, 8192)
    rows.append(row(predict_job(replace(theirs, precision="mxfp8")), f"NeMo AutoModel: `{theirs.layout}`"))
    return rows


def write_fit(path: Path, runs: list[Run], factors: dict[str, float], memories: MemoryFit) -> None:
    """The shipped coefficients: values and where they come from."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    sources = "Megatron-Bridge, torchtitan, SimuMax and Megatron-MoE-ModelZoo pages"
    write_json(
        COEFFICIENTS,
        {
            "provenance": {
                "command": "python -m benchmarks.planner --runs published_runs.csv --fit",
                "runs": len(runs),
                "sha256": digest,
                "of": f"published training runs: {sources}",
            },
            "factors": {name: float(f"{value:.6g}") for name, value in factors.items()},
            "memory": {name: float(f"{value:.6g}") for name, value in vars(memories).items()},
        },
    )


def report(result: dict[str, Any]) -> None:
    def line(name: str, found: dict[str, float]) -> str:
        return (
            f"{name:34} {found['n']:4}  median {found['median']:6.1%}  p75 {found['p75']:6.1%}"
            f"  p90 {found['p90']:6.1%}  bias {found['bias']:+6.1%}"
        )

    print("step time, predicted / measured - 1")
    for name in ("in_sample", "in_sample_software_unsaid", "model_left_out", "model_and_gpu_left_out"):
        if name in result:
            print(line(name.replace("_", " "), result[name]))
    for name, found in result["by_model"].items():
        print(line(f"  {name} left out", found))
    print("memory, predicted / measured - 1")
    for name in ("memory_in_sample", "memory_model_left_out"):
        print(line(name.replace("_", " "), result[name]))
    for name, found in result["memory_by_model"].items():
        print(line(f"  {name} left out", found))
    print("published elsewhere, never fitted on")
    for name, found in result["elsewhere"].items():
        error = found["predicted_s"] / found["measured_s"] - 1
        print(f"  {name:32} {found['measured_s']:8.2f} s  predicted {found['predicted_s']:8.2f} s  {error:+6.1%}")
    print(
        "peer: SimuMax, with operators measured on the machine, on the runs it measured; ours with their model left out"
    )
    print(line("  SimuMax", result["simumax"]))
    print(line("  this planner", result["same_runs_model_left_out"]))


if __name__ == "__main__":
    main()
