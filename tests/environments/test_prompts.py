"""Held-out prompts are not arranged like training prompts; checked on thousands of generated ones, by brute force."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from overland.environments import DOMAINS, Task, load_environment
from overland.environments import prompts_finance as finance
from overland.environments import prompts_terminal as terminal
from overland.environments import prompts_web as web
from overland.environments.finance import FinanceTask
from overland.environments.terminal import TerminalTask
from overland.environments.web import WebTask

SEEDS = 400
STRIDE = 5


def proper_names(task: Task) -> set[str]:
    """Names, paths and numbers that a task's prompt may contain, from the world and not by guessing at the text."""
    if isinstance(task, TerminalTask):
        return set(task.files) | set(task.expected)
    if isinstance(task, FinanceTask):
        return {firm for firm, *_ in task.firms} | {str(year) for _, year, *_ in task.facts}
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
            for domain, taskset in DOMAINS.items()
            for level, kinds in taskset.kinds.items()
            for kind in kinds
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
    assert all(seen.intersection(windows(skeleton(task, "@"))) for task in tasks["train"][:50])


def test_all_families_of_both_splits_are_drawn(tasks: dict[str, list[Task]]) -> None:
    for split, modules in (("train", "TRAIN"), ("held_out", "HELD_OUT")):
        drawn = {(t.domain, t.kind, " ".join(skeleton(t, "@"))) for t in tasks[split]}
        for kind, families in getattr(terminal, modules).items():
            assert len({words for d, k, words in drawn if (d, k) == ("terminal", kind)}) >= len(families)
        for domain, module in (("finance", finance), ("web", web)):
            text = " ".join(words for d, _, words in drawn if d == domain)
            for parts in ("OPENINGS", "LINKS", "CLOSINGS"):
                for part in getattr(module, f"{modules}_{parts}"):
                    assert " ".join(re.findall(r"\w+", part)) in text


def test_every_kind_has_twelve_training_and_four_held_out_families() -> None:
    assert terminal.TRAIN.keys() == terminal.HELD_OUT.keys()
    pairs = [(terminal.TRAIN[kind], terminal.HELD_OUT[kind]) for kind in terminal.TRAIN]
    for train, held_out in (*pairs, (finance.TRAIN, finance.HELD_OUT), (web.TRAIN, web.HELD_OUT)):
        assert len(set(train)) >= 12
        assert len(set(held_out)) >= 4


def test_prompts_are_short(tasks: dict[str, list[Task]]) -> None:
    for task in itertools.chain(*tasks.values()):
        words = re.findall(r"[\w/.]*\w", task.prompt)
        assert 4 <= len(words) <= 22, task.prompt


def test_most_words_of_held_out_prompts_are_known_from_training(tasks: dict[str, list[Task]]) -> None:
    known = {word for task in tasks["train"] for word in skeleton(task, "")}
    asked = {word for task in tasks["held_out"] for word in skeleton(task, "")}
    assert len(asked - known) <= 0.15 * len(asked), asked - known


def test_prompts_keep_the_order_start_steps_attribute(tasks: dict[str, list[Task]]) -> None:
    """The plan that the oracle writes is read off the prompt from left to right."""
    for task in itertools.chain(*tasks.values()):
        plan = [part.split()[-1] for part in task.steps[0].plan]  # without the words that lead to a subject
        at = 0
        for word in plan:
            found = re.search(rf"(?<![\w/]){re.escape(word)}(?![\w/])", task.prompt[at:])
            assert found, (task.prompt, plan)
            at += found.end()
