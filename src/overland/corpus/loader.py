"""Batches for pretraining: a counter-based stream of rows, so that its state is one integer.

Row `i` of the stream is fixed by (seed, i) alone: epoch `i // rows_per_epoch` shuffles the rows and shifts their cuts,
and the batch of step `s` is rows [s * batch, (s + 1) * batch), whatever the number of ranks. Resuming is setting the
counter; a rank takes its slice of every batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overland.corpus.shards import Stream
from overland.errors import BrokenFileError, OverlandError, UsageError

Batch = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]


class TokenLoader:
    """Endless deterministic batches over one split.

    `batch` counts rows over all ranks and must be a multiple of `world`; `length` is T. Raises BrokenFileError naming a
    shard whose length or sha256 is not the index's, UsageError for a wrong argument.
    """

    def __init__(
        self,
        corpus_dir: str | Path,
        split: str = "train",
        *,
        batch: int,
        length: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        verify: bool = True,
    ) -> None:
        if batch < 1 or length < 1:
            raise UsageError(f"loader: batch and length must be at least 1, got batch={batch} length={length}")
        if world < 1 or not 0 <= rank < world:
            raise UsageError(f"loader: rank must be in 0..world-1, got rank={rank} world={world}")
        if batch % world:
            raise UsageError(f"loader: batch {batch} does not divide over {world} ranks; make it a multiple")
        self.stream = Stream(corpus_dir, split, verify=verify)
        if len(self.stream) < 2:
            raise OverlandError(f"{corpus_dir}: split '{split}' has {len(self.stream)} tokens; build a larger corpus")
        self.split, self.batch, self.length, self.seed = split, batch, length, seed
        self.rank, self.world = rank, world
        self.step = 0
        self.rows_per_epoch = max(1, len(self.stream) // length)
        self._epoch: tuple[int, int, NDArray[np.int64]] | None = None

    @property
    def tokens_per_epoch(self) -> int:
        return self.rows_per_epoch * self.length

    def next(self) -> Batch:
        """(input_ids [B, T], targets [B, T], document_ids [B, T]) with B = batch / world: this rank's rows.

        targets are input_ids one later in the stream. document_ids are equal inside a document and differ between
        neighbours; a document may start anywhere in a row.
        """
        share = self.batch // self.world
        first = self.step * self.batch + self.rank * share
        rows = [self._row(first + i) for i in range(share)]
        self.step += 1
        return (
            np.stack([tokens[:-1] for tokens, _ in rows]),
            np.stack([tokens[1:] for tokens, _ in rows]),
            np.stack([documents for _, documents in rows]),
        )

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.next()

    def _row(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        epoch, place = divmod(number, self.rows_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            rng = np.random.Generator(np.random.Philox(key=[self.seed % 2**64, epoch]))
            # The shift moves every cut, so that no token is always last in its row over all epochs.
            self._epoch = (epoch, int(rng.integers(len(self.stream))), rng.permutation(self.rows_per_epoch))
        _, shift, order = self._epoch
        start = shift + int(order[place]) * self.length
        positions = np.arange(start, start + self.length, dtype=np.int64)
        return self.stream.read(start, self.length + 1), self.stream.document_at(positions).astype(np.int32)

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs. Independent of rank and world, so that a run may resume on another number."""
        return {
            "step": self.step,
            "split": self.split,
            "batch": self.batch,
            "length": self.length,
            "seed": self.seed,
            "stream_tokens": len(self.stream),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises UsageError where this loader would give another stream."""
        mine = self.state_dict()
        for name in ("split", "batch", "length", "seed", "stream_tokens"):
            if state.get(name) != mine[name]:
                raise UsageError(
                    f"loader: the saved state has {name}={state.get(name)}, this loader {mine[name]}; "
                    "resume with the recipe and the corpus of the saved run"
                )
        if not isinstance(state.get("step"), int) or state["step"] < 0:
            raise BrokenFileError(f"loader: the saved state has step={state.get('step')!r}; it must be a count")
        self.step = state["step"]


def heldout_documents(
    corpus_dir: str | Path, split: str = "heldout", *, verify: bool = True
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """(ids [n + 1], n_bytes) of each document: [EOS] first, then its n tokens, which spell n_bytes of UTF-8.

    Bits per byte: sum over documents of -log2 p(ids[1:] | ids[:-1]) divided by the sum of n_bytes.
    """
    stream = Stream(corpus_dir, split, verify=verify)
    for start, end, n_bytes in zip(stream.starts[:-1], stream.starts[1:], stream.text_bytes, strict=True):
        yield stream.read(int(start), int(end - start)), n_bytes
