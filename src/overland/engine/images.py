"""Pictures in prompts: every place of a picture gets an id of its own, so that prefixes are told apart by content.

A prompt comes with `media_token_id` at each place. Inside the engine these become ids beyond the vocabulary that name
picture and row, equal for equal pictures: prefix reuse, shared beginnings and resumption compare ids and need to know
nothing else. Just before the model they turn back, and the rows are looked up. The tower runs once a picture, when the
first of its rows is needed, and never where a stored prefix holds them all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from overland.errors import UsageError
from overland.model import Decoder
from overland.model.vision import Images, token_counts

FIRST = 1 << 40  # ids from here on are places of pictures
PLACES = 1 << 20  # of one picture, at most
REMEMBERED = 100_000  # contents whose ids stay the same after nobody holds the picture any more


@dataclass(frozen=True)
class Picture:
    """One picture's patches, and the hash that names its content."""

    sha256: str
    images: Images


@dataclass(eq=False)
class Held:
    """A picture while a request needs it; `rows` [M, D] once the tower has run."""

    images: Images
    rows: Tensor | None = None


class PictureRows:
    """The pictures of the requests that are alive, by number. `admit` and `feed` may run in different threads."""

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self.vision = model.config.vision
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._held: WeakValueDictionary[int, Held] = WeakValueDictionary()
        self._next = 0

    @property
    def media_token_id(self) -> int | None:
        """The id that only a picture may put into a prompt."""
        return None if self.vision is None else self.vision.media_token_id

    def admit(self, ids: Sequence[int], pictures: Sequence[Picture]) -> tuple[list[int], tuple[Held, ...]]:
        """The prompt with an id of its own at each place, and what the request has to hold on to.

        Raises UsageError where pictures and places do not fit each other or the model.
        """
        if self.vision is None:
            if pictures:
                raise UsageError(f"the prompt has {len(pictures)} images; this model has no vision part and takes none")
            return list(ids), ()
        for picture in pictures:
            picture.images.check(self.vision)
        counts = [sum(token_counts(picture.images.grids, self.vision.merge)) for picture in pictures]
        places = sum(token == self.vision.media_token_id for token in ids)
        if places != sum(counts):
            raise UsageError(
                f"the prompt holds media_token_id = {self.vision.media_token_id} {places} times, its "
                f"{len(pictures)} images have {sum(counts)} places; valid: as many"
            )
        names: list[int] = []
        held: list[Held] = []
        for picture, count in zip(pictures, counts, strict=True):
            number = self._number(picture.sha256)
            one = self._held.get(number)
            if one is None:
                one = self._held[number] = Held(picture.images)
            held.append(one)
            names += range(FIRST + number * PLACES, FIRST + number * PLACES + count)
        name = iter(names)
        return [next(name) if token == self.vision.media_token_id else token for token in ids], tuple(held)

    def _number(self, sha256: str) -> int:
        if sha256 in self._numbers:
            self._numbers.move_to_end(sha256)
            return self._numbers[sha256]
        self._numbers[sha256] = self._next
        self._next += 1
        while len(self._numbers) > REMEMBERED:
            self._numbers.popitem(last=False)
        return self._next - 1

    def feed(self, ids_BT: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the model is given: ids of its vocabulary, and the rows [M, D] of the places among them."""
        if self.vision is None or not bool((at_BT := ids_BT >= FIRST).any()):
            return ids_BT, None
        rows = []
        for name in (ids_BT[at_BT] - FIRST).tolist():
            number, place = divmod(name, PLACES)
            rows.append(self._rows(number)[place])
        return ids_BT.masked_fill(at_BT, self.vision.media_token_id), torch.stack(rows)

    def _rows(self, number: int) -> Tensor:
        held = self._held[number]
        if held.rows is None:
            held.rows = self.model.embed_images(held.images)
        return held.rows

    def forget(self) -> None:
        """The weights have changed: rows are made anew when they are needed."""
        for held in list(self._held.values()):
            held.rows = None
