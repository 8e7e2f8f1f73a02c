"""The `serve` section of a recipe: where the server listens and what it admits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from overland.config import Section


class ServeSection(Section):
    """How a model is served over HTTP."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback unless you choose otherwise; set an API key before opening it to a network."""

    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one and the ready line names it."""

    api_key_env: str = "OVERLAND_API_KEY"
    """Environment variable that holds the API key. Unset or empty: no key is asked for."""

    max_request_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    """A request body larger than this is refused with 413 before it is read to its end."""

    max_in_flight: int = Field(default=256, ge=1)
    """Generations admitted at once, running and waiting together; beyond it a client gets 429 with Retry-After."""

    retry_after_seconds: int = Field(default=2, ge=1)
    """What Retry-After says when the server is full or draining."""

    max_choices: int = Field(default=16, ge=1)
    """Largest `n` of one chat completion."""

    max_tokens: int = Field(default=4096, ge=1)
    """Tokens generated at most when a request names no limit; the room left in the context bounds it as well."""

    default_effort: Literal["low", "high", "max"] = "max"
    """Effort of a request that names none."""

    think_budget_low: int | None = Field(default=None, ge=0)
    """Thinking tokens at most at low effort; a request may ask for less, never for more. None: no limit."""

    think_budget_high: int | None = Field(default=None, ge=0)
    """Thinking tokens at most at high effort. None: no limit."""

    think_budget_max: int | None = Field(default=None, ge=0)
    """Thinking tokens at most at max effort. None: no limit."""

    answer_reserve: int = Field(default=0, ge=0)
    """Tokens of a request's limit kept for the answer: thinking is closed when only these are left. 0: none."""

    sampled_turn_tokens: int = Field(default=4_000_000, ge=0)
    """Token ids of sampled turns kept in memory (4 bytes each), so that a history sent back is never re-encoded."""

    drain_seconds: int = Field(default=30, ge=0)
    """On SIGTERM or Ctrl-C: how long running requests may take to finish before they are cancelled."""

    def think_budget(self, effort: str) -> int | None:
        """Thinking tokens allowed at an effort tier (low, high, max); None means no limit."""
        return {"low": self.think_budget_low, "high": self.think_budget_high, "max": self.think_budget_max}[effort]
