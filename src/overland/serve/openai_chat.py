"""POST /v1/chat/completions: OpenAI's Chat Completions, whole and streamed.

Beyond OpenAI's own fields: `reasoning` and `reasoning_content` (both names are in use) carry the thinking, and
`return_token_ids` gives what trainers need: prompt ids, sampled ids and which of them were forced.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from overland.chat import Message, Part, ToolCall
from overland.chat.images import text_of
from overland.serve.choice import Answer, Choice, Event
from overland.serve.conversation import (
    Placed,
    check_answer,
    check_bias,
    check_conversation,
    check_stops,
    check_tools,
    choose_tools,
)
from overland.serve.errors import as_api_error, bad_request, error_body
from overland.serve.exploring import KEEP_ALIVE, Explored
from overland.serve.generation import Ask, Generator, Plan
from overland.serve.openai_schema import AllowedToolChoice, ChatMessage, ChatRequest, NamedToolChoice
from overland.serve.pictures import RequestPictures
from overland.serve.streaming import COMMENT, compact, merge, sse
from overland.serve.tokens import logprob_entries

FINISH = {"stop": "stop", "stop_string": "stop", "length": "length", "calls": "tool_calls"}


def read_request(body: ChatRequest, generator: Generator) -> Ask:
    """The request in neutral terms. Raises a 400 that names the field."""
    pictures = RequestPictures(generator)
    placed = [Placed(f"messages.{i}", _message(f"messages.{i}", one, pictures)) for i, one in enumerate(body.messages)]
    tools = check_tools(
        (f"tools.{i}.function.parameters", tool.function.name, tool.function.description, tool.function.parameters)
        for i, tool in enumerate(body.tools or [])
    )
    choice, named = _tool_choice(body)
    settings = generator.settings
    if body.n is not None and body.n > settings.max_choices:
        raise bad_request("n", f"{body.n} choices; at most {settings.max_choices}")
    answer_field, answer, shown = _answer(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs", "needs logprobs: true")
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options", "needs stream: true")
    return Ask(
        messages=check_conversation(placed),
        tools=tools,
        tool_choice=choice,
        parallel_calls=body.parallel_tool_calls is not False,
        effort=body.reasoning_effort,
        think_budget=body.thinking_token_budget,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=body.seed,
        stops=check_stops("stop", body.stop),
        choices=body.n or 1,
        named=choose_tools("tool_choice", tools, choice, named),
        strict=any(tool.function.strict for tool in body.tools or []),
        answer=answer,
        answer_field=answer_field,
        response_format=shown,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        logit_bias=check_bias("logit_bias", body.logit_bias, generator.tokenizer.vocab_size),
        top_logprobs=body.top_logprobs or 0,
        salt=body.cache_salt or "",
        pictures=pictures.by_hash,
        paths=None if body.explore is None else body.explore.paths,
        pick=None if body.explore is None else body.explore.pick,
    )


def _tool_choice(body: ChatRequest) -> tuple[str, list[str] | None]:
    """(auto, none or required; the only tools that may be called)."""
    if isinstance(body.tool_choice, NamedToolChoice):
        return "required", [body.tool_choice.function.name]
    if isinstance(body.tool_choice, AllowedToolChoice):
        allowed = body.tool_choice.allowed_tools
        return allowed.mode, [tool.function.name for tool in allowed.tools]
    return body.tool_choice or "auto", None


def _answer(body: ChatRequest) -> tuple[str, dict[str, Any] | None, dict[str, Any] | None]:
    """(the field that asks, the form of the response, the same as the template shows it)."""
    asked, form = body.structured_outputs, body.response_format
    if asked is not None:
        given = {"json_schema": asked.json_, "regex": asked.regex, "choice": asked.choice}
        named = {kind: value for kind, value in given.items() if value is not None}
        if len(named) != 1:
            raise bad_request("structured_outputs", "give exactly one of json, regex and choice")
        return "structured_outputs", check_answer("structured_outputs.json", named), None
    if form is None or form.type == "text":
        return "response_format", None, None
    if form.type == "json_object":
        return "response_format", {"json_object": True}, {"type": "json_object"}
    if form.json_schema is None:
        raise bad_request("response_format.json_schema", "the type json_schema needs it")
    schema = form.json_schema.schema_ or {}
    named = check_answer("response_format.json_schema.schema", {"json_schema": schema}) or {}
    return "response_format", named, {"type": "json_schema", "json_schema": {"schema": schema}}


def _parts(field: str, one: ChatMessage, pictures: RequestPictures) -> list[Part]:
    if not isinstance(one.content, list):
        return [one.content or ""]
    parts: list[Part] = []
    for place, part in enumerate(one.content):
        where = f"{field}.content.{place}.{part.type}"
        if part.type == "image_url":
            if one.role not in ("user", "tool"):
                raise bad_request(where, f"an image cannot stand in a {one.role} message; valid: user, tool")
            if part.image_url is None:
                raise bad_request(where, "this part needs it")
            parts.append(pictures.from_url(f"{where}.url", part.image_url.url))
            continue
        text = part.text if part.type == "text" else part.refusal
        if text is None:
            raise bad_request(where, "this part needs it")
        parts.append(text)
    return parts


def _message(field: str, one: ChatMessage, pictures: RequestPictures) -> Message:
    parts = _parts(field, one, pictures)
    content = text_of(parts)
    if one.role == "tool":
        if not one.tool_call_id:
            raise bad_request(f"{field}.tool_call_id", "a tool message needs the id of the call it answers")
        return Message.of_parts("tool", parts, tool_call_id=one.tool_call_id)
    if one.role == "assistant":
        calls = tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in one.tool_calls or [])
        if one.content is None and not calls:
            raise bad_request(f"{field}.content", "an assistant message needs content or tool_calls")
        thoughts = one.reasoning_content or one.reasoning
        if not thoughts:
            details = [part.get("text") for part in one.reasoning_details or []]
            thoughts = "".join(text for text in details if isinstance(text, str))
        return Message("assistant", content, thoughts, calls, name=one.name)
    if one.content is None:
        raise bad_request(f"{field}.content", f"a {one.role} message needs content")
    if one.tool_calls:
        raise bad_request(f"{field}.tool_calls", f"only an assistant calls tools, not a {one.role}")
    return Message.of_parts("system" if one.role == "developer" else one.role, parts, name=one.name)


class ChatAnswer:
    """One request's answer, in either form; ids and times are the same in both."""

    def __init__(self, generator: Generator, plan: Plan, body: ChatRequest, request_id: str) -> None:
        self._generator = generator
        self._plan = plan
        self._body = body
        self._request_id = request_id
        self._head = {
            "id": "chatcmpl-" + secrets.token_hex(12),
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": None,
        }
        self._chunk_head = compact({**self._head, "object": "chat.completion.chunk"})[:-1]
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._chunk_tail = ',"usage":null}' if with_usage else "}"

    async def whole(self) -> dict[str, Any]:
        """The chat.completion object."""
        choices = self._generator.choices(self._plan)
        async with aclosing(merge([choice.deltas() for choice in choices])) as deltas:
            async for _ in deltas:
                pass
        answer = {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(choice) for choice in choices],
            "usage": self._usage(choices),
        }
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = self._plan.prompt.ids
        return answer

    async def stream(self) -> AsyncGenerator[bytes]:
        """chat.completion.chunk events, the usage chunk where asked for, then [DONE]."""
        choices = self._generator.choices(self._plan)
        first = True
        try:
            async with aclosing(merge([choice.deltas() for choice in choices])) as deltas:
                async for number, delta in deltas:
                    if first:
                        for choice in choices:
                            yield self._chunk(choice.number, {"role": "assistant", "content": ""}, prompt=True)
                        first = False
                    if delta is KEEP_ALIVE:
                        yield COMMENT
                    tokens = {} if delta.token is None else self._tokens([delta.token], [delta.logprob], [delta.top])
                    for event in delta.events:
                        yield self._chunk(number, _delta(event), tokens)
                        tokens = {}
                    if tokens:
                        yield self._chunk(number, {}, tokens)
            for choice in choices:
                yield self._chunk(choice.number, {}, choice.answer.extras, finish=FINISH[choice.answer.finish])
            if self._body.stream_options is not None and self._body.stream_options.include_usage:
                yield sse(
                    {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage(choices)}
                )
        except Exception as error:
            failure = as_api_error(error, self._request_id)
            yield sse(error_body(failure, anthropic=False, request_id=self._request_id))
        yield sse("[DONE]")

    def _choice(self, choice: Choice | Explored) -> dict[str, Any]:
        answer = choice.answer
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.content if answer.content or not answer.calls else None,
            "refusal": None,
            "reasoning": answer.reasoning or None,
            "reasoning_content": answer.reasoning or None,
        }
        if answer.calls:
            message["tool_calls"] = [call.to_openai() for call in answer.calls]
        made: dict[str, Any] = {
            "index": choice.number,
            "message": message,
            "finish_reason": FINISH[answer.finish],
            "logprobs": None,
            **self._tokens(answer.ids, answer.logprobs, answer.top),
        }
        if self._body.return_token_ids:
            made |= {
                "prompt_token_ids": self._plan.prompt.ids,
                "forced_tokens": answer.forced,
                "weight_versions": answer.versions,
            }
        made |= answer.extras
        return made

    def _tokens(
        self, ids: list[int], logprobs: list[float], top: list[tuple[tuple[int, float], ...]]
    ) -> dict[str, Any]:
        """What a request wants to know about tokens: log-probabilities and ids of all that was sampled, in order."""
        made: dict[str, Any] = {}
        if self._body.logprobs:
            entries = logprob_entries(self._generator.tokenizer, ids, logprobs, top)
            made["logprobs"] = {"content": entries, "refusal": None}
        if self._body.return_token_ids:
            made["token_ids"] = ids
        return made

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        tokens: dict[str, Any] | None = None,
        finish: str | None = None,
        prompt: bool = False,
    ) -> bytes:
        """One chunk; what all of an answer's chunks have in common is encoded once."""
        choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": finish, **(tokens or {})}
        ids = ""
        if prompt and self._body.return_token_ids:
            choice["prompt_token_ids"] = self._plan.prompt.ids
            ids = f',"prompt_token_ids":{compact(self._plan.prompt.ids)}'
        return sse(f'{self._chunk_head},"choices":[{compact(choice)}]{ids}{self._chunk_tail}')

    @staticmethod
    def _usage(choices: Sequence[Choice | Explored]) -> dict[str, Any]:
        answers: list[Answer] = [choice.answer for choice in choices]
        prompt = answers[0].prompt_tokens
        completion = sum(answer.tokens for answer in answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": answers[0].cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": sum(answer.thought for answer in answers),
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


def _delta(event: Event) -> dict[str, Any]:
    if event.kind == "think":
        return {"reasoning": event.text, "reasoning_content": event.text}
    if event.kind == "text":
        return {"content": event.text}
    if event.kind == "call_start":
        function = {"name": event.name, "arguments": ""}
        return {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}
    if event.kind == "call_args":
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    return {}
