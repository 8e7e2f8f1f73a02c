"""Evaluation of scripted policies on real held-out tasks (SQL and pages; the terminal needs a sandbox)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from overland.agent import Limits, Turn
from overland.agent.turn import Usage
from overland.chat import Message, ToolSpec
from overland.engine import Sampling
from overland.environments import Task
from overland.errors import OverlandError, UsageError
from overland.evaluate import (
    Outcome,
    Scores,
    compare,
    comparison,
    comparison_table,
    difference,
    efforts_table,
    evaluate_policy,
    outcome,
    suite,
)

GREEDY = Sampling(temperature=0)


class Oracle:
    """Answers as the oracle did; tasks whose id is in `wrong` get another answer, in `dead` no answer at all."""

    context_length = None

    def __init__(self, tasks: Sequence[Task], wrong: Sequence[str] = (), dead: Sequence[str] = ()) -> None:
        self.by_prompt = {task.prompt: task for task in tasks}
        self.wrong, self.dead = set(wrong), set(dead)
        self.live, self.most, self.seeds = 0, 0, set[int]()

    @contextlib.asynccontextmanager
    async def session(self, number: int | None = None) -> AsyncIterator[None]:
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            yield
        finally:
            self.live -= 1

    def prompt_tokens(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], effort: str) -> int | None:
        return None

    async def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        effort: str,
        sampling: Sampling,
        *,
        previous: Turn | None = None,
        max_tokens: int | None = None,
    ) -> Turn:
        await asyncio.sleep(0)
        self.seeds.add(sampling.seed)
        task = self.by_prompt[conversation[0].content]
        if task.id in self.dead:
            raise OverlandError("the backend is gone")
        message = task.oracle_conversation(effort)[len(conversation)]
        if not message.tool_calls and task.id in self.wrong:
            message = Message("assistant", "something else", message.reasoning)
        return Turn(message, usage=Usage(10, 7, len(message.reasoning), 0))


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return suite(["finance", "web"], 8)


def test_a_suite_is_held_out_and_spread_evenly_over_levels(tasks: list[Task]) -> None:
    assert [t.domain for t in tasks] == ["finance"] * 8 + ["web"] * 8
    assert [t.level for t in tasks[:8]] == [0, 1, 2, 3] * 2
    assert {t.split for t in tasks} == {"held_out"}
    assert len({t.id for t in tasks}) == 16
    assert [t.id for t in suite(["finance", "web"], 8)] == [t.id for t in tasks]
    assert not {t.id for t in suite(["finance"], 8, first_seed=2)} & {t.id for t in tasks}


async def test_every_task_is_scored_in_order_with_tokens_and_calls(tasks: list[Task]) -> None:
    wrong = [tasks[0].id, tasks[5].id, tasks[9].id]
    seen: list[Outcome] = []
    policy = Oracle(tasks, wrong=wrong)
    scores = await evaluate_policy(policy, tasks, "max", GREEDY, Limits(), concurrency=5, progress=seen.append)
    assert [o.task for o in scores.outcomes] == [t.id for t in tasks]
    assert [o.task for o in scores.outcomes if not o.success] == wrong
    assert sorted(o.task for o in seen) == sorted(t.id for t in tasks)
    assert policy.most == 5
    assert len(policy.seeds) == 16
    by_domain = scores.by_domain()
    assert (by_domain["finance"].success, by_domain["web"].success) == (6 / 8, 7 / 8)
    assert [o.calls for o in scores.outcomes] == [t.level + 1 for t in tasks]
    assert scores.overall.tokens == sum(7 * (t.level + 2) for t in tasks) / 16
    assert scores.overall.thinking == sum(o.thinking_tokens or 0 for o in scores.outcomes) / 16 > 0
    assert scores.overall.stops == {"answered": 16}
    assert scores.by_level()["finance"][0].n == 2


async def test_what_the_machinery_failed_is_not_a_failed_task(tasks: list[Task]) -> None:
    policy = Oracle(tasks, wrong=[tasks[1].id], dead=[tasks[2].id, tasks[3].id])
    scores = await evaluate_policy(policy, tasks[:8], "low", GREEDY)
    score = scores.overall
    assert (score.n, score.unjudged, score.success) == (6, 2, 5 / 6)
    assert [o.success for o in scores.outcomes[:4]] == [True, False, None, None]


async def test_an_evaluation_that_the_machine_failed_is_an_error_and_not_a_zero(tasks: list[Task]) -> None:
    some = await evaluate_policy(Oracle(tasks, dead=[tasks[2].id, tasks[3].id]), tasks[:8], "low", GREEDY)
    some.require_judged(0.0)
    some.require_judged(0.75)
    with pytest.raises(OverlandError, match=r"2 of 8 episodes could not be judged: the machine failed them.*\(.+\)"):
        some.require_judged(0.95)
    none = await evaluate_policy(Oracle(tasks, dead=[t.id for t in tasks[:2]]), tasks[:2], "low", GREEDY)
    with pytest.raises(OverlandError, match="2 of 2 episodes"):
        none.require_judged(0.0)
    Scores().require_judged(0.95)


async def test_records_are_what_the_outcomes_were_read_from(tasks: list[Task]) -> None:
    scores = await evaluate_policy(Oracle(tasks), tasks[:4], "high", GREEDY)
    stored = [json.loads(json.dumps(record)) for record in scores.records]
    assert [outcome(record) for record in stored] == scores.outcomes
    assert {o.effort for o in scores.outcomes} == {"high"}
    assert {o.split for o in scores.outcomes} == {"held_out"}


async def test_two_evaluations_are_compared_task_by_task(tasks: list[Task]) -> None:
    before = await evaluate_policy(Oracle(tasks, wrong=[t.id for t in tasks[:6]]), tasks, "low", GREEDY)
    after = await evaluate_policy(Oracle(tasks, wrong=[tasks[0].id, tasks[8].id]), tasks, "low", GREEDY)
    paired = compare(before, after)
    assert (paired.n, paired.gained, paired.lost) == (16, 5, 1)
    assert paired.difference.estimate == pytest.approx(4 / 16)
    assert "5 gained and 1 lost of 16" in difference(paired)
    other = await evaluate_policy(Oracle(tasks), tasks, "max", GREEDY)
    with pytest.raises(UsageError, match="share no judged task"):
        compare(before, other)


async def test_several_samples_give_pass_at_k(tasks: list[Task]) -> None:
    scores = await evaluate_policy(Oracle(tasks, wrong=[tasks[0].id]), tasks[:4], "low", GREEDY, samples=3)
    assert len(scores.outcomes) == 12
    assert scores.pass_at(1) == scores.pass_at(3) == 0.75
    with pytest.raises(UsageError, match="pass@4"):
        scores.pass_at(4)
    with pytest.raises(UsageError, match="tried more than once"):
        compare(scores, scores)


async def test_summary_and_tables_show_the_same_figures(tasks: list[Task]) -> None:
    from rich.console import Console

    low = await evaluate_policy(Oracle(tasks, wrong=[t.id for t in tasks[:4]]), tasks, "low", GREEDY)
    high = await evaluate_policy(Oracle(tasks), tasks, "max", GREEDY)
    held_out = comparison({"sft": low, "rl": high})
    assert held_out["sft"]["all"]["success"] == 0.75
    assert set(held_out["rl"]) == {"all", "finance", "web"}
    assert set((low + high).efforts()) == {"low", "max"}
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(comparison_table({"sft": low, "rl": high}))
    console.print(efforts_table(low + high))
    shown = console.export_text()
    assert "75% (51–90)" in shown
    assert "100% (81–100)" in shown
    assert "answered 16" in shown


async def test_wrong_input_is_said_once_and_before_anything_runs(tasks: list[Task]) -> None:
    with pytest.raises(UsageError, match="nothing to evaluate"):
        await evaluate_policy(Oracle(tasks), [], "low", GREEDY)
    with pytest.raises(UsageError, match="concurrency = 0"):
        await evaluate_policy(Oracle(tasks), tasks, "low", GREEDY, concurrency=0)
    with pytest.raises(UsageError, match="max_turns"):
        await evaluate_policy(Oracle(tasks), tasks, "low", GREEDY, Limits(max_turns=0))
    with pytest.raises(UsageError, match="at least one task"):
        suite(["web"], 0)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"traces": None, "task": None, "env": 3},
        {"traces": [{"nodes": [None, {"message": "x"}], "calls": [1], "rewards": [], "info": 7}]},
        {"traces": ["x"], "task": {"data": {"level": "one"}}},
        {"traces": [{"rewards": {"r": None, "s": {"score": float("nan")}}}]},
    ],
)
def test_a_malformed_record_is_not_judged_and_breaks_nothing(record: dict[str, object]) -> None:
    assert outcome(record).success is None


def test_a_record_that_verifiers_wrote_is_judged_by_its_weighted_sum() -> None:
    rewards = {"exact": {"score": 1.0, "weight": 0.75}, "format": {"score": 1.0, "weight": 0.25}}
    record = {"env": {"id": "addition_v1"}, "traces": [{"rewards": rewards, "stop_condition": "one"}]}
    judged = outcome(record)
    assert (judged.domain, judged.success, judged.reward, judged.stop) == ("addition_v1", True, 1.0, "one")
    rewards["exact"]["score"] = 0.0
    assert outcome(record).success is False
