"""Declarations from Python functions."""

from __future__ import annotations

from typing import Literal

import pytest

from overland.agent import Tool
from overland.agent.text import cap, clean
from overland.chat import ToolCall
from overland.errors import UsageError


async def lookup(
    page: str, section: int = 0, kind: Literal["text", "table"] = "text", tags: list[str] | None = None
) -> str:
    """Read one section of a page.

    Longer words.

    Args:
        page: the page's name,
            as in its title
        section (int): which one
    """
    return f"{page}/{section}/{kind}/{tags}"


def test_a_signature_and_its_docstring_become_the_declaration():
    spec = Tool.of(lookup).spec
    assert spec.name == "lookup"
    assert spec.description == "Read one section of a page. Longer words."
    assert spec.parameters["required"] == ["page"]
    assert spec.parameters["additionalProperties"] is False
    properties = spec.parameters["properties"]
    assert properties["page"] == {"type": "string", "description": "the page's name, as in its title"}
    assert properties["section"] == {"type": "integer", "description": "which one", "default": 0}
    assert properties["kind"] == {"enum": ["text", "table"], "type": "string", "default": "text"}
    assert properties["tags"] == {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}


async def test_checked_arguments_reach_the_function():
    result = await Tool.of(lookup).call(ToolCall("1", "lookup", '{"page": "x", "tags": ["a"]}'))
    assert (result.text, result.code) == ("x/0/text/['a']", None)


async def test_a_plain_function_runs_and_its_value_becomes_json():
    def count(text: str) -> dict[str, int]:
        """Count."""
        return {"n": len(text)}

    assert (await Tool.of(count).call(ToolCall("1", "count", '{"text": "abc"}'))).text == '{"n": 3}'


def test_a_parameter_without_a_type_is_refused():
    def bad(x) -> str:
        return x

    with pytest.raises(UsageError, match="parameter x has no type"):
        Tool.of(bad)


def test_a_type_that_json_cannot_carry_is_refused():
    def bad(x: bytes) -> str:
        return ""

    with pytest.raises(UsageError, match="bytes"):
        Tool.of(bad)


def test_lone_surrogates_are_replaced_and_good_text_is_kept():
    assert clean("a\ud800b") == "a?b"
    assert clean("naïve 🎈") == "naïve 🎈"


def test_cap_counts_what_it_leaves_out():
    assert cap("abc", 3) == "abc"
    assert cap("0123456789", 4) == "01\n[... 6 of 10 characters left out ...]\n89"
