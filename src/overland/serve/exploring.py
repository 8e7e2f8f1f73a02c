"""Several paths to one answer: they run together, and a vote or a verifier picks the one that the client gets.

Vote: paths that end with the same calls, or the same words up to white space, agree. The largest group wins, of equal
ones the likelier, told by its likeliest path (by the mean log-probability of what was sampled). A path that was cut or
broke the format has no vote unless all did. Verifier: an address that scores the answers; where it fails, the vote
decides.

Streamed, the answer comes when the last path has ended; until then the stream is kept alive.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from overland.chat import MalformedCall, Message
from overland.serve.choice import Answer, Choice, Clock, Delta
from overland.serve.streaming import merge

if TYPE_CHECKING:
    from overland.serve.generation import Generator, Plan

log = logging.getLogger("overland.serve")

KEEP_ALIVE = Delta(None, 0.0, ())
KEEP_ALIVE_SECONDS = 5.0

Verifier = Callable[[dict[str, Any]], Awaitable[list[float]]]
"""Given model, messages, tools and answers: a score for each answer, the highest wins."""


class Explored:
    """A choice made from `plan.paths` generations; it has the face of `Choice`."""

    def __init__(self, owner: Generator, plan: Plan, number: int) -> None:
        self.number = number
        self.plan = plan
        self.answer = Answer(prompt_tokens=len(plan.prompt.ids))
        self._owner = owner

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Empty ones while the paths run, then those of the path that was picked."""
        owner, plan = self._owner, self.plan
        clock = Clock(owner, plan.effort)
        paths = [Choice(owner, plan, self.number, path) for path in range(plan.paths)]
        told: list[list[Delta]] = [[] for _ in paths]
        alive = -math.inf
        async with aclosing(merge([path.deltas() for path in paths])) as deltas:
            async for number, delta in deltas:
                told[number].append(delta)
                if time.monotonic() - alive > KEEP_ALIVE_SECONDS:
                    alive = time.monotonic()
                    self.answer.cached_tokens = paths[number].answer.cached_tokens
                    yield KEEP_ALIVE
        best = await self._pick(paths)
        for one in fields(Answer):
            setattr(self.answer, one.name, getattr(paths[best].answer, one.name))
        paths[best].settle()
        clock.responded()
        for delta in told[best]:
            yield delta

    async def _pick(self, paths: Sequence[Choice]) -> int:
        """The path to show; its answer says how it was found and what all of them took."""
        owner, answers = self._owner, [path.answer for path in paths]
        ranks = rank(answers)
        scores, picked_by = None, "vote"
        if self.plan.ask.pick == "verifier" and owner.verifier is not None:
            scores = await self._scores(owner.verifier, answers)
            picked_by = "vote" if scores is None else "verifier"
        best = max(range(len(answers)), key=lambda i: (0.0 if scores is None else scores[i], *ranks[i]))
        mine = said(answers[best])
        agreeing = sum(said(answer) == mine for answer in answers)
        for i, answer in enumerate(answers):
            if i != best:
                answers[best].others_tokens += len(answer.ids)
                answers[best].others_reasoning += answer.reasoning_tokens
        tokens = [len(answer.ids) for answer in answers]
        found = {"paths": len(answers), "agreeing": agreeing, "picked_by": picked_by, "path": best, "tokens": tokens}
        answers[best].explored = found if scores is None else {**found, "scores": scores}
        owner.metrics.count(owner.metrics.explored_paths, picked_by, len(answers))
        owner.metrics.count(owner.metrics.agreeing_paths, picked_by, agreeing)
        return best

    async def _scores(self, verifier: Verifier, answers: Sequence[Answer]) -> list[float] | None:
        """What the verifier says; None where it fails."""
        ask = self.plan.ask
        turns = (Message("assistant", one.content, one.reasoning, tuple(one.calls)).to_openai() for one in answers)
        question = {
            "model": self._owner.metrics.model,
            "messages": [message.to_openai() for message in ask.messages],
            "tools": [tool.to_openai() for tool in ask.tools],
            "answers": list(turns),
        }
        try:
            scores = await verifier(question)
        except Exception as error:  # whatever it is, the client has paid for the paths and gets an answer
            log.warning("the verifier failed on request %s: %s: %s", ask.request_id, type(error).__name__, error)
            self._owner.metrics.verifier_failures.inc()
            return None
        if len(scores) != len(answers) or not all(math.isfinite(score) for score in scores):
            log.warning("the verifier gave request %s no finite score for each answer", ask.request_id)
            self._owner.metrics.verifier_failures.inc()
            return None
        return scores


def said(answer: Answer) -> str:
    """What two answers have to share to agree: their calls, or without calls their words."""
    if not answer.calls:
        return " ".join(answer.content.split())
    return json.dumps([[call.name, _arguments(call)] for call in answer.calls], sort_keys=True)


def _arguments(call: Any) -> Any:
    try:
        return call.parsed()
    except MalformedCall:
        return call.arguments


def rank(answers: Sequence[Answer]) -> list[tuple[bool, int, float, float]]:
    """By path: whether it may vote, how many agree with it, how likely the likeliest of those is, how likely it is."""
    voting = [answer.finish != "length" and not answer.errors for answer in answers]
    if not any(voting):
        voting = [True] * len(answers)
    votes = Counter(said(answer) for answer, may in zip(answers, voting, strict=True) if may)
    likely = [_likelihood(answer) for answer in answers]
    best: dict[str, float] = {}
    for answer, may, mean in zip(answers, voting, likely, strict=True):
        if may:
            best[said(answer)] = max(mean, best.get(said(answer), -math.inf))
    return [
        (may, votes[said(answer)], best.get(said(answer), -math.inf), mean)
        for answer, may, mean in zip(answers, voting, likely, strict=True)
    ]


def _likelihood(answer: Answer) -> float:
    """The mean log-probability of the tokens that were sampled, not forced."""
    sampled = [lp for lp, forced in zip(answer.logprobs, answer.forced, strict=True) if not forced]
    return sum(sampled) / len(sampled) if sampled else -math.inf


def verifier_at(url: str, seconds: float) -> Verifier:
    """A verifier behind an address: it is POSTed the question as JSON and answers {"scores": [...]}."""
    import httpx

    async def ask(question: dict[str, Any]) -> list[float]:
        async with httpx.AsyncClient(timeout=seconds) as client:
            answer = await client.post(url, json=question)
            answer.raise_for_status()
            return [float(score) for score in answer.json()["scores"]]

    return ask
