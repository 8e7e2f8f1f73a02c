"""Stop strings on streamed text: nothing is shown that might still turn out to be part of one."""

from __future__ import annotations


class StopText:
    """Feed text as it comes; get back what may be shown, and the stop string once one is complete."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """(text to show, the stop string that ended it or None). The stop string itself is never shown."""
        if not self._stops:
            return text, None
        self._held += text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, _, stop = min(found)  # the earliest; of two that begin together, the longer
            shown, self._held = self._held[:at], ""
            return shown, stop
        keep = self._could_begin_a_stop()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, None

    def rest(self) -> str:
        """What was held back, when the text ends without a stop string."""
        shown, self._held = self._held, ""
        return shown

    def _could_begin_a_stop(self) -> int:
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
