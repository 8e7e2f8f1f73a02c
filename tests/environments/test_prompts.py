"""Held-out prompts are not arranged like training prompts; checked on thousands of generated ones, by brute force."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from overland.environments import LEVELS, STARTERS, Task, load_environment
from overland.environments.finance import FinanceTask
from overland.environments.prompts import CLOSINGS, LINKS, OPENINGS
from overland.environments.terminal import TerminalTask
from overland.environments.web import WebTask

SEEDS = 400
STRIDE = 5


def proper_names(task: Task) -> set[str]:
    """Names, paths and numbers that a task's prompt may contain, from the world and not by guessing at the text."""
    if isinstance(task, TerminalTask):
        return set(task.files) | set(task.expected)
    if isinstance(task, FinanceTask):
        return {firm for firm, *_ in task.firms}
    assert isinstance(task, WebTask)
    return set(task.people)


def skeleton(task: Task, placeholder: str) -> list[str]:
    """The prompt's words with every proper name replaced, or removed where the placeholder is empty."""
    names = proper_names(task)
    words = (placeholder if word in names else word for word in task.prompt.split())
    return [word for word in words if re.fullmatch(r"[a-z]+|@", word)]


def windows(words: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[i : i + STRIDE]) for i in range(len(words) - STRIDE + 1))


@pytest.fixture(scope="module")
def tasks() -> dict[str, list[Task]]:
    return {
        split: [
            load_environment(domain).task(split, level, seed, kind)
            for domain in STARTERS
            for level in LEVELS
            for kind in load_environment(domain).kinds[level]
            for seed in range(SEEDS)
        ]
        for split in ("train", "held_out")
    }


@pytest.mark.parametrize("placeholder", ["", "@"])
def test_no_five_words_in_a_row_of_a_held_out_prompt_occur_in_training(
    tasks: dict[str, list[Task]], placeholder: str
) -> None:
    seen = {window for task in tasks["train"] for window in windows(skeleton(task, placeholder))}
    for task in tasks["held_out"]:
        shared = seen.intersection(windows(skeleton(task, placeholder)))
        assert not shared, f"{task.prompt}: {shared}"
    assert len(seen) > 1000


def test_the_check_sees_a_shared_phrase(tasks: dict[str, list[Task]]) -> None:
    """The check above would fail if a training family were also a held-out one."""
    seen = {window for task in tasks["train"] for window in windows(skeleton(task, "@"))}
    long = [task for task in tasks["train"] if len(skeleton(task, "@")) >= STRIDE]
    assert len(long) > 1000
    assert all(seen.intersection(windows(skeleton(task, "@"))) for task in long)


def test_all_parts_of_both_splits_are_drawn(tasks: dict[str, list[Task]]) -> None:
    for split in ("train", "held_out"):
        for domain in STARTERS:
            asked = [task.prompt for task in tasks[split] if task.domain == domain]
            for part in (*OPENINGS[split], *LINKS[split], *CLOSINGS[split]):
                assert any(part in prompt for prompt in asked), part


def test_the_splits_share_no_part_and_each_has_many() -> None:
    for parts in (OPENINGS, LINKS, CLOSINGS):
        assert not set(parts["train"]) & set(parts["held_out"])
        assert len(set(parts["train"])) == len(parts["train"]) >= 30
        assert len(set(parts["held_out"])) == len(parts["held_out"]) >= 6


def test_no_part_holds_a_word_that_paths_are_made_of(tasks: dict[str, list[Task]]) -> None:
    paths = {word for split in tasks.values() for task in split for step in task.steps for word in step.plan[1:]}
    parts = " ".join(part for group in (OPENINGS, LINKS, CLOSINGS) for split in group.values() for part in split)
    assert len(paths) > 20
    assert not paths & set(re.findall(r"[a-z]+", parts))


def test_prompts_are_short(tasks: dict[str, list[Task]]) -> None:
    for task in itertools.chain(*tasks.values()):
        words = re.findall(r"\w+", task.prompt)
        assert 4 <= len(words) <= 24, task.prompt


def test_the_path_of_the_prompt_is_the_path_of_the_first_plan(tasks: dict[str, list[Task]]) -> None:
    """What the oracle thinks first stands in the prompt: the start, and the path from the start's word on."""
    for task in itertools.chain(*tasks.values()):
        start, *path = task.steps[0].plan
        assert f" {start} " in task.prompt
        assert f"{'>'.join(path)}." in task.prompt


def test_some_easy_tasks_begin_halfway_and_no_hard_one_does(tasks: dict[str, list[Task]]) -> None:
    for domain in ("finance", "web"):
        halfway = [
            task for task in tasks["train"] if task.domain == domain and f">{task.steps[0].plan[1]}>" in task.prompt
        ]
        assert {task.level for task in halfway} == {0, 1}
