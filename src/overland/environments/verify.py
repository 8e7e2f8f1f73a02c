"""Scores by name. A dimension keeps its value, weight and role; nothing is stored only as a sum.

Roles: a `gate` multiplies, a `reward` adds with its weight, a `monitor` is only looked at. A value of None means not
judged (the infrastructure failed), which is not the same as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, prod

from overland.environments.reward import Attempt, Finished, Reward, Role
from overland.environments.task import Task
from overland.environments.world import Changes, World

__all__ = ["Attempt", "Finished", "Reward", "Role", "combine", "judge", "normalise", "not_judged", "score", "succeeded"]


def normalise(answer: str) -> str:
    """An answer as it is compared: case, surrounding space, quotes and a final stop do not count."""
    return answer.strip().strip("\"'`").rstrip(".").strip().casefold()


def accepted(task: Task, answer: str) -> bool:
    """Whether an answer is the task's."""
    said = normalise(task.read_answer(answer))
    if not task.tolerance:
        return said == normalise(task.read_answer(task.answer))
    try:
        value = float(said.rstrip("%").replace(",", ""))
    except ValueError:
        return False
    # A little more than the tolerance: binary fractions must not turn away an answer on its edge.
    return isfinite(value) and abs(value - float(task.answer)) <= task.tolerance * (1 + 1e-9)


def final_answer(finished: Finished) -> str | None:
    """The text of the last assistant message, or None where the episode ended without an answer."""
    if finished.stop != "answered" or not finished.messages:
        return None
    last = finished.messages[-1]
    return last.content if last.role == "assistant" and not last.tool_calls else None


def score(task: Task, finished: Finished, world: World) -> dict[str, Reward]:
    """All dimensions of one attempt; `world` is the still open world it was made in.

    answer: the final answer equals the task's, exactly after `normalise` or within the task's tolerance.
    state: the final world is exactly as expected.
    harm: how many paths ended otherwise than they should, where anything was changed at all.

    Where the task asks for an answer, `answer` is the reward and an untouched world the gate. Where it asks for a
    change, `state` is the reward and the closing word the gate. Where it brings checks of its own (`task.checks`), the
    reward is among them, and both are gates.
    """
    answer = final_answer(finished)
    right = float(answer is not None and accepted(task, answer))
    changes: Changes = world.changes()
    harm = len(changes.missing) + len(changes.unexpected) + len(changes.altered) if changes.touched else 0
    return {
        "answer": Reward(right, role=_role(task, "answer")),
        "state": Reward(float(changes.as_expected), role=_role(task, "state")),
        "harm": Reward(float(harm), role="monitor"),
        **task.checks(finished, world),
    }


async def judge(task: Task, finished: Finished, world: World) -> dict[str, Reward]:
    """`score` for a policy's attempt: ends what runs in its world, then examines what is left."""
    await world.stop()  # nothing of the episode runs any more when the final state is read
    await world.examine()
    return score(task, finished, world)


def not_judged(task: Task) -> dict[str, Reward]:
    """The dimensions of an attempt that the infrastructure failed."""
    return {
        "answer": Reward(None, role=_role(task, "answer")),
        "state": Reward(None, role=_role(task, "state")),
        "harm": Reward(None, role="monitor"),
        **{name: Reward(None, role=role) for name, role in task.check_roles.items()},
    }


def _role(task: Task, name: str) -> Role:
    return "reward" if task.outcome == name else "gate"


def combine(dimensions: Mapping[str, Reward], *, wrong: float = 0.0, harm: float = 0.0) -> float | None:
    """The reward: product of gates x weighted mean of rewards; None where any of them was not judged.

    `wrong` is subtracted where the result is not the full one, `harm` where the harm monitor is above zero.
    """
    gates = [d.value for d in dimensions.values() if d.role == "gate"]
    rewards = [(d.value, d.weight) for d in dimensions.values() if d.role == "reward"]
    if None in gates or any(value is None for value, _ in rewards):
        return None
    total = sum(weight for _, weight in rewards) or 1.0
    result = prod(v for v in gates if v is not None) * sum((v or 0.0) * w for v, w in rewards) / total
    if result < 1.0:
        result -= wrong
    damage = dimensions.get("harm")
    if damage is not None and damage.value:
        result -= harm
    return result


def succeeded(dimensions: Mapping[str, Reward]) -> bool | None:
    """Whether every gate and every reward is at its full value; None where not judged."""
    values = [d.value for d in dimensions.values() if d.role != "monitor"]
    return None if None in values else all(value == 1.0 for value in values)
