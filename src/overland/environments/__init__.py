"""Domains with real tools: tasks by seed, worlds, oracles, scores, episodes."""

from __future__ import annotations

from overland.environments.load import DOMAINS, load_environment
from overland.environments.task import Step, Task
from overland.environments.taskset import LEVELS, Taskset
from overland.environments.world import Changes, World

__all__ = ["DOMAINS", "LEVELS", "Changes", "Step", "Task", "Taskset", "World", "load_environment"]
