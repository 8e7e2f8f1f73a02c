"""Every way an episode can end, and every way a call can be malformed, with a policy that says what is written here."""

from __future__ import annotations

import pytest

from overland.agent import ContextFull, Limits, Policy, Tool, Trajectory, run_loop
from overland.chat import Message
from overland.errors import OverlandError, UsageError

from .scripted import Sampling, ScriptedPolicy, says

TASK = [Message("user", "add them up")]


async def add(a: int, b: int = 0) -> str:
    """Add two numbers."""
    return str(a + b)


async def clock() -> str:
    """The time, always the same."""
    return "noon"


ADD, CLOCK = Tool.of(add), Tool.of(clock)


async def play(
    *turns: object, limits: Limits | None = None, tools: tuple[Tool, ...] = (ADD, CLOCK), **policy: object
) -> Trajectory:
    scripted = ScriptedPolicy(*turns, **policy)  # type: ignore[arg-type]
    return await run_loop(scripted, TASK, tools, sampling=Sampling(), limits=limits)  # type: ignore[arg-type]


def test_scripted_policy_has_the_face_of_a_policy():
    assert isinstance(ScriptedPolicy(says("x")), Policy)


async def test_a_turn_without_calls_is_the_answer():
    done = await play(says("", ("add", '{"a": 1, "b": 2}')), says("it is 3"))
    assert (done.stop, done.answer) == ("answered", "it is 3")
    assert [m.role for m in done.messages] == ["user", "assistant", "tool", "assistant"]
    assert done.messages[2].content == "3"
    assert done.messages[2].tool_call_id == "call_1"


async def test_turn_limit_ends_the_episode():
    done = await play(*(says("", ("add", f'{{"a": {i}}}')) for i in range(9)), limits=Limits(max_turns=4))
    assert done.stop == "turns"
    assert len(done.turns) == 4
    assert done.answer is None


async def test_output_budget_is_handed_down_and_ends_the_episode():
    policy = ScriptedPolicy(
        says("", ("add", '{"a": 1}'), tokens=30), says("cut", tokens=20, finish_reason="length"), says("never")
    )
    done = await run_loop(policy, TASK, [ADD], sampling=Sampling(), limits=Limits(output_tokens=50))  # type: ignore[arg-type]
    assert [asked["max_tokens"] for asked in policy.asked] == [50, 20]
    assert done.stop == "budget"


async def test_budget_used_up_by_a_whole_turn_ends_before_the_next():
    done = await play(says("", ("add", '{"a": 1}'), tokens=50), says("never"), limits=Limits(output_tokens=50))
    assert done.stop == "budget"
    assert len(done.turns) == 1


async def test_a_turn_cut_at_its_own_limit_is_not_an_answer():
    done = await play(says("half of an ans", tokens=100, finish_reason="length"))
    assert done.stop == "length"
    assert done.answer is None


async def test_context_full_later_ends_the_episode():
    done = await play(says("", ("add", '{"a": 1}')), ContextFull(90, 64))
    assert done.stop == "context"


async def test_context_used_up_ends_the_episode():
    turn = says("", ("add", '{"a": 1}'), tokens=40)
    turn.usage = type(turn.usage)(prompt_tokens=30, completion_tokens=40)
    done = await play(turn, limits=Limits(context_tokens=70))
    assert done.stop == "context"


async def test_deadline_keeps_what_was_done():
    policy = ScriptedPolicy(says("", ("add", '{"a": 1}')), says("late"))
    policy.seconds = 0.2
    done = await run_loop(policy, TASK, [ADD], sampling=Sampling(), limits=Limits(wall_seconds=0.3))  # type: ignore[arg-type]
    assert done.stop == "deadline"
    assert len(done.turns) == 1


async def test_same_call_same_result_is_nudged_then_stopped():
    done = await play(says("", ("clock", "{}")))
    assert done.stop == "stuck"
    observations = [m.content for m in done.messages if m.role == "tool"]
    assert len(observations) == 5
    assert "identical" not in observations[1]
    assert "the last 3 rounds were identical" in observations[2]


async def test_two_calls_in_turn_are_stuck_too():
    a, b = says("", ("add", '{"a": 1}')), says("", ("add", '{"a": 2}'))
    assert (await play(*[a, b] * 8)).stop == "stuck"


async def test_a_polling_tool_may_be_asked_again():
    polling = Tool.of(clock, polling=True)
    done = await play(*[says("", ("clock", "{}"))] * 8, says("done"), tools=(polling,))
    assert done.stop == "answered"


