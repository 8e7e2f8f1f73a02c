"""Chat Completions: a request from a conversation, a turn from an answer.

Source: reference of the OpenAI API; `reasoning_content` as DeepSeek, Kimi, SGLang and vLLM have it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from overland.agent.text import clean
from overland.agent.turn import Turn, Usage
from overland.chat import Message, ToolSpec
from overland.errors import OverlandError, UsageError

if TYPE_CHECKING:
    from overland.engine import Sampling


def address(base_url: str) -> str:
    return f"{base_url}/chat/completions"


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def request(
    model: str,
    conversation: Sequence[Message],
    states: Sequence[Any],
    tools: Sequence[ToolSpec],
    effort: str,
    sampling: Sampling,
    max_tokens: int,
) -> dict[str, Any]:
    """The request's body. `states` are not needed here: reasoning is text of the message itself."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in conversation],
        "reasoning_effort": effort,
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
    }
    if sampling.top_p < 1.0:
        body["top_p"] = sampling.top_p
    if tools:
        body["tools"] = [tool.to_openai() for tool in tools]
    return body


def _message(message: Message) -> dict[str, Any]:
    data = message.to_openai()
    if message.role == "assistant":
        data["reasoning_content"] = message.reasoning  # the key is sent even when empty: some servers refuse without
    return data


def turn(data: dict[str, Any]) -> Turn:
    """Raises OverlandError where the answer has no choice or one that cannot be read."""
    try:
        choice = data["choices"][0]
        said = choice["message"]
        message = Message.from_openai({**said, "role": "assistant", "content": said.get("content")})
    except (KeyError, IndexError, TypeError, UsageError) as error:
        raise OverlandError(f"the endpoint's answer cannot be read: {type(error).__name__}: {error}") from None
    used = data.get("usage") or {}
    return Turn(
        message=Message("assistant", clean(message.content), clean(message.reasoning), message.tool_calls),
        finish_reason="length" if choice.get("finish_reason") == "length" else "stop",
        usage=Usage(
            int(used.get("prompt_tokens") or 0),
            int(used.get("completion_tokens") or 0),
            int((used.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0),
            int((used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        ),
        parse_errors=broken(choice),
        continues=not any(one.startswith("ended_by_eos") for one in broken(choice)),
        policy_version=data.get("system_fingerprint") or data.get("model"),
    )


def broken(data: dict[str, Any]) -> tuple[str, ...]:
    """What broke the turn's format, where the endpoint says so (this project's server does)."""
    told = data.get("parse_errors")
    return tuple(clean(str(one)) for one in told) if isinstance(told, list) else ()


def is_context_error(status: int, text: str) -> bool:
    return status in (400, 413, 422) and ("context_length_exceeded" in text or "maximum context length" in text)


def context_numbers(text: str) -> tuple[int, int]:
    """(prompt, context) as far as the message names them: the larger number is the prompt."""
    numbers = sorted(int(number) for number in re.findall(r"\d{2,}", text))
    return (numbers[-1], numbers[0]) if len(numbers) >= 2 else (0, numbers[0] if numbers else 0)
