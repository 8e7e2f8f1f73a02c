"""`overland plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from overland.cli.output import print_json, print_table
from overland.cli.verbs import JSON, verb

if TYPE_CHECKING:
    from overland.parallel.planner import Prediction


def add_to(app: typer.Typer) -> None:
    """Declare the verb."""

    @verb(
        app,
        "plan",
        "Layouts ranked by predicted step time.",
        "overland plan --model k3 --gpus 1024 --gpu gb200 --precision mxfp8",
        "overland plan --model deepseek-v3 --gpus 1024 --gpu h100 --layout tp=2,pp=8,vp=4,ep=64 --precision fp8 --json",
    )
    def plan(
        model: str = typer.Option(..., "--model", metavar="NAME|DIR", help="A known model, or a folder's config.json."),
        gpus: int = typer.Option(..., "--gpus", help="How many GPUs."),
        gpu: str = typer.Option(..., "--gpu", help="Their kind: a100, h100, h200, h800, b200, b300, gb200 or gb300."),
        layout: str = typer.Option("", "--layout", help="Predict this one, e.g. tp=2,pp=8,vp=4,ep=64,cp=1,fsdp=8."),
        mbs: int = typer.Option(1, "--mbs", help="Sequences in a micro-batch, for --layout."),
        gbs: int = typer.Option(0, "--gbs", help="Sequences in a batch. Default: two a GPU, at least 1024."),
        tokens: int = typer.Option(0, "--tokens", help="Tokens in a batch, instead of --gbs."),
        seq: int = typer.Option(4096, "--seq", help="Tokens in a sequence."),
        precision: str = typer.Option("bf16", "--precision", help="Of the products: bf16, fp8, mxfp8 or nvfp4."),
        software: str = typer.Option("26.04", "--software", help="A measured stack, e.g. 26.08, torchtitan, typical."),
        routing: str = typer.Option("balanced", "--routing", help="balanced, or natural: experts are used unevenly."),
        layers: int = typer.Option(0, "--layers", help="Cut the model to so many layers."),
        top: int = typer.Option(8, "--top", help="How many layouts to show."),
        chart: Path = typer.Option(None, "--chart", metavar="SVG", help="Draw where the time of each goes."),
        as_json: bool = JSON,
    ) -> None:
        """Predict step time and memory of training layouts, say why the best is best and what would help.

        Times come from a model fitted on published runs; docs/parallel.md says how well it predicts runs it never saw.
        """
        from overland.parallel.planner import ask, layout_chart, predict, rank
        from overland.runs.atomic import atomic_write

        job = ask(model, gpu, gpus, layout, mbs, gbs, tokens, seq, precision, software, routing, layers)
        if layout:
            shown, asked = [predict(job)], 1
        else:
            ranking = rank(job, top)
            shown, asked = ranking.best, ranking.asked
        if chart:
            atomic_write(chart, layout_chart(shown))
        if as_json:
            print_json(_json(shown, asked, bool(layout)))
        else:
            _print(shown, asked)


def _json(shown: list[Prediction], asked: int, one: bool) -> dict[str, object]:
    from overland.parallel.planner import break_even, natural, neighbours, remedies

    best = shown[0]
    job = best.job
    even = break_even(job.model, job.gpu)
    question = {
        "model": job.model.name,
        "gpu": job.gpu.name,
        "gpus": job.ranks,
        "gbs": job.gbs,
        "seq": job.seq,
        "precision": job.precision,
        "software": job.software,
        "routing": "balanced" if job.balanced else "natural",
    }
    why: dict[str, object] = {
        "natural_routing": natural(best),
        "a_step_aside": {change.what: change.ratio for change in neighbours(best)},
        "what_would_help": {change.what: change.ratio for change in remedies(best)},
        "expert_parallel_from": None if even is None else {"by_bytes": even.by_bytes, "by_time": even.by_time},
    }
    if one:
        return {**question, **best.to_json(), **why}
    return {**question, "layouts_looked_at": asked, "layouts": [found.to_json() for found in shown], **why}


def _print(shown: list[Prediction], asked: int) -> None:
    from overland.parallel.planner import break_even, capacity_gib, neighbours, remedies

    best = shown[0]
    job = best.job
    print(
        f"{job.model.name}: {job.model.parameters() / 1e9:,.1f}B parameters, {job.model.active() / 1e9:,.1f}B active; "
        f"{job.ranks:,} {job.gpu.name}, {job.precision}, {job.gbs:,} x {job.seq:,} tokens a step, "
        f"software {job.software}, {'balanced' if job.balanced else 'natural'} routing"
    )
    if asked > 1:
        print(f"{asked:,} layouts looked at; the fastest that fit in {capacity_gib(job):.0f} GiB:")
    print()
    rows = [
        [
            str(found.job.layout),
            str(found.job.mbs),
            f"{found.step_s:.2f}",
            f"{found.tokens_per_s_per_gpu:,.0f}",
            f"{found.tflops_per_gpu:.0f}",
            f"{100 * found.mfu:.1f}%",
            f"{found.memory.gib:.1f}",
            f"{100 * found.shares.get('pipeline bubble', 0):.1f}%",
            f"{100 * found.shares.get('all-to-all', 0):.1f}%",
            found.limit,
        ]
        for found in shown
    ]
    print_table(rows, ["layout", "mbs", "step s", "tok/s/GPU", "TFLOP/s", "MFU", "GiB", "bubble", "a2a", "limit"])
    if not best.fits:
        print(f"\nIt does not fit: {best.memory.gib:.1f} GiB of {capacity_gib(job):.1f}.")
    print("\nwhere the time goes   " + ", ".join(f"{name} {share:.0%}" for name, share in best.shares.items()))
    beside = [found for found in vars(best.memory).items() if found[1] > 0]
    print("where the memory goes " + ", ".join(f"{name} {value / 2**30:.1f}" for name, value in beside) + " GiB")
    print("a step aside")
    for change in neighbours(best):
        print(f"  {change}")
    print("what would help, or hurt")
    for change in remedies(best):
        print(f"  {change}")
    even = break_even(job.model, job.gpu)
    if even is not None:
        print(f"rule of thumb: {even}")
