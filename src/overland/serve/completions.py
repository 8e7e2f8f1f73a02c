"""POST /v1/completions: text or token ids in, text and token ids out, whole and streamed.

`echo` with `logprobs` scores the prompt itself; `max_tokens: 0` then generates nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from overland.chat.tokenizer import MEDIA_PAD
from overland.engine import Sampling
from overland.errors import OverlandError
from overland.serve.admission import Load
from overland.serve.completions_schema import CompletionRequest
from overland.serve.conversation import check_bias, check_stops
from overland.serve.errors import ApiError, as_api_error, bad_request, error_body
from overland.serve.generation import Generator
from overland.serve.raw import Piece, RawRun, seeds
from overland.serve.streaming import merge, sse
from overland.serve.tokens import finite

MOST_PROMPTS = 256  # of one request


def read_prompts(body: CompletionRequest, generator: Generator) -> list[list[int]]:
    """The prompts as ids. Raises a 400 for one that cannot run."""
    given: Any = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    prompts = [generator.tokenizer.encode(one) if isinstance(one, str) else list(one) for one in given]
    if not prompts or len(prompts) > MOST_PROMPTS:
        raise bad_request("prompt", f"{len(prompts)} prompts; valid: 1 to {MOST_PROMPTS}")
    for place, ids in enumerate(prompts):
        check_ids(f"prompt.{place}" if len(prompts) > 1 else "prompt", ids, generator)
    return prompts


def check_ids(field: str, ids: list[int], generator: Generator, pictures: bool = False) -> None:
    """A 400 for ids that the engine cannot run. `pictures`: some come beside the ids."""
    vocab = generator.engine.engine.vocab_size
    if not ids:
        raise bad_request(field, "it is empty; the engine needs at least one token")
    if max(ids) >= vocab:
        raise bad_request(field, f"{max(ids)} is no token id; valid: 0 to {vocab - 1}")
    if not pictures and generator.preprocessing is not None and generator.tokenizer.special(MEDIA_PAD) in ids:
        raise bad_request(field, f"{MEDIA_PAD} is the place of a picture; send pictures in a chat's messages")
    if len(ids) >= generator.context_length:
        message = f"{field}: {len(ids)} tokens; the context holds {generator.context_length}, answer included"
        raise ApiError(400, message, param=field, code="context_length_exceeded")


class CompletionAnswer:
    """One request's answer, in either form."""

    def __init__(self, generator: Generator, body: CompletionRequest, request_id: str) -> None:
        self._generator = generator
        self._body = body
        self._request_id = request_id
        self._prompts = read_prompts(body, generator)
        self._head = {
            "id": "cmpl-" + secrets.token_hex(12),
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
        }
        stops = check_stops("stop", body.stop)
        bias = check_bias("logit_bias", body.logit_bias, generator.tokenizer.vocab_size)
        limit = generator.settings.max_tokens if body.max_tokens is None else body.max_tokens
        if limit == 0 and not body.echo:
            raise bad_request("max_tokens", "0 makes sense with echo: true only")
        self._scored_only = limit == 0
        longest = max(len(ids) for ids in self._prompts)
        self.load = Load(longest, max(1, limit), len(self._prompts) * (body.n or 1))
        self._runs = [
            RawRun(
                generator,
                ids,
                Sampling(
                    temperature=1.0 if body.temperature is None else body.temperature,
                    top_p=body.top_p or 1.0,
                    top_k=max(0, body.top_k or 0),
                    min_p=body.min_p or 0.0,
                    max_tokens=max(1, min(limit, generator.context_length - len(ids))),
                    seed=seed,
                    stop_ids=(*generator.stop_ids, *(body.stop_token_ids or [])),
                    presence_penalty=body.presence_penalty or 0.0,
                    frequency_penalty=body.frequency_penalty or 0.0,
                    repetition_penalty=body.repetition_penalty or 1.0,
                    logit_bias=bias,
                    top_logprobs=body.logprobs or 0,
                ),
                salt=body.cache_salt or "",
                stops=stops,
                request_id=request_id,
            )
            for ids in self._prompts
            for seed in seeds(body.seed, body.n or 1)
        ]

    async def whole(self) -> dict[str, Any]:
        """The text_completion object."""
        if not self._scored_only:
            async with aclosing(merge([run.pieces() for run in self._runs])) as pieces:
                async for _ in pieces:
                    pass
        choices = [await self._choice(number, run) for number, run in enumerate(self._runs)]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def stream(self) -> AsyncGenerator[bytes]:
        """Chunks with text, one with the finish reason for each choice, usage where asked for, then [DONE]."""
        try:
            async with aclosing(merge([run.pieces() for run in self._runs])) as pieces:
                async for number, piece in pieces:
                    yield self._chunk(number, piece.text, [piece], None)
            for number, run in enumerate(self._runs):
                yield self._chunk(number, run.tail, [], run.finish)
            if self._body.stream_options is not None and self._body.stream_options.include_usage:
                yield sse({**self._head, "choices": [], "usage": self._usage()})
        except Exception as error:
            failure = as_api_error(error, self._request_id)
            yield sse(error_body(failure, anthropic=False, request_id=self._request_id))
        yield sse("[DONE]")

    async def _choice(self, number: int, run: RawRun) -> dict[str, Any]:
        text, pieces, ids = run.text, run.pieces_, list(run.ids)
        made: dict[str, Any] = {"index": number, "finish_reason": run.finish if pieces else "length"}
        logprobs = self._logprobs(pieces) if self._body.logprobs is not None else None
        if self._body.echo:
            text = self._generator.tokenizer.decode(ids) + text
            if logprobs is not None:
                logprobs = await self._with_prompt(ids, logprobs)
        made |= {"text": text, "logprobs": logprobs, "stop_reason": None}
        if self._body.return_token_ids:
            made |= {"token_ids": [piece.token for piece in pieces], "prompt_token_ids": ids}
        return made

    async def _with_prompt(self, ids: list[int], logprobs: dict[str, Any]) -> dict[str, Any]:
        try:
            scores = await self._generator.engine.call(lambda engine: engine.score(ids))
        except OverlandError as error:
            raise bad_request("prompt", str(error)) from None
        tokens = [self._generator.tokenizer.decode([i]) for i in ids]
        return {
            "tokens": tokens + logprobs["tokens"],
            "token_logprobs": [None, *(finite(one) for one in scores), *logprobs["token_logprobs"]],
            "top_logprobs": [None, *({t: finite(s)} for t, s in zip(tokens[1:], scores, strict=True))]
            + logprobs["top_logprobs"],
            "text_offset": _offsets(tokens + logprobs["tokens"]),
        }

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any]:
        decode = self._generator.tokenizer.decode
        tokens = [decode([piece.token]) for piece in pieces]
        return {
            "tokens": tokens,
            "token_logprobs": [finite(piece.logprob) for piece in pieces],
            "top_logprobs": [{decode([i]): finite(lp) for i, lp in piece.top} for piece in pieces],
            "text_offset": _offsets(tokens),
        }

    def _chunk(self, number: int, text: str, pieces: list[Piece], finish: str | None) -> bytes:
        choice: dict[str, Any] = {"index": number, "text": text, "finish_reason": finish, "logprobs": None}
        if pieces and self._body.logprobs is not None:
            choice["logprobs"] = self._logprobs(pieces)
        if pieces and self._body.return_token_ids:
            choice["token_ids"] = [piece.token for piece in pieces]
        return sse({**self._head, "choices": [choice]})

    def _usage(self) -> dict[str, Any]:
        prompt = sum(len(ids) for ids in self._prompts)
        done = sum(len(run.pieces_) for run in self._runs)
        cached = sum(run.generation.cached_tokens for run in self._runs if run.generation is not None)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": done,
            "total_tokens": prompt + done,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def _offsets(tokens: list[str]) -> list[int]:
    at, out = 0, []
    for token in tokens:
        out.append(at)
        at += len(token)
    return out
