"""`overland agent "TASK"`: a model with a shell in a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from overland.cli.output import print_json, printable
from overland.cli.verbs import API, API_KEY_ENV, JSON, MODEL, MODEL_NAME, NO_SANDBOX, verb

if TYPE_CHECKING:
    from overland.agent import Trajectory


def add_to(app: typer.Typer) -> None:
    """Declare the verb."""

    @verb(
        app,
        "agent",
        "Give a task to a model with a shell.",
        'overland agent "How many lines are in todo.txt?" --model runs/quickstart/model --workdir notes',
        'overland agent "Move todo.txt to old" --model runs/quickstart/model --workdir notes --effort max --json',
    )
    def agent(
        task: str = typer.Argument(..., help="What is to be done; - reads it from standard input."),
        model: str = MODEL,
        name: str | None = MODEL_NAME,
        api: str = API,
        api_key_env: str = API_KEY_ENV,
        effort: str = typer.Option("high", "--effort", help="low, high or max."),
        workdir: Path | None = typer.Option(
            None, "--workdir", help="A folder; the commands work on a copy of it. Default: an empty one."
        ),
        save: Path | None = typer.Option(None, "--save", help="Where the changed copy is written; must not exist."),
        turns: int = typer.Option(16, "--turns", min=1, help="Turns at most."),
        tokens: int = typer.Option(1024, "--tokens", min=1, help="Sampled tokens at most, thinking included."),
        temperature: float = typer.Option(0.0, "--temperature", help="0 is greedy."),
        seed: int = typer.Option(0, "--seed", help="Seed of the sampling."),
        no_sandbox: bool = NO_SANDBOX,
        as_json: bool = JSON,
    ) -> None:
        """Give a task to a model with a shell in a sandbox, and print what it thinks, runs and answers.

        The commands work on a copy of --workdir: your folder is never changed; --save keeps the result. Exits with 1
        where the model did not come to an answer.
        """
        from overland.pipeline.opening import open_policy
        from overland.pipeline.shell_task import ShellTask

        words = sys.stdin.read() if task == "-" else task
        job = ShellTask(words, effort, workdir, save, turns, tokens, temperature, seed)
        job.check()
        policy = open_policy(model, name=name, api=api, api_key_env=api_key_env)
        trajectory = job.run(policy, no_sandbox=no_sandbox)
        if as_json:
            print_json(_record(trajectory))
        else:
            _show(trajectory)
        if trajectory.stop != "answered":
            raise typer.Exit(1)


def _record(trajectory: Trajectory) -> dict[str, object]:
    usage = trajectory.usage
    return {
        "answer": trajectory.answer,
        "stop": trajectory.stop,
        "error": trajectory.error,
        "effort": trajectory.effort,
        "messages": [message.to_openai() for message in trajectory.messages],
        "turns": len(trajectory.turns),
        "tokens": {
            "prompt": usage.prompt_tokens,
            "output": usage.completion_tokens,
            "thinking": usage.reasoning_tokens,
        },
        "seconds": round(trajectory.seconds, 3),
    }


def _show(trajectory: Trajectory) -> None:
    for message in trajectory.messages:
        if message.role == "user":
            _block("task", message.content)
        elif message.role == "tool":
            _block("", message.content)
        else:
            _block("thinks", message.reasoning)
            for call in message.tool_calls:
                _block("runs", call.arguments)
            _block("answers", message.content)
    usage = trajectory.usage
    ended = "" if trajectory.stop == "answered" else f"stopped by {trajectory.stop}{_reason(trajectory)}, "
    print(
        f"\n{ended}{len(trajectory.turns)} turns, {usage.completion_tokens} tokens sampled, "
        f"{usage.reasoning_tokens} of them thinking, {trajectory.seconds:.1f} s"
    )


def _block(label: str, text: str) -> None:
    for at, line in enumerate(printable(text).splitlines()):
        print(f"{label if at == 0 else '':<8} {line}")


def _reason(trajectory: Trajectory) -> str:
    return f" ({trajectory.error})" if trajectory.error else ""
