"""Who may come in: budgets of tokens per class of requests, so that a burst of long ones cannot starve the short.

A request costs its prompt and all it may generate, once for each choice. Those up to `short_tokens` are short: they
may use the whole budget, the engine runs them first, and a long one makes room for them. Long ones share `long_share`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from overland.serve.errors import ApiError
from overland.serve.metrics import Metrics
from overland.serve.settings import ServeSection

SHORT, LONG = "short", "long"


@dataclass(frozen=True)
class Load:
    """What a request will cost: its prompt, what it may generate, and how many generations it is."""

    prompt_tokens: int
    max_tokens: int
    choices: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of cache it may come to take."""
        return self.choices * (self.prompt_tokens + self.max_tokens)


class Admission:
    """Counts what is in flight. `draining`: nobody else comes in."""

    def __init__(self, settings: ServeSection, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self.draining = False
        self.in_flight = 0
        self.tokens = {SHORT: 0, LONG: 0}

    def kind(self, load: Load) -> str:
        """The class of a request."""
        return SHORT if load.prompt_tokens + load.max_tokens <= self._settings.short_tokens else LONG

    def priority(self, load: Load) -> int:
        """What the engine is told: lower runs first."""
        return 0 if self.kind(load) == SHORT else 1

    @property
    def full(self) -> bool:
        """Whether not even the smallest request would be let in."""
        return self.in_flight >= self._settings.max_in_flight

    def enter(self, load: Load) -> Callable[[], None]:
        """Takes a request's place; call what it returns, once, to give the place back.

        Raises 429 with Retry-After where there is no place and 503 when the server is shutting down.
        """
        settings = self._settings
        if self.draining:
            self._metrics.count(self._metrics.rejected, "draining")
            wait = settings.retry_after_seconds
            raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after=wait)
        if self.in_flight + load.choices > settings.max_in_flight:
            what = f"{self.in_flight} of {settings.max_in_flight} generations in flight"
            raise self._refuse("full", what)
        kind = self.kind(load)
        budget = settings.max_tokens_in_flight
        if budget:
            used = sum(self.tokens.values())
            share = int(budget * settings.long_share)
            if load.tokens > (share if kind == LONG else budget):
                most = share if kind == LONG else budget
                message = f"the request may come to take {load.tokens} tokens; this server admits {most} at once"
                raise ApiError(400, message, code="request_too_expensive")
            if used + load.tokens > budget:
                raise self._refuse("tokens", f"{used} of {budget} tokens in flight")
            if kind == LONG and self.tokens[LONG] + load.tokens > share:
                raise self._refuse("long", f"{self.tokens[LONG]} of {share} tokens of long requests in flight")
        self.in_flight += load.choices
        self.tokens[kind] += load.tokens

        def leave() -> None:
            self.in_flight -= load.choices
            self.tokens[kind] -= load.tokens

        return leave

    def _refuse(self, reason: str, what: str) -> ApiError:
        self._metrics.count(self._metrics.rejected, reason)
        wait = self._settings.retry_after_seconds
        return ApiError(429, f"the server is full: {what}", code="rate_limit_exceeded", retry_after=wait)
