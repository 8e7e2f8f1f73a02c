"""Responses kept for `previous_response_id`, retrieval and item references: in memory, the least recent go first."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stored:
    """A finished response, the items that were its input (earlier responses' included), and their size."""

    response: dict[str, Any]
    items: list[dict[str, Any]]
    size: int


class ResponseStore:
    """At most `max_bytes` of JSON."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._bytes = 0

    def put(self, response: dict[str, Any], items: list[dict[str, Any]]) -> None:
        """Keeps a response under its id."""
        size = len(json.dumps(response, ensure_ascii=False)) + len(json.dumps(items, ensure_ascii=False))
        self._stored[response["id"]] = Stored(response, items, size)
        self._bytes += size
        while self._bytes > self._max_bytes and self._stored:
            self._bytes -= self._stored.popitem(last=False)[1].size

    def get(self, response_id: str) -> Stored | None:
        """The response of this id, if it is still kept."""
        found = self._stored.get(response_id)
        if found is not None:
            self._stored.move_to_end(response_id)
        return found

    def delete(self, response_id: str) -> bool:
        """Forgets a response; False where there was none."""
        found = self._stored.pop(response_id, None)
        if found is None:
            return False
        self._bytes -= found.size
        return True

    def item(self, item_id: str) -> dict[str, Any] | None:
        """An output item of a kept response, by its own id."""
        for stored in reversed(self._stored.values()):
            for item in stored.response["output"]:
                if item.get("id") == item_id:
                    found: dict[str, Any] = item
                    return found
        return None
