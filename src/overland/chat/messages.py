"""A conversation as plain data, in the field's own vocabulary (OpenAI chat messages, `reasoning_content` included)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from overland.chat.images import ImagePart, Part, text_of
from overland.chat.tools import ToolCall, ToolSpec
from overland.errors import UsageError

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Message:
    """One message. `reasoning` and `tool_calls` belong to assistants, `tool_call_id` to tool results.

    name: the author (system, user, assistant) or the tool (tool results; optional where the id matches a call).
    tools: for system messages only: tools that become available from here on, beside those declared at the start.
    parts: the content in order with the pictures in it, where there are any; `content` is then the words alone.
    """

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    parts: tuple[Part, ...] = ()

    @classmethod
    def of_parts(cls, role: Role, parts: Sequence[Part], **fields: Any) -> Message:
        """A message of words and pictures in order; without pictures it is one of words alone."""
        pictures = any(isinstance(part, ImagePart) for part in parts)
        return cls(role, text_of(parts), parts=tuple(parts) if pictures else (), **fields)

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """The pictures of its content, in order."""
        return tuple(part for part in self.parts if isinstance(part, ImagePart))

    def to_openai(self) -> dict[str, Any]:
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.parts:
            words = (
                {"type": "text", "text": part} if isinstance(part, str) else part.to_openai() for part in self.parts
            )
            data["content"] = list(words)
        if self.reasoning:
            data["reasoning_content"] = self.reasoning
        if self.tool_calls:
            data["tool_calls"] = [call.to_openai() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            data["name"] = self.name
        if self.tools:
            data["tools"] = [tool.to_openai() for tool in self.tools]
        return data

    @classmethod
    def from_openai(cls, data: Mapping[str, Any]) -> Message:
        """Reads a Chat Completions message.

        Accepts `reasoning_content` or `reasoning`, content as text or as a list of text parts, the role
        "developer" as "system". Raises UsageError naming the field for anything else.
        """
        role = data.get("role")
        if role == "developer":
            role = "system"
        if role not in ROLES:
            raise UsageError(f"messages[].role is {role!r}; valid: {', '.join(ROLES)}")
        reasoning = data.get("reasoning_content") or data.get("reasoning") or ""
        if not isinstance(reasoning, str):
            raise UsageError("messages[].reasoning_content must be text")
        call_id = data.get("tool_call_id")
        name = data.get("name")
        return cls(
            role=cast(Role, role),
            content=_text_of(data.get("content")),
            reasoning=reasoning,
            tool_calls=tuple(ToolCall.from_openai(call) for call in data.get("tool_calls") or ()),
            tool_call_id=None if call_id is None else str(call_id),
            name=None if name is None else str(name),
            tools=tuple(ToolSpec.from_openai(tool) for tool in data.get("tools") or ()),
        )


def _text_of(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text_of_part(part) for part in content)
    raise UsageError(f"messages[].content must be text or a list of text parts, not {type(content).__name__}")


def _text_of_part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise UsageError(f"messages[].content[].type {kind!r} is not supported; valid: text")
