"""A history sent back becomes the very ids that were sampled; anything else is rendered. Against XTML's own render."""

from __future__ import annotations

from dataclasses import replace

import openai
import pytest

from overland.chat import XTML, Message, Tokenizer, ToolCall, ToolSpec
from overland.serve.turns import Prompt, PromptBuilder, SampledTurns

from .harness import ANSWER_TURN, CALL_TURN, MODEL, WEATHER, ScriptedEngine, Served

TOOL = ToolSpec("weather", "Weather.", WEATHER)
USER = Message("user", "Weather in Paris and Zürich?")


@pytest.fixture
def spell(tokenizer: Tokenizer) -> Served:
    return Served("", ScriptedEngine(tokenizer), tokenizer)


@pytest.fixture
def builder(tokenizer: Tokenizer) -> PromptBuilder:
    return PromptBuilder(XTML(), tokenizer, SampledTurns(100_000))


def answered(turn: Message) -> Message:
    calls = tuple(replace(call, id=f"call_{n}") for n, call in enumerate(turn.tool_calls))
    return replace(turn, tool_calls=calls)


def results(turn: Message) -> list[Message]:
    return [Message("tool", "18°C", tool_call_id=call.id, name=call.name) for call in turn.tool_calls]


def sampled(builder: PromptBuilder, spell: Served, prompt: Prompt, turn: Message) -> list[int]:
    assert builder.remember(prompt, turn, spell.spell(turn))
    return [*prompt.ids, *spell.spell(turn)]


def test_a_first_prompt_is_the_templates_own(builder: PromptBuilder, tokenizer: Tokenizer) -> None:
    for choice in (None, "auto", "none", "required"):
        built = builder.build([USER], [TOOL], "high", tool_choice=choice)
        assert built.ids == XTML().prompt_ids([USER], tokenizer, [TOOL], "high", tool_choice=choice)


@pytest.mark.parametrize("choice", [None, "required"])
def test_the_next_prompt_begins_with_all_that_the_engine_saw(
    builder: PromptBuilder, spell: Served, tokenizer: Tokenizer, choice: str | None
) -> None:
    turn = answered(CALL_TURN)
    first = builder.build([USER], [TOOL], "high", tool_choice=choice)
    seen = sampled(builder, spell, first, turn)
    history = [USER, turn, *results(turn)]
    second = builder.build(history, [TOOL], "high")
    assert second.ids[: len(seen)] == seen
    assert second.reused == 1
    again = sampled(builder, spell, second, ANSWER_TURN)
    third = builder.build([*history, ANSWER_TURN, Message("user", "And?")], [TOOL], "high")
    assert third.ids[: len(again)] == again
    # What is new is rendered as the template would; as text the whole is what the template says.
    if choice is None:
        rendered = XTML().prompt_ids([*history, ANSWER_TURN, Message("user", "And?")], tokenizer, [TOOL], "high")
        assert tokenizer.decode(third.ids) == tokenizer.decode(rendered)
        assert third.ids != rendered


def test_a_change_of_effort_keeps_the_sampled_ids_behind_the_new_header(builder: PromptBuilder, spell: Served) -> None:
    turn = answered(CALL_TURN)
    sampled(builder, spell, builder.build([USER], [TOOL], "high", tool_choice="required"), turn)
    second = builder.build([USER, turn, *results(turn)], [TOOL], "low")
    head = builder.build([USER], [TOOL], "low").ids
    assert second.ids[: len(head) + len(spell.spell(turn))] == [*head, *spell.spell(turn)]


@pytest.mark.parametrize(
    "edit",
    [
        {"content": "Something else."},
        {"reasoning": "Other thoughts."},
        {"tool_calls": (ToolCall("call_0", "weather", '{"city": "Rome"}'), ToolCall("call_1", "weather", "{}"))},
    ],
)
def test_an_edited_turn_is_rendered(
    builder: PromptBuilder, spell: Served, tokenizer: Tokenizer, edit: dict[str, object]
) -> None:
    turn = answered(CALL_TURN)
    sampled(builder, spell, builder.build([USER], [TOOL], "high"), turn)
    history = [USER, replace(turn, **edit), *results(turn)]
    built = builder.build(history, [TOOL], "high")
    assert built.ids == XTML().prompt_ids(history, tokenizer, [TOOL], "high")
    assert (built.reused, built.rendered) == (0, 1)


