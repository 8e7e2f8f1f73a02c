"""Notices an agent that goes in circles: the same call with the same result, or two calls in turn, again and again."""

from __future__ import annotations

import hashlib
import json

from overland.chat import MalformedCall, ToolCall

NUDGE_AT = 3
STOP_AT = 5
LONGEST_CYCLE = 2
NUDGE = "\n[the last {n} rounds were identical; the result will not change: try something else, or answer]"


class StuckDetector:
    """`add` each call with its result, then `repeats` says how often the latest cycle stands in a row."""

    def __init__(self) -> None:
        self._history: list[bytes] = []

    def add(self, call: ToolCall, result: str) -> int:
        """Records a call. Returns how many times in a row the latest round (of one or two calls) has occurred."""
        self._history.append(_fingerprint(call, result))
        return self.repeats()

    def repeats(self) -> int:
        return max((self._repeats_of(length) for length in range(1, LONGEST_CYCLE + 1)), default=1)

    def _repeats_of(self, length: int) -> int:
        last = self._history[-length:]
        if len(last) < length:
            return 0
        count = 0
        for end in range(len(self._history), length - 1, -length):
            if self._history[end - length : end] != last:
                break
            count += 1
        return count


def _fingerprint(call: ToolCall, result: str) -> bytes:
    try:
        arguments = json.dumps(call.parsed(), sort_keys=True)
    except MalformedCall:
        arguments = call.arguments
    text = "\x00".join((call.name, arguments, result))
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