async def test_a_failing_backend_is_an_error_and_keeps_the_episode():
    done = await play(says("", ("add", '{"a": 1}')), OverlandError("connection refused"))
    assert done.stop == "error"
    assert done.error is not None
    assert "connection refused" in done.error
    assert len(done.turns) == 1


async def test_a_turn_that_cannot_be_continued_is_malformed():
    done = await play(says("", ("add", '{"a": 1}'), continues=False), says("never"))
    assert done.stop == "malformed"


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("add", '{"a": 1', "bad_json"),
        ("add", "[1, 2]", "not_an_object"),
        ("add", '"1"', "not_an_object"),
        ("add", '{"a": NaN}', "bad_json"),
        ("add", '{"a": "one"}', "schema"),
        ("add", '{"b": 1}', "schema"),
        ("add", '{"a": 1, "c": 2}', "schema"),
        ("ad", '{"a": 1}', "unknown_tool"),
        ("", "{}", "unknown_tool"),
        ("add", '{"a": ' + "9" * 300_000 + "}", "too_long"),
    ],
)
async def test_a_malformed_call_is_an_observation(name: str, arguments: str, code: str):
    done = await play(says("", (name, arguments), ("add", '{"a": 2}')), says("done"))
    assert done.stop == "answered"
    first, second = [m for m in done.messages if m.role == "tool"]
    assert code in first.content
    assert len(first.content) < 1000
    assert second.content == "2"  # its sibling ran
    assert done.malformed == {code: 1}
    assert [record.code for record in done.calls] == [code, None]


async def test_a_turn_that_cannot_be_read_is_told_so():
    done = await play(says("", parse_errors=("bad_tag: call tol=",)), says("done"))
    assert done.stop == "answered"
    assert "bad_tag" in done.messages[2].content
    assert done.malformed == {"unreadable": 1}


async def test_a_tool_that_raises_or_hangs_is_an_observation():
    async def breaks() -> str:
        """Break."""
        raise RuntimeError("disk on fire \ud800")

    async def hangs() -> str:
        """Hang."""
        import asyncio

        await asyncio.Event().wait()
        return ""

    tools = (Tool.of(breaks), Tool.of(hangs, seconds=0.05))
    done = await play(says("", ("breaks", "{}"), ("hangs", "{}")), says("done"), tools=tools)
    first, second = [m.content for m in done.messages if m.role == "tool"]
    assert "disk on fire ?" in first
    assert "stopped after 0.05 seconds" in second
    assert [record.code for record in done.calls] == ["tool_error", "timeout"]


async def test_results_are_capped_with_counts():
    async def flood() -> str:
        """Flood."""
        return "x" * 50_000

    done = await play(says("", ("flood", "{}")), says("done"), tools=(Tool.of(flood, result_characters=1000),))
    assert "[... 49000 of 50000 characters left out ...]" in done.messages[2].content
    assert len(done.messages[2].content) < 1100


@pytest.mark.parametrize("messages", [[], [Message("user", " \n")], [Message("system", "you are an agent")]])
async def test_an_empty_task_is_refused_before_the_first_step(messages: list[Message]):
    policy = ScriptedPolicy(says("x"))
    with pytest.raises(UsageError, match="prompt is empty"):
        await run_loop(policy, messages, [], sampling=Sampling())  # type: ignore[arg-type]
    assert not policy.asked


async def test_a_prompt_longer_than_the_context_names_both_numbers():
    policy = ScriptedPolicy(says("x"), context_length=512, prompt=600)
    with pytest.raises(UsageError, match=r"600 tokens .* holds 512"):
        await run_loop(policy, TASK, [], sampling=Sampling())  # type: ignore[arg-type]
    assert not policy.asked


async def test_two_tools_of_one_name_are_refused():
    with pytest.raises(UsageError, match="same name: add"):
        await play(says("x"), tools=(ADD, ADD))


async def test_messages_are_only_appended_to():
    policy = ScriptedPolicy(*(says("", ("add", f'{{"a": {i}}}')) for i in range(3)), says("done"))
    await run_loop(policy, TASK, [ADD], sampling=Sampling())  # type: ignore[arg-type]
    for earlier, later in zip(policy.asked, policy.asked[1:], strict=False):
        assert later["conversation"][: len(earlier["conversation"])] == earlier["conversation"]