def test_a_turn_of_another_conversation_is_not_taken(builder: PromptBuilder, spell: Served) -> None:
    sampled(builder, spell, builder.build([USER]), ANSWER_TURN)
    assert builder.build([Message("user", "Else?"), ANSWER_TURN, USER]).reused == 0


def test_other_spellings_of_the_same_arguments_are_the_same_turn(builder: PromptBuilder, spell: Served) -> None:
    turn = answered(CALL_TURN)
    seen = sampled(builder, spell, builder.build([USER], [TOOL]), turn)
    respelled = tuple(
        replace(call, id=f"toolu_{call.id}", arguments=arguments)
        for call, arguments in zip(
            turn.tool_calls, ['{"days":3,"city":"Paris"}', '{"city":"Z\\u00fcrich"}'], strict=True
        )
    )
    back = replace(turn, tool_calls=respelled)
    assert builder.build([USER, back, *results(back)], [TOOL]).ids[: len(seen)] == seen


def test_reasoning_that_a_client_lost_is_restored_also_before_a_rendered_turn(
    builder: PromptBuilder, spell: Served, tokenizer: Tokenizer
) -> None:
    seen = sampled(builder, spell, builder.build([USER]), ANSWER_TURN)
    foreign = Message("assistant", "From elsewhere.", "Hm.")
    built = builder.build([USER, replace(ANSWER_TURN, reasoning=""), USER, foreign, USER])
    assert built.ids[: len(seen)] == seen
    assert (built.reused, built.rendered) == (1, 1)
    told = XTML().prompt_ids([USER, ANSWER_TURN, USER, foreign, USER], tokenizer)
    assert tokenizer.decode(built.ids) == tokenizer.decode(told)


def test_a_turn_that_was_cut_is_not_remembered(builder: PromptBuilder, spell: Served) -> None:
    assert not builder.remember(builder.build([USER]), ANSWER_TURN, spell.spell(ANSWER_TURN)[:-1])


def test_the_store_forgets_the_least_recently_used_and_stays_bounded(spell: Served, tokenizer: Tokenizer) -> None:
    size = len(spell.spell(ANSWER_TURN))
    turns = SampledTurns(size * 4)  # two turns, two keys each
    builder = PromptBuilder(XTML(), tokenizer, turns)
    users = [Message("user", text) for text in "abc"]
    for user in users[:2]:
        sampled(builder, spell, builder.build([user]), ANSWER_TURN)
    assert builder.build([users[0], ANSWER_TURN, USER]).reused == 1
    assert builder.build([users[0], replace(ANSWER_TURN, reasoning=""), USER]).reused == 1
    sampled(builder, spell, builder.build([users[2]]), ANSWER_TURN)
    assert turns.tokens <= size * 4
    assert [builder.build([user, ANSWER_TURN, USER]).reused for user in users] == [1, 0, 1]


def test_over_http_the_second_prompt_holds_the_sampled_ids_when_the_client_drops_the_reasoning(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)
    tools = [TOOL.to_openai()]
    served.say(CALL_TURN, ANSWER_TURN)
    ask = [{"role": "user", "content": USER.content}]
    message = client.chat.completions.create(model=MODEL, messages=ask, tools=tools).choices[0].message
    calls = [call.model_dump() for call in message.tool_calls]
    history = [
        *ask,
        {"role": "assistant", "content": message.content, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": call["id"], "content": "18°C"} for call in reversed(calls)),
    ]
    client.chat.completions.create(model=MODEL, messages=history, tools=tools)
    prompt, again = served.prompts()
    said = served.spell(CALL_TURN)
    assert again[: len(prompt) + len(said)] == prompt + said
