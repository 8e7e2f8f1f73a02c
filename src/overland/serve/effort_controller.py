"""Less thinking under pressure: lowers the default effort and its budget, and raises both again with hysteresis.

The level goes up by one when any signal has been past its upper threshold for `effort_raise_seconds`, down by one when
all have been below their lower ones for `effort_lower_seconds`. Each level takes the default effort one tier down and
halves the thinking budget. A request that names its own effort or budget is never touched.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from overland.serve.settings import ServeSection

TIERS = ("low", "high", "max")
HIGHEST = 3
WINDOW = 128  # first-token times that the latency signal looks at
RELEASE = 0.8  # of an upper threshold: below it a signal counts as calm


@dataclass(frozen=True)
class Signals:
    """What is looked at. None: not known here."""

    cache_usage: float | None = None  # 0 to 1, stored prefixes left out: those give way
    first_token_seconds: float | None = None  # the 95th percentile of the last ones
    memory_usage: float | None = None  # 0 to 1 of the device's memory
    prefix_misses: float | None = None  # 1 - hit rate by tokens, of the last prompts


class EffortController:
    """`level` is 0 (nothing is changed) to 3. `clock` gives seconds."""

    def __init__(self, settings: ServeSection, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._first_tokens: deque[float] = deque(maxlen=WINDOW)
        self._prompts: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._pressed_since: float | None = None
        self._calm_since: float | None = None
        self._looked = clock()
        self.level = 0
        self.reason = ""

    def saw_first_token(self, seconds: float) -> None:
        """One request's time to its first token."""
        self._first_tokens.append(seconds)

    def saw_prompt(self, tokens: int, cached: int) -> None:
        """One request's prompt and how much of it was in the prefix cache."""
        self._prompts.append((tokens, cached))

    def signals(self, stats: Mapping[str, float], memory: float | None) -> Signals:
        """What is known now."""
        latency = sorted(self._first_tokens)
        asked = sum(tokens for tokens, _ in self._prompts)
        hits = sum(cached for _, cached in self._prompts)
        return Signals(
            cache_usage=stats.get("row_usage"),
            first_token_seconds=latency[int(0.95 * (len(latency) - 1))] if latency else None,
            memory_usage=memory,
            prefix_misses=1 - hits / asked if asked else None,
        )

    def look(self, signals: Signals) -> int:
        """Takes the signals in and returns the level that holds from now on."""
        settings, now = self._settings, self._clock()
        if not settings.effort_controller:
            return 0
        if now - self._looked > 10 * settings.effort_lower_seconds:  # nobody asked for long: what was is over
            self.level, self._first_tokens = 0, deque(maxlen=WINDOW)
        self._looked = now
        limits = {
            "cache": (signals.cache_usage, settings.effort_cache_usage),
            "latency": (signals.first_token_seconds, settings.effort_first_token_seconds),
            "memory": (signals.memory_usage, settings.effort_memory_usage),
            "prefix": (
                signals.prefix_misses,
                None if settings.effort_prefix_hit_rate is None else 1 - settings.effort_prefix_hit_rate,
            ),
        }
        known = {name: (value, limit) for name, (value, limit) in limits.items() if value is not None and limit}
        pressed = [name for name, (value, limit) in known.items() if value > limit]
        calm = all(value < RELEASE * limit for value, limit in known.values())
        self._pressed_since = (self._pressed_since if self._pressed_since is not None else now) if pressed else None
        self._calm_since = (self._calm_since if self._calm_since is not None else now) if calm else None
        if self._pressed_since is not None and now - self._pressed_since >= settings.effort_raise_seconds:
            if self.level < HIGHEST:
                self.level += 1
                self.reason = "+".join(pressed)
                self._first_tokens.clear()  # the next step is decided on what this one brought
            self._pressed_since = now
        elif self._calm_since is not None and now - self._calm_since >= settings.effort_lower_seconds:
            self.level = max(0, self.level - 1)
            self._calm_since = now
        if self.level == 0:
            self.reason = ""
        return self.level

    def default_effort(self) -> str:
        """The effort of a request that names none."""
        return TIERS[max(0, TIERS.index(self._settings.default_effort) - self.level)]

    def budget(self, limit: int | None) -> int | None:
        """The thinking budget of a request that names neither effort nor budget."""
        if self.level == 0:
            return limit
        whole = self._settings.effort_budget if limit is None else limit
        return whole >> self.level
