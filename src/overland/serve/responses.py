"""POST /v1/responses: OpenAI's Responses API, whole and streamed.

The thinking is a reasoning item with its text (`reasoning_text`); there are no summaries, since nothing here writes
them. The items of a stream and of the whole response are the same objects with the same ids: both come from `_Items`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from overland.serve.choice import Answer, Delta, Event
from overland.serve.errors import as_api_error
from overland.serve.exploring import KEEP_ALIVE
from overland.serve.generation import Generator, Plan
from overland.serve.responses_read import custom_input
from overland.serve.responses_schema import ResponsesRequest
from overland.serve.signature import ThinkingSigner
from overland.serve.streaming import COMMENT, sse
from overland.serve.tokens import logprob_entries

LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"


class ResponseAnswer:
    """One request's answer, in either form. `keep` is given the finished response where it is to be stored."""

    def __init__(
        self,
        generator: Generator,
        plan: Plan,
        body: ResponsesRequest,
        signer: ThinkingSigner,
        request_id: str,
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self._choice = generator.choices(plan)[0]
        self._plan = plan
        self._body = body
        self._request_id = request_id
        self._keep = keep
        custom = frozenset(tool.name for tool in body.tools or [] if tool.type == "custom")
        self._items = _Items(generator, signer, custom, frozenset(body.include or []))
        self._id = "resp_" + secrets.token_hex(16)
        self._created = time.time()

    async def whole(self) -> dict[str, Any]:
        """The response object."""
        async with aclosing(self._choice.deltas()) as deltas:
            async for delta in deltas:
                self._items.feed(delta)
        return self._finish()

    async def stream(self) -> AsyncGenerator[bytes]:
        """Events with a running number, from response.created to response.completed (or incomplete, or failed)."""
        number = 0

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal number
            made = sse({"type": kind, "sequence_number": number, **fields}, kind)
            number += 1
            return made

        try:
            for kind in ("response.created", "response.in_progress"):
                yield event(kind, response=self._response("in_progress", None))
            async with aclosing(self._choice.deltas()) as deltas:
                async for delta in deltas:
                    if delta is KEEP_ALIVE:
                        yield COMMENT
                    for kind, fields in self._items.feed(delta):
                        yield event(kind, **fields)
            for kind, fields in self._items.close(cut=self._choice.answer.finish == "length"):
                yield event(kind, **fields)
            response = self._finish()
            yield event(f"response.{response['status']}", response=response)
        except Exception as error:
            failure = as_api_error(error, self._request_id)
            response = self._response("failed", None)
            response["error"] = {"code": "server_error", "message": failure.message}
            yield event("response.failed", response=response)

    def _finish(self) -> dict[str, Any]:
        answer = self._choice.answer
        self._items.close(cut=answer.finish == "length")
        response = self._response("incomplete" if answer.finish == "length" else "completed", answer)
        if self._body.store is not False:
            self._keep(response)
        return response

    def _response(self, status: str, answer: Answer | None) -> dict[str, Any]:
        body, ask = self._body, self._plan.ask
        done = answer is not None
        sent = body.model_dump(by_alias=True, exclude_none=True, include={"tools", "tool_choice", "text"})
        text = {"format": {"type": "text"}, **sent.get("text", {})}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": time.time() if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": self._items.output if done else [],
            "parallel_tool_calls": ask.parallel_calls,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": self._plan.effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.store is not False,
            "temperature": ask.temperature,
            "text": text,
            "tool_choice": sent.get("tool_choice", "auto"),
            "tools": [{"strict": None, "parameters": None, **tool} for tool in sent.get("tools", [])],
            "top_logprobs": ask.top_logprobs,
            "top_p": ask.top_p,
            "truncation": "disabled",
            "usage": _usage(answer) if answer is not None else None,
            "user": body.user,
            **({} if answer is None else answer.extras),
        }


Made = tuple[str, dict[str, Any]]


