"""One pool for all that is remembered: pages of token slots and checkpoints of recurrent states.

A prefix is a chain of full pages (`page_size` tokens each), named by a hash that runs over everything before and in
them, and a checkpoint at its end: the slots after the last full page and the states of the layers that have no slots
(KDA). Prefixes that begin alike share their pages. A hit is the longest proper prefix of a prompt at which a checkpoint
stands and all its pages do; pages and states are only read, a hit copies them. A page lives as long as a checkpoint
needs it, so that neither can be evicted without the other.

A model without recurrent states can be cut anywhere: there a hit is also the end of any page, and within the last
pages the longest common beginning, without a checkpoint.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from overland.model import Cache, Decoder

Key = bytes
PAGE_TOKENS = 512


@dataclass
class Page:
    """The slots of `page_size` tokens, one tensor [1, page, ...] for each slotted tensor of the model."""

    slots: list[Tensor]
    users: int = 0


@dataclass
class Checkpoint:
    """What is needed to go on after `length` tokens: pages, the slots behind them, states of the other layers."""

    length: int
    pages: list[Key]
    rest: list[Tensor]
    states: list[Tensor]
    group: tuple[Key, int] = field(default=(b"", 0))  # the last page's key and the tokens behind it


class PagePool:
    """Prefixes by their ids, the least recently used dropped beyond the capacity.

    `capacity_tokens` bounds the sum of the stored prefixes' lengths, shared beginnings counted each time;
    `capacity_bytes` what their tensors take, shared pages counted once. `reserve` leaves room for running rows.
    """

    def __init__(self, model: Decoder, capacity_tokens: int, page_size: int = PAGE_TOKENS) -> None:
        self.page_size = page_size
        self.capacity_tokens = capacity_tokens
        self.evictions = 0
        empty = model.new_cache(1)
        self._slotted = [layer.slotted for layer in empty.layers]
        self.stateless = all(self._slotted)
        self.token_bytes = sum(
            _row_bytes(tensor, per_slot=True) for layer in empty.layers if layer.slotted for tensor in layer.tensors()
        )
        self.state_bytes = sum(
            _row_bytes(tensor) for layer in empty.layers if not layer.slotted for tensor in layer.tensors()
        )
        self._empty = empty
        self._pages: dict[Key, Page] = {}
        self._checkpoints: OrderedDict[Key, Checkpoint] = OrderedDict()
        self._behind: dict[Key, dict[int, int]] = {}  # page key -> tokens behind it -> how many checkpoints
        self._tokens = 0
        self._bytes = 0

    # ---- what a scheduler asks ----

    @property
    def tokens(self) -> int:
        """The sum of the stored prefixes' lengths."""
        return self._tokens

    @property
    def bytes(self) -> int:
        """What is stored now takes."""
        return self._bytes

    @property
    def pages(self) -> int:
        """Full pages stored."""
        return len(self._pages)

    @property
    def checkpoints(self) -> int:
        """Checkpoints stored."""
        return len(self._checkpoints)

    def row_bytes(self, tokens: int) -> int:
        """What a running row of that many tokens takes, in whole pages."""
        return -(-tokens // self.page_size) * self.page_size * self.token_bytes + self.state_bytes

    def shrink(self, to_bytes: int) -> None:
        """Evict the least recently used until at most that many bytes are stored."""
        while self._bytes > max(0, to_bytes) and self._checkpoints:
            self._evict()

    def clear(self) -> None:
        """Drop everything (the weights have changed)."""
        self._pages.clear()
        self._checkpoints.clear()
        self._behind.clear()
        self._tokens = self._bytes = 0

    # ---- prefixes ----

    def longest(self, ids: Sequence[int], salt: str) -> int:
        """Tokens of the longest stored proper prefix of `ids`; it becomes the most recently used."""
        found = self._find(ids, salt)
        if found is None:
            return 0
        self._checkpoints.move_to_end(found[1])
        return found[0]

    def take(self, ids: Sequence[int], salt: str) -> tuple[int, Cache | None]:
        """The longest stored proper prefix of `ids` and a copy of its cache, or (0, None)."""
        found = self._find(ids, salt)
        if found is None:
            return 0, None
        self._checkpoints.move_to_end(found[1])
        return found[0], self._copy(self._checkpoints[found[1]])

    def put(self, ids: Sequence[int], cache: Cache, row: int, salt: str) -> None:
        """Keep a copy of row `row` of `cache`, which holds exactly `ids` in its first slots."""
        if not ids or len(ids) > self.capacity_tokens:
            return
        keys = self._page_keys(ids, salt)
        behind = len(ids) - (len(keys) - 1) * self.page_size
        key = _hash(keys[-1], ids[len(ids) - behind :], b"end")
        if key in self._checkpoints:
            self._checkpoints.move_to_end(key)
            return
        slotted = [t for layer in cache.layers if layer.slotted for t in layer.tensors()]
        for number, page_key in enumerate(keys[1:]):
            if page_key not in self._pages:
                at = number * self.page_size
                slots = [t[row : row + 1, at : at + self.page_size].clone() for t in slotted]
                self._pages[page_key] = Page(slots)
                self._bytes += _bytes(slots)
            self._pages[page_key].users += 1
        rest = [t[row : row + 1, len(ids) - behind : len(ids)].clone() for t in slotted]
        states = [t[row : row + 1].clone() for layer in cache.layers if not layer.slotted for t in layer.tensors()]
        group = (keys[-1], behind)
        self._checkpoints[key] = Checkpoint(len(ids), keys[1:], rest, states, group)
        counts = self._behind.setdefault(keys[-1], {})
        counts[behind] = counts.get(behind, 0) + 1
        self._tokens += len(ids)
        self._bytes += _bytes(rest) + _bytes(states)
        while self._tokens > self.capacity_tokens:
            self._evict()

    def _find(self, ids: Sequence[int], salt: str) -> tuple[int, Key] | None:
        if not self._checkpoints:
            return None
        keys = self._page_keys(ids, salt)
        for number in range(len(keys) - 1, -1, -1):
            at = number * self.page_size
            for behind in sorted(self._behind.get(keys[number], ()), reverse=True):
                n = at + behind
                if n < len(ids):
                    key = _hash(keys[number], ids[at:n], b"end")
                    if key in self._checkpoints:
                        return n, key
        return None

    def _copy(self, point: Checkpoint) -> Cache:
        pages = [self._pages[key].slots for key in point.pages]
        slotted = iter(
            torch.cat([*(page[i] for page in pages), rest], dim=1) if pages else rest.clone()
            for i, rest in enumerate(point.rest)
        )
        states = iter(point.states)
        layers = [
            layer.map(lambda _: next(slotted)) if layer.slotted else layer.map(lambda _: next(states).clone())
            for layer in self._empty.layers
        ]
        return Cache(layers, torch.full_like(self._empty.lengths, point.length))

    def _evict(self) -> None:
        """The least recently used checkpoint, and the pages that nobody else needs."""
        _, point = self._checkpoints.popitem(last=False)
        self.evictions += 1
        self._tokens -= point.length
        self._bytes -= _bytes(point.rest) + _bytes(point.states)
        page_key, behind = point.group
        counts = self._behind[page_key]
        counts[behind] -= 1
        if not counts[behind]:
            del counts[behind]
        if not counts:
            del self._behind[page_key]
        for key in point.pages:
            page = self._pages[key]
            page.users -= 1
            if not page.users:
                self._bytes -= _bytes(page.slots)
                del self._pages[key]

    def _page_keys(self, ids: Sequence[int], salt: str) -> list[Key]:
        """The root's key, then one for the end of each full page."""
        keys = [hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()]
        for at in range(self.page_size, len(ids) + 1, self.page_size):
            keys.append(_hash(keys[-1], ids[at - self.page_size : at]))
        return keys


def _hash(before: Key, ids: Sequence[int], kind: bytes = b"") -> Key:
    return hashlib.blake2b(before + array("q", ids).tobytes(), digest_size=16, person=kind).digest()


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _row_bytes(tensor: Tensor, per_slot: bool = False) -> int:
    shape = tensor.shape[2:] if per_slot else tensor.shape[1:]
    return tensor.element_size() * int(torch.Size(shape).numel())
