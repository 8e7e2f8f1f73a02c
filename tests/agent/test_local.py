"""A policy over an engine in the process: ids kept, thinking bounded, and an order that does not depend on time."""

from __future__ import annotations

import asyncio
import inspect
import random
import textwrap
from dataclasses import dataclass, field
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers

from overland.agent import ContextFull, Limits, LocalPolicy, Tool, Trajectory, run_loop
from overland.chat import XTML, Message, Tokenizer, ToolCall, build_tokenizer
from overland.engine import Budget, Engine, Generation, Sampling
from overland.errors import OverlandError, UsageError
from overland.model import Decoder, preset


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([inspect.getsource(textwrap)], trainer)
    return build_tokenizer(backend)


def answer_ids(tokenizer: Tokenizer, content: str, *calls: ToolCall, thought: str = "hm") -> list[int]:
    """What a model would sample after the generation prefix to say this."""
    template = XTML()
    start = [Message("user", "x")]
    whole = template.prompt_ids([*start, Message("assistant", content, thought, calls)], tokenizer, generate=False)
    return whole[len(template.prompt_ids(start, tokenizer)) :]


@dataclass
class ScriptedEngine:
    """Has the engine's face; each submitted request plays the next script, one token a step."""

    scripts: list[list[int]]
    context_length: int = 4096
    fails: bool = False
    submitted: list[Generation] = field(default_factory=list)
    waves: list[int] = field(default_factory=list)
    cancelled: int = 0
    live: list[tuple[Generation, list[int]]] = field(default_factory=list)

    def submit(self, ids: list[int], sampling: Sampling, budget: Budget | None = None, salt: str = "") -> Generation:
        generation = Generation(list(ids), sampling, budget, salt, version=3)
        self.live.append((generation, list(self.scripts[len(self.submitted) % len(self.scripts)])))
        self.submitted.append(generation)
        return generation

    def step(self) -> list[Any]:
        if self.fails:
            raise OverlandError("the engine broke")
        self.waves.append(len(self.live))
        for generation, script in self.live:
            generation.accept(script.pop(0), -0.5, False, self.context_length)
        self.live = [pair for pair in self.live if not pair[0].done]
        return []

    def cancel(self, generation: Generation) -> None:
        self.cancelled += 1
        generation.finish_reason = "cancelled"
        self.live = [pair for pair in self.live if pair[0] is not generation]


async def add(a: int, b: int = 0) -> str:
    """Add."""
    return str(a + b)


TASK = [Message("user", "sum?")]
CALL = ToolCall("call_1", "add", '{"a": 1, "b": 2}')


async def test_the_next_prompt_begins_with_every_sampled_token(tokenizer: Tokenizer):
    scripts = [answer_ids(tokenizer, "", CALL), answer_ids(tokenizer, "3")]
    policy = LocalPolicy(ScriptedEngine(scripts), tokenizer)  # type: ignore[arg-type]
    done = await run_loop(policy, TASK, [Tool.of(add)], sampling=Sampling(seed=5))
    assert (done.stop, done.answer) == ("answered", "3")
    first, second = done.turns
    assert first.ids == scripts[0]
    assert first.message.reasoning == "hm"
    assert first.message.tool_calls[0].parsed() == {"a": 1, "b": 2}
    whole = [*(first.prompt_ids or []), *(first.ids or [])]
    assert (second.prompt_ids or [])[: len(whole)] == whole
    assert second.fork is None
    # The bridge says what rendering the whole conversation says.
    rendered = XTML().prompt_ids(done.messages[:3], tokenizer, tools=[Tool.of(add).spec], effort="high")
    assert second.prompt_ids == rendered
    assert second.policy_version == 3
    assert second.usage.reasoning_tokens == len(tokenizer.encode("hm"))


async def test_each_turn_draws_from_its_own_seed(tokenizer: Tokenizer):
    engine = ScriptedEngine([answer_ids(tokenizer, "", CALL), answer_ids(tokenizer, "3")])
    await run_loop(LocalPolicy(engine, tokenizer), TASK, [Tool.of(add)], sampling=Sampling(seed=5))  # type: ignore[arg-type]
    assert engine.submitted[0].sampling.seed != engine.submitted[1].sampling.seed


async def test_an_edited_conversation_forks_and_says_so(tokenizer: Tokenizer):
    policy = LocalPolicy(ScriptedEngine([answer_ids(tokenizer, "3")]), tokenizer)  # type: ignore[arg-type]
    first = await policy.respond(TASK, [], "high", Sampling())
    edited = [*TASK, Message("assistant", "4"), Message("user", "sure?")]
    second = await policy.respond(edited, [], "high", Sampling(), previous=first)
    assert second.fork is not None
    assert "not what the turn before said" in second.fork


async def test_a_thinking_budget_is_handed_to_the_engine(tokenizer: Tokenizer):
    engine = ScriptedEngine([answer_ids(tokenizer, "3")])
    policy = LocalPolicy(engine, tokenizer, think_budget={"low": 0, "high": 8, "max": None})  # type: ignore[arg-type]
    for effort in ("low", "high", "max"):
        await policy.respond(TASK, [], effort, Sampling())
    close = tuple(XTML().think_close_ids(tokenizer))
    assert [g.budget for g in engine.submitted] == [Budget(0, close[0], close), Budget(8, close[0], close), None]


