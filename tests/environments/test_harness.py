"""Episodes: the oracle's script scores 1 through the agent loop; tokens are accounted for; failures are not scores."""

from __future__ import annotations

from typing import Any

import pytest

from overland.agent import Limits
from overland.agent.sandbox.base import Sandbox
from overland.chat import Message, ToolCall
from overland.engine import Sampling
from overland.environments import LEVELS, STARTERS, Scoring, Task, load_environment, run_episode
from overland.environments.world import World
from overland.errors import UsageError


def script(task: Task, effort: str = "max") -> list[Message]:
    return [message for message in task.oracle_conversation(effort) if message.role == "assistant"]


@pytest.mark.parametrize("domain", STARTERS)
async def test_the_oracles_script_succeeds(domain: str, sandbox: Sandbox, scripted: Any, sampling: Sampling) -> None:
    taskset = load_environment(domain)
    for level in LEVELS:
        for kind in taskset.kinds[level]:
            task = taskset.task("held_out", level, 1, kind)
            policy = scripted(script(task))
            episode = await run_episode(task, policy, "max", sampling, sandbox=sandbox)
            trace = episode.traces[0]
            assert (episode.ok, episode.reward, episode.success, trace.stop) == (True, 1.0, True, "answered")
            assert trace.messages == task.oracle_conversation("max")
            assert trace.metrics["tool_calls"] == level + 1
            (branch,) = trace.branches
            assert branch.token_ids == policy.prompts[-1]
            assert sum(branch.mask) == trace.output_tokens
            assert all((value == -0.5) == drawn for value, drawn in zip(branch.logprobs, branch.mask, strict=True))


async def test_a_sandboxed_shell_does_what_the_oracle_shell_does(sandbox: Sandbox) -> None:
    for level in (0, 1, 2):
        for seed in range(4):
            task = load_environment("terminal").task("train", level, seed)
            wanted = [message.content for message in task.oracle_conversation("low") if message.role == "tool"]
            async with task.open_world(sandbox) as world:
                assert [await world.call(step.args) for step in task.steps] == wanted
                await world.stop()
                assert world.changes().as_expected


async def test_shell_errors_and_silence_are_short_observations(sandbox: Sandbox) -> None:
    task = load_environment("terminal").task("train", 0, 0, "read")
    async with task.open_world(sandbox) as world:
        assert await world.call({"cmd": "cat nothing.txt"}) == "cat: nothing.txt: No such file or directory"
        assert await world.call({"cmd": "true"}) == "ok"
        assert await world.call({"cmd": "false"}) == "error: exit 1"
        assert await world.call({"cmd": 5}) == "error: cmd must be a string"
        assert len(await world.call({"cmd": "seq 1 100000"})) < 300
        assert (await world.call({"cmd": "exit 3"})).startswith("error: ")
        assert await world.call(task.steps[0].args) == f"word {task.answer}"


async def test_forced_tokens_are_not_trained_on(scripted: Any, sampling: Sampling) -> None:
    task = load_environment("web").task("train", 1, 0)
    episode = await run_episode(task, scripted(script(task), forced=True), "high", sampling)
    (branch,) = episode.traces[0].branches
    assert sum(branch.forced) == 3
    assert not any(forced and drawn for forced, drawn in zip(branch.forced, branch.mask, strict=True))


async def test_a_prompt_that_does_not_continue_the_tokens_starts_a_branch(scripted: Any, sampling: Sampling) -> None:
    task = load_environment("web").task("train", 1, 0)
    policy = scripted(script(task), fork_at=1)
    episode = await run_episode(task, policy, "high", sampling)
    branches = episode.traces[0].branches
    assert [branch.token_ids for branch in branches] == [policy.prompts[0], policy.prompts[2]]
    assert sum(sum(branch.mask) for branch in branches) > 0
    # the turn that the second branch was only shown is not trained on twice
    drawn = sum(sum(branch.mask) for branch in branches)
    assert drawn == episode.traces[0].output_tokens


async def test_wrong_answers_cost_what_the_recipe_says(scripted: Any, sampling: Sampling) -> None:
    task = load_environment("web").task("train", 0, 0)
    wrong = [Message("assistant", "nonsense")]
    assert (await run_episode(task, scripted(wrong), "low", sampling)).reward == 0.0
    costly = await run_episode(task, scripted(wrong), "low", sampling, scoring=Scoring(wrong=0.5))
    assert (costly.reward, costly.success) == (-0.5, False)


async def test_an_episode_that_ran_out_of_turns_gave_no_answer(scripted: Any, sampling: Sampling) -> None:
    task = load_environment("finance").task("train", 2, 0)
    episode = await run_episode(task, scripted(script(task)), "low", sampling, Limits(max_turns=2))
    assert (episode.traces[0].stop, episode.reward, episode.ok) == ("turns", 0.0, True)


async def test_calls_that_cannot_be_run_are_observations(scripted: Any, sampling: Sampling) -> None:
    task = load_environment("finance").task("train", 0, 0)
    bad = [
        Message("assistant", "", tool_calls=(ToolCall("a", "sql", "{not json"),)),
        Message("assistant", "", tool_calls=(ToolCall("b", "sqll", "{}"),)),
        Message("assistant", "", tool_calls=(ToolCall("c", "sql", '{"question": "why"}'),)),
    ]
    episode = await run_episode(task, scripted([*bad, *script(task)]), "low", sampling)
    assert (episode.success, episode.traces[0].metrics["malformed"]) == (True, 3.0)


async def test_a_failing_machine_is_not_a_wrong_answer(
    scripted: Any, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    finance = load_environment("finance").task("train", 0, 0)
    terminal = load_environment("terminal").task("train", 0, 0)
    backend = await run_episode(finance, scripted([]), "low", sampling)
    no_sandbox = await run_episode(terminal, scripted(script(terminal)), "low", sampling)

    async def broken(self: World, args: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr(World, "call", broken)
    world = await run_episode(finance, scripted(script(finance)), "low", sampling)
    for episode, said in ((backend, "the script is over"), (no_sandbox, "need a sandbox"), (world, "disk full")):
        assert (episode.ok, episode.reward, episode.success) == (False, None, None)
        assert said in episode.traces[0].errors[0]["message"]
        assert all(reward.value is None for reward in episode.traces[0].dimensions.values())


async def test_an_empty_prompt_is_refused_before_the_first_step(scripted: Any, sampling: Sampling) -> None:
    import dataclasses

    task = dataclasses.replace(load_environment("web").task("train", 0, 0), prompt=" ")
    with pytest.raises(UsageError, match="prompt is empty"):
        await run_episode(task, scripted([]), "low", sampling)
