"""An environment of your own: a storehouse that is asked what lies where.

python examples/own_environment.py                                   # check the tasks
python examples/own_environment.py --model runs/quickstart/model     # and run a model on them
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from overland.agent import Limits
from overland.engine import Sampling
from overland.environments import Step, Task, Taskset, World, admit
from overland.environments.names import draw_names
from overland.environments.world import one_string, tool_spec
from overland.evaluate import evaluate_policy
from overland.evaluate.table import rate

PROMPTS = {
    "train": ("what lies in {s} ?", "tell me the content of {s}"),
    "held_out": ("please open {s} and say what you find there",),
}
"""Two families, written by hand: no held-out wording is ever trained on."""


class Storehouse(World):
    """The live half of a task: here a table in memory, in other worlds a folder, a database, a site."""

    spec = tool_spec("look", "look into a box; a box may only say in which box the thing is", "box")

    def __init__(self, boxes: Mapping[str, str]) -> None:
        self.boxes = dict(boxes)

    def open(self) -> None:
        """Nothing to build."""

    def close(self) -> None:
        """Nothing to remove."""

    def call_now(self, args: Mapping[str, object]) -> str:
        box = one_string(args, "box")
        return self.boxes.get(box or "", f"error: there is no box {box!r}")


@dataclass(frozen=True)
class StorehouseTask(Task):
    """`boxes`: name to content, "in NAME" where one points on."""

    boxes: dict[str, str] = field(kw_only=True)

    def world(self) -> Storehouse:
        return Storehouse(self.boxes)


class Storehouses(Taskset):
    """Level L takes L + 1 looks."""

    name = "storehouse"
    kinds = {0: ("look",), 1: ("look",), 2: ("look",)}  # noqa: RUF012

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> StorehouseTask:
        names = draw_names(rng, split, 13)
        path, thing = names[: level + 1], names[-1]
        boxes = dict(zip(names[: level + 4], names[6:], strict=False))
        boxes |= {box: f"in {after}" for box, after in pairwise(path)}
        boxes[path[-1]] = thing
        steps = tuple(Step((f"in {box}", "look"), {"box": box}) for box in path)
        prompt = rng.choice(PROMPTS[split]).format(s=path[0])
        return StorehouseTask(self.name, kind, split, level, seed, prompt, thing, steps, closing="thing", boxes=boxes)


def main() -> None:
    """Check the tasks; run a model on them where one is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder, or an API's base URL")
    parser.add_argument("--tasks", type=int, default=12)
    options = parser.parse_args()

    taskset = Storehouses()
    tasks = [taskset.task("held_out", seed % 3, seed) for seed in range(options.tasks)]
    admit(tasks)  # the oracle succeeds, cheap tricks do not
    print(f"{len(tasks)} tasks are sound; one of them: {tasks[2].prompt}")
    for message in tasks[2].oracle_conversation("high"):
        print(f"  {message.role:<10} {message.content or [call.arguments for call in message.tool_calls]}")

    if options.model:
        from overland.pipeline.opening import open_policy

        policy = open_policy(options.model)
        scores = asyncio.run(
            evaluate_policy(
                policy, tasks, "high", Sampling(temperature=0.0, max_tokens=64), Limits(max_turns=6, output_tokens=192)
            )
        )
        print(f"solved {rate(scores.overall)} of tasks that the model was never trained on")


if __name__ == "__main__":
    main()
