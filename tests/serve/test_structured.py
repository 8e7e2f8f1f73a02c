"""Structured output on a random-weight model: whatever it says has the form that was asked for, thinking included."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.chat import XTML, Tokenizer, ToolSpec, check_call
from overland.chat.xtml_grammar import turn_grammar
from overland.errors import UsageError
from overland.serve.grammar import Grammars

SHAPE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
EVERY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "code": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]{1,3}$"},
        "unit": {"enum": ["c", "f", None, 3]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "deep": {"$ref": "#/$defs/point"},
        "maybe": {"type": ["boolean", "null"]},
    },
    "required": ["city", "code", "unit", "days"],
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": -5, "maximum": 5}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
TOOLS = [
    ToolSpec('odd "name" & co', "", EVERY),
    ToolSpec("plain", "", {"type": "object", "properties": {}}),
    ToolSpec(
        "choice",
        "",
        {
            "type": "object",
            "oneOf": [{"properties": {"a": {"type": "boolean"}}, "required": ["a"]}],
            "additionalProperties": False,
            "properties": {"a": {"type": "boolean"}},
        },
    ),
]


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Go."}], max_tokens=400, reasoning_effort="low", **options
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema_answer_fits_its_schema(client: openai.OpenAI, seed: int, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SHAPE}}
    answer = ask(client, response_format=form, seed=seed, stream=stream)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
    else:
        text = answer.choices[0].message.content
        assert answer.choices[0].message.reasoning  # the form begins after the thinking, here ended by its budget
    jsonschema.validate(json.loads(text), SHAPE)


def test_a_choice_and_a_regular_expression(client: openai.OpenAI) -> None:
    said = {
        ask(client, seed=i, extra_body={"structured_outputs": {"choice": ["yes", "no/never"]}})
        .choices[0]
        .message.content
        for i in range(6)
    }
    assert said <= {"yes", "no/never"}
    date = (
        ask(client, extra_body={"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}/(x|y)"}}).choices[0].message.content
    )
    assert re.fullmatch("[0-9]{4}-[0-9]{2}/(x|y)", date)


def test_a_named_and_a_strict_tool_get_arguments_that_fit(client: openai.OpenAI) -> None:
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": EVERY, "strict": True}} for name in ("one", "two")
    ]
    answer = ask(client, tools=tools, tool_choice={"type": "function", "function": {"name": "two"}}, seed=1)
    calls = answer.choices[0].message.tool_calls
    assert {call.function.name for call in calls} == {"two"}
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), EVERY)


def random_walk(
    tokenizer: Tokenizer, grammars: Grammars, lark: str, thinking: bool, rng: random.Random, most: int = 400
) -> list[int]:
    """Ids that a grammar allows, markers as often as text, so that free text ends."""
    constraint, ids = grammars.constraint(lark, thinking), []
    while len(ids) < most:
        allowed = constraint.allowed(tokenizer.vocab_size).nonzero()[:, 0].tolist()
        markers = [token for token in allowed if tokenizer.special_name(token)]
        ids.append(rng.choice(markers if markers and rng.random() < 0.5 else allowed))
        constraint.advance(ids[-1])
        assert not constraint.error
        if ids[-1] == tokenizer.special("<|end_of_msg|>"):
            break
    return ids


@given(rng=st.randoms(use_true_random=False), thinking=st.booleans(), parallel=st.booleans())
@settings(max_examples=20, deadline=None)
def test_every_turn_of_a_grammar_is_read_without_an_error(
    tokenizer: Tokenizer, rng: random.Random, thinking: bool, parallel: bool
) -> None:
    lark = turn_grammar(TOOLS, calls="required", thinking=thinking, parallel=parallel)
    parser = XTML().parser(tokenizer, thinking=thinking)
    parser.feed(random_walk(tokenizer, Grammars(tokenizer), lark, thinking, rng))
    turn = parser.finish()
    if turn.complete:  # else it ran into the walk's limit
        assert turn.errors == ()
        assert 1 <= len(turn.tool_calls) <= (16 if parallel else 1)
        for call in turn.tool_calls:
            check_call(call, TOOLS)


def test_a_fork_of_a_constraint_goes_its_own_way(tokenizer: Tokenizer) -> None:
    one = Grammars(tokenizer).constraint(turn_grammar(answer={"choice": ["yes", "no"]}, thinking=False), False)
    two = one.copy()
    one.advance(tokenizer.encode("y")[0])
    vocab = tokenizer.vocab_size
    assert two.allowed(vocab)[tokenizer.encode("n")[0]]
    assert not one.allowed(vocab)[tokenizer.encode("n")[0]]


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {"$ref": "https://example.org/schema"}}},
        {"properties": {"a": {"$ref": "#/$defs/loop"}}, "$defs": {"loop": {"$ref": "#/$defs/loop"}}},
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="ref"):
        turn_grammar([ToolSpec("f", "", parameters)], calls="auto")
