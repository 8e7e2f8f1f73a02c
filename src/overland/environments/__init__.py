"""Domains with real tools: tasks by seed, worlds, oracles, scores by name, episodes in verifiers' wire form."""

from typing import TYPE_CHECKING, Any

from overland.environments.admission import admit, faults, probes
from overland.environments.episode import Branch, Episode, MessageNode, ModelCall, Trace
from overland.environments.load import DOMAINS, STARTERS, load_environment, task_data, task_from_data
from overland.environments.task import Step, Task
from overland.environments.taskset import LEVELS, Taskset
from overland.environments.verify import Attempt, Reward, combine, judge, normalise, score, succeeded
from overland.environments.world import Changes, World

if TYPE_CHECKING:
    from overland.environments.harness import run_episode
    from overland.environments.scoring import Scoring

__all__ = [
    "DOMAINS",
    "LEVELS",
    "STARTERS",
    "Attempt",
    "Branch",
    "Changes",
    "Episode",
    "MessageNode",
    "ModelCall",
    "Reward",
    "Scoring",
    "Step",
    "Task",
    "Taskset",
    "Trace",
    "World",
    "admit",
    "combine",
    "faults",
    "judge",
    "load_environment",
    "normalise",
    "probes",
    "run_episode",
    "score",
    "succeeded",
    "task_data",
    "task_from_data",
]


def __getattr__(name: str) -> Any:
    """The harness brings the agent room along, Scoring pydantic: demonstrations need neither."""
    if name == "run_episode":
        from overland.environments.harness import run_episode

        return run_episode
    if name == "Scoring":
        from overland.environments.scoring import Scoring

        return Scoring
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
