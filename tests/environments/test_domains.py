"""Every domain on every level: tasks follow from seeds, probes earn nothing, oracles succeed in the sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from overland.agent import Limits
from overland.agent.sandbox.base import Sandbox
from overland.chat import MalformedCall
from overland.environments import (
    DOMAINS,
    LEVELS,
    STARTERS,
    Task,
    faults,
    load_environment,
    probes,
    run_episode,
    task_data,
    task_from_data,
)
from overland.environments.names import NAMES, split_of
from overland.environments.taskset import HARD_CALLS

ALL_NAMES = frozenset(NAMES["train"]) | frozenset(NAMES["held_out"])


def beyond_the_easy(seeds: range, splits: tuple[str, ...] = ("train", "held_out")) -> Iterator[Task]:
    """Every kind but the starter domains' easy levels, which test_tasks.py has."""
    for domain in DOMAINS:
        taskset = load_environment(domain)
        for level in taskset.levels:
            if domain in STARTERS and level in LEVELS:
                continue
            for kind in taskset.kinds[level]:
                for split in splits:
                    for seed in seeds:
                        yield taskset.task(split, level, seed, kind)


def test_every_domain_has_six_levels() -> None:
    for domain in DOMAINS:
        taskset = load_environment(domain)
        assert taskset.levels == (0, 1, 2, 3, 4, 5), domain
        assert taskset.least_calls[4:] >= HARD_CALLS
        assert tuple(sorted(taskset.least_calls)) == taskset.least_calls


def test_equal_seeds_give_equal_tasks_and_other_seeds_others() -> None:
    first, again = list(beyond_the_easy(range(2))), list(beyond_the_easy(range(2)))
    assert first == again
    assert len({(task.prompt, repr(task.steps)) for task in first}) == len(first)
    for task in first[::7]:
        assert task_from_data(json.loads(json.dumps(task_data(task)))) == task


def test_splits_share_no_name() -> None:
    for task in beyond_the_easy(range(4)):
        names = ALL_NAMES.intersection(re.findall(r"[a-z]+", task.prompt + repr(task.steps)))
        assert {split_of(name) for name in names} <= {task.split}, (task.id, names)


def test_every_kind_passes_every_probe() -> None:
    for task in beyond_the_easy(range(1)):
        assert faults(task) == []


def test_tasks_in_files_are_probed_with_forged_marks() -> None:
    for domain in ("terminal", "code"):
        assert probes(load_environment(domain).task("train", 1, 0))["overwrite"] == 0.0


def test_level_five_is_thirty_different_calls_that_no_single_tool_call_repeated_would_be() -> None:
    for task in beyond_the_easy(range(3)):
        calls = [(step.tool, json.dumps(dict(step.args), sort_keys=True)) for step in task.steps]
        least = DOMAINS[task.domain].least_calls[task.level]
        assert len(set(calls)) >= least, task.id
        if task.level == 5:
            assert least >= 30
            most = max(calls.count(call) for call in calls)
            assert most <= 2, f"{task.id} repeats one call {most} times"


def test_demonstrations_keep_to_the_schemas_and_are_short() -> None:
    for task in beyond_the_easy(range(1), ("train",)):
        specs = {spec.name: spec for spec in task.tool_specs()}
        for effort in ("low", "max"):
            messages = task.oracle_conversation(effort)
            assert messages[-1].content == task.answer
            for message in messages:
                for call in message.tool_calls:
                    try:
                        specs[call.name].check(json.loads(call.arguments))
                    except MalformedCall as error:
                        pytest.fail(f"{task.id}: {error}")
                if message.role == "tool":
                    assert len(message.content) < 4_100
                    assert not message.content.startswith("error"), (task.id, message.content)
            thoughts = [m.reasoning for m in messages if m.role == "assistant"]
            assert any(thoughts) == (effort == "max")


@pytest.mark.parametrize("domain", DOMAINS)
async def test_the_oracles_script_succeeds(domain: str, sandbox: Sandbox, scripted: Any, sampling: Any) -> None:
    for task in beyond_the_easy(range(1, 2), ("held_out",)):
        if task.domain != domain:
            continue
        replies = [m for m in task.oracle_conversation("high") if m.role == "assistant"]
        limits = Limits(max_turns=len(replies))
        episode = await run_episode(task, scripted(replies), "high", sampling, limits, sandbox=sandbox)
        trace = episode.traces[0]
        assert (episode.ok, episode.reward, episode.success, trace.stop) == (True, 1.0, True, "answered"), (
            task.id, trace.dimensions, trace.errors,
        )  # fmt: skip