class _Items:
    """Deltas as output items; one is open at a time. `feed` and `close` return the events of what they changed."""

    def __init__(
        self, generator: Generator, signer: ThinkingSigner, custom: frozenset[str], include: frozenset[str]
    ) -> None:
        self.output: list[dict[str, Any]] = []
        self._tokenizer = generator.tokenizer
        self._signer = signer
        self._custom = custom
        self._include = include
        self._open = ""
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._waiting: list[dict[str, Any]] = []  # of tokens whose text is still held back (half a character)

    def feed(self, delta: Delta) -> list[Made]:
        made: list[Made] = []
        if LOGPROBS in self._include and delta.token is not None and delta.channel == "response":
            self._waiting += logprob_entries(self._tokenizer, [delta.token], [delta.logprob], [delta.top])
        for event in delta.events:
            entries: list[dict[str, Any]] = []
            if event.kind == "text":
                entries, self._waiting = self._waiting, []
            made += self._feed(event, entries)
        return made

    def close(self, cut: bool = False) -> list[Made]:
        """Ends the open item, if any; an item that the length limit cut is incomplete."""
        if not self._open:
            return []
        item, at, text = self.output[-1], self._at(), "".join(self._text)
        made: list[Made] = []
        if self._open == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": text}]
            if SEALED in self._include:
                item["encrypted_content"] = self._signer.seal(text)
            made.append(("response.reasoning_text.done", {**at, "content_index": 0, "text": text}))
            made.append(("response.content_part.done", {**at, "content_index": 0, "part": item["content"][0]}))
        elif self._open == "message":
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}
            item["content"] = [part]
            said = {"content_index": 0, "text": text, "logprobs": self._logprobs}
            made.append(("response.output_text.done", {**at, **said}))
            made.append(("response.content_part.done", {**at, "content_index": 0, "part": part}))
        elif item["type"] == "custom_tool_call":
            item["input"] = custom_input(text)
            made.append(("response.custom_tool_call_input.delta", {**at, "delta": item["input"]}))
            made.append(("response.custom_tool_call_input.done", {**at, "input": item["input"]}))
        else:
            item["arguments"] = text
            done = {"name": item["name"], "arguments": text}
            made.append(("response.function_call_arguments.done", {**at, **done}))
        item["status"] = "incomplete" if cut else "completed"
        made.append(("response.output_item.done", {"output_index": len(self.output) - 1, "item": dict(item)}))
        self._open, self._text, self._logprobs = "", [], []
        return made

    def _feed(self, event: Event, entries: list[dict[str, Any]]) -> list[Made]:
        if event.kind == "call_end":
            return self.close()
        if event.kind == "think":
            made = self._enter("reasoning", {"type": "reasoning", "summary": [], "content": []}, "rs_")
            self._text.append(event.text)
            delta = {"content_index": 0, "delta": event.text}
            return [*made, ("response.reasoning_text.delta", {**self._at(), **delta})]
        if event.kind == "text":
            made = self._enter("message", {"type": "message", "role": "assistant", "content": []}, "msg_")
            self._text.append(event.text)
            self._logprobs += entries
            said = {"content_index": 0, "delta": event.text, "logprobs": entries}
            return [*made, ("response.output_text.delta", {**self._at(), **said})]
        if event.kind == "call_start":
            item = {"type": "function_call", "call_id": event.id, "name": event.name, "arguments": ""}
            prefix = "fc_"
            if event.name in self._custom:
                item = {"type": "custom_tool_call", "call_id": event.id, "name": event.name, "input": ""}
                prefix = "ctc_"
            return [*self.close(), *self._enter(f"call {event.index}", item, prefix)]
        self._text.append(event.text)
        if self.output[-1]["type"] == "custom_tool_call":  # its text is inside JSON: known at its end
            return []
        return [("response.function_call_arguments.delta", {**self._at(), "delta": event.text})]

    def _enter(self, kind: str, item: dict[str, Any], prefix: str) -> list[Made]:
        if self._open == kind:
            return []
        made = self.close()
        self._open = kind
        whole = {"id": prefix + secrets.token_hex(16), **item, "status": "in_progress"}
        self.output.append(whole)
        made.append(("response.output_item.added", {"output_index": len(self.output) - 1, "item": dict(whole)}))
        parts = {
            "reasoning": {"type": "reasoning_text", "text": ""},
            "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
        }
        if kind in parts:
            part = {"content_index": 0, "part": parts[kind]}
            made.append(("response.content_part.added", {**self._at(), **part}))
        return made

    def _at(self) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.tokens,
        "output_tokens_details": {"reasoning_tokens": answer.thought},
        "total_tokens": answer.prompt_tokens + answer.tokens,
    }
