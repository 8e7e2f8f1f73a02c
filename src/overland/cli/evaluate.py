"""`overland eval SUITE`."""

from __future__ import annotations

from pathlib import Path

import typer

from overland.cli.output import print_json, print_table
from overland.cli.verbs import API, API_KEY_ENV, JSON, MODEL, MODEL_NAME, NO_SANDBOX, SET, verb


def add_to(app: typer.Typer) -> None:
    """Declare the verb."""

    @verb(
        app,
        "eval",
        "Run a model over held-out tasks.",
        "overland eval finance --model runs/quickstart/model --tasks 20",
        "overland eval all --model runs/quickstart/model --tasks 4 --effort low --effort max --json",
    )
    def evaluate(
        suite: str = typer.Argument(
            ..., metavar="SUITE", help="Domains with commas between, all (of the quickstart) or every."
        ),
        model: str = MODEL,
        name: str | None = MODEL_NAME,
        api: str = API,
        api_key_env: str = API_KEY_ENV,
        tasks: int = typer.Option(100, "--tasks", min=1, help="Held-out tasks a domain."),
        effort: list[str] = typer.Option(["high"], "--effort", help="low, high or max. Repeatable."),
        temperature: float = typer.Option(0.0, "--temperature", help="0 is greedy."),
        seed: int = typer.Option(0, "--seed", help="Seed of the sampling."),
        episodes: Path | None = typer.Option(None, "--episodes", help="Write every episode here (.jsonl.zst)."),
        changes: list[str] = SET,
        no_sandbox: bool = NO_SANDBOX,
        as_json: bool = JSON,
    ) -> None:
        """Run a model over held-out tasks and print success with 95% intervals, by effort and domain."""
        from overland.config import load_recipe
        from overland.evaluate import EvaluateSection
        from overland.evaluate.table import rate
        from overland.pipeline.opening import open_policy
        from overland.pipeline.suites import domains_of, run_suite

        section = load_recipe(EvaluateSection, None, [f"tasks={tasks}", f"efforts={effort}", *changes])
        domains = domains_of(suite)
        policy = open_policy(model, name=name, api=api, api_key_env=api_key_env)
        scores = run_suite(
            policy,
            domains,
            section,
            temperature=temperature,
            seed=seed,
            no_sandbox=no_sandbox,
            episodes=episodes,
            model=model,
        )
        if as_json:
            print_json({tier: {"held_out": s.held_out(), "levels": s.levels()} for tier, s in scores.items()})
            return
        rows = []
        for tier, found in scores.items():
            for domain, score in [*found.by_domain().items(), ("all", found.overall)]:
                figures = [f"{x:.1f}" if x is not None else "–" for x in (score.tokens, score.thinking, score.calls)]
                rows.append([tier, domain, rate(score), str(score.n), *figures])
        print_table(rows, ["effort", "domain", "solved (95%)", "tasks", "tokens", "thinking", "calls"])