async def test_the_tightest_bound_on_tokens_holds(tokenizer: Tokenizer):
    engine = ScriptedEngine([answer_ids(tokenizer, "3")])
    policy = LocalPolicy(engine, tokenizer)  # type: ignore[arg-type]
    length = policy.prompt_tokens(TASK, [], "high") or 0
    for context, asked, expected in ((4096, None, 50), (4096, 7, 7), (length + 3, None, 3)):
        engine.context_length = context
        await policy.respond(TASK, [], "high", Sampling(max_tokens=50), max_tokens=asked)
        assert engine.submitted[-1].sampling.max_tokens == expected
    engine.context_length = length
    with pytest.raises(ContextFull):
        await policy.respond(TASK, [], "high", Sampling())


async def test_a_prompt_longer_than_the_engines_context_is_refused_before_the_first_step(tokenizer: Tokenizer):
    engine = ScriptedEngine([[]], context_length=20)
    with pytest.raises(UsageError, match="holds 20"):
        await run_loop(LocalPolicy(engine, tokenizer), TASK, [], sampling=Sampling())  # type: ignore[arg-type]
    assert not engine.submitted


async def test_a_turn_that_ends_without_its_end_marker_stops_the_episode(tokenizer: Tokenizer):
    ids = answer_ids(tokenizer, "", CALL)
    engine = ScriptedEngine([[*ids[:-1], tokenizer.special("[EOS]")]])
    done = await run_loop(LocalPolicy(engine, tokenizer), TASK, [Tool.of(add)], sampling=Sampling())  # type: ignore[arg-type]
    assert done.stop == "malformed"


async def test_the_engine_steps_only_when_every_session_waits(tokenizer: Tokenizer):
    engine = ScriptedEngine([answer_ids(tokenizer, "3")])
    policy = LocalPolicy(engine, tokenizer)  # type: ignore[arg-type]
    order: list[int] = []

    async def episode(number: int) -> None:
        async with policy.session(number):
            for _ in range(3):
                for _ in range(random.randrange(6)):  # tools that take their time
                    await asyncio.sleep(0)
                order.append(len(engine.waves))
                await policy.respond(TASK, [], "high", Sampling(seed=number))

    await asyncio.gather(*(episode(number) for number in (2, 0, 3, 1)))
    assert set(engine.waves) == {4}
    # Whoever came first, requests go in by session number.
    seeds = [generation.sampling.seed for generation in engine.submitted]
    assert seeds == sorted(seeds[:4]) * 3


async def test_a_session_that_ends_does_not_hold_the_others_up(tokenizer: Tokenizer):
    policy = LocalPolicy(ScriptedEngine([answer_ids(tokenizer, "3")]), tokenizer)  # type: ignore[arg-type]

    async def episode(turns: int) -> None:
        async with policy.session():
            for _ in range(turns):
                await policy.respond(TASK, [], "high", Sampling())

    async with asyncio.timeout(5):
        await asyncio.gather(episode(1), episode(5), episode(0))


async def test_cancelling_frees_the_row_and_the_others_go_on(tokenizer: Tokenizer):
    engine = ScriptedEngine([answer_ids(tokenizer, "3" * 50)])
    policy = LocalPolicy(engine, tokenizer)  # type: ignore[arg-type]

    async def episode() -> Any:
        async with policy.session():
            return await policy.respond(TASK, [], "high", Sampling())

    first, second = asyncio.create_task(episode()), asyncio.create_task(episode())
    while len(engine.waves) < 5:
        await asyncio.sleep(0)
    first.cancel()
    assert (await second).message.content == "3" * 50
    with pytest.raises(asyncio.CancelledError):
        await first
    assert engine.cancelled == 1


async def test_a_broken_engine_ends_every_episode_as_an_error(tokenizer: Tokenizer):
    policy = LocalPolicy(ScriptedEngine([[0]], fails=True), tokenizer)  # type: ignore[arg-type]

    async def episode() -> Trajectory:
        async with policy.session():
            return await run_loop(policy, TASK, [], sampling=Sampling())

    async with asyncio.timeout(5):
        done = await asyncio.gather(episode(), episode())
    assert [trajectory.stop for trajectory in done] == ["error", "error"]


async def test_the_same_seeds_give_the_same_tokens_whatever_tools_cost(tokenizer: Tokenizer):
    """With a real engine and a model that knows nothing: two runs, tools slow in one and quick in the other."""
    torch.manual_seed(0)
    model = Decoder(preset("nano", vocab_size=tokenizer.vocab_size)).eval()

    async def run(slow: bool) -> list[list[int] | None]:
        policy = LocalPolicy(Engine(model, context_length=512), tokenizer, think_budget={"low": 4})

        async def episode(number: int) -> Trajectory:
            async with policy.session(number):
                if slow:
                    for _ in range(number * 3):
                        await asyncio.sleep(0)
                limits = Limits(max_turns=2, output_tokens=24)
                return await run_loop(
                    policy, TASK, [], effort="low", sampling=Sampling(seed=number, max_tokens=12), limits=limits
                )

        done = await asyncio.gather(*(episode(number) for number in range(4)))
        assert all(any(turn.forced or []) for trajectory in done for turn in trajectory.turns)
        return [turn.ids for trajectory in done for turn in trajectory.turns]

    assert await run(slow=False) == await run(slow=True)
