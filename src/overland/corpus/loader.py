"""Batches for pretraining: a counter-based stream of rows, so that its state is one integer.

Row `i` of the stream is fixed by (seed, i) alone: epoch `i // rows_per_epoch` shuffles the rows and shifts their cuts,
and the batch of step `s` is rows [s * batch, (s + 1) * batch), whatever the number of ranks. Resuming is setting the
counter; a rank takes its slice of every batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from overland.corpus.lookup import read_documents_table
from overland.corpus.mixing import MixturePlan, Stage, generator
from overland.corpus.shards import Stream
from overland.errors import BrokenFileError, OverlandError, UsageError

Batch = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]


class Readable(Protocol):
    """A run of tokens with documents in it: a split (`shards.Stream`) or one domain of it (`DomainStream`)."""

    def __len__(self) -> int: ...
    def read(self, start: int, count: int) -> NDArray[np.int64]: ...
    def document_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]: ...


class Rows:
    """Rows of `length` tokens of a stream by number: every epoch shuffles them and shifts their cuts.

    `draws` gives the random generator of an epoch.
    """

    def __init__(self, stream: Readable, length: int, draws: Callable[[int], np.random.Generator]) -> None:
        self.stream, self.length, self.draws = stream, length, draws
        self.per_epoch = max(1, len(stream) // length)
        self._epoch: tuple[int, int, NDArray[np.int64]] | None = None

    def row(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """(tokens [length + 1], document numbers [length])."""
        epoch, place = divmod(number, self.per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            rng = self.draws(epoch)
            # The shift moves every cut, so that no token is always last in its row over all epochs.
            self._epoch = (epoch, int(rng.integers(len(self.stream))), rng.permutation(self.per_epoch))
        _, shift, order = self._epoch
        start = shift + int(order[place]) * self.length
        positions = np.arange(start, start + self.length, dtype=np.int64)
        return self.stream.read(start, self.length + 1), self.stream.document_at(positions).astype(np.int32)


def _philox(seed: int, epoch: int) -> np.random.Philox:
    return np.random.Philox(key=[seed % 2**64, epoch])


def _stack(rows: list[tuple[NDArray[np.int64], NDArray[np.int32]]]) -> Batch:
    return (
        np.stack([tokens[:-1] for tokens, _ in rows]),
        np.stack([tokens[1:] for tokens, _ in rows]),
        np.stack([documents for _, documents in rows]),
    )


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
        self._rows = Rows(self.stream, length, lambda epoch: np.random.Generator(_philox(seed, epoch)))

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
        rows = [self._rows.row(first + i) for i in range(share)]
        self.step += 1
        return _stack(rows)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.next()

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


class DomainStream:
    """The documents of one domain in a split, one after the other, as if they were a split of their own."""

    def __init__(self, stream: Stream, ordinals: NDArray[np.int64]) -> None:
        self.stream, self.ordinals = stream, ordinals
        self.begins = stream.starts[:-1][ordinals]
        lengths = stream.starts[1:][ordinals] - self.begins
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Tokens [start, start + count); past the end the domain begins anew."""
        out = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            at = (start + done) % len(self)
            document = int(np.searchsorted(self.starts, at, side="right")) - 1
            size = min(count - done, int(self.starts[document + 1]) - at)
            place = int(self.begins[document]) + at - int(self.starts[document])
            out[done : done + size] = self.stream.read(place, size)
            done += size
        return out

    def document_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ordinal within the domain of the document at each position, counted on past the end."""
        rounds, inside = np.divmod(positions, len(self))
        return np.searchsorted(self.starts, inside, side="right") - 1 + rounds * len(self.ordinals)


class MixtureLoader:
    """Deterministic batches over the parts of a split by a `MixturePlan`; ends after the plan's last row.

    `batch` counts rows over all ranks (a stage may have its own); every stage's rows must be a multiple of it, and it
    of `world`. Each batch is of one stage, so its T is that stage's length. The state is the step, and nothing else.
    Parts are domains, or what the stages' weights name (see `domain_streams`).
    """

    def __init__(
        self,
        corpus_dir: str | Path,
        stages: Sequence[Stage],
        *,
        batch: int,
        split: str = "train",
        max_repeats: Mapping[str, float] | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        verify: bool = True,
    ) -> None:
        if world < 1 or not 0 <= rank < world:
            raise UsageError(f"loader: rank must be in 0..world-1, got rank={rank} world={world}")
        self._batches = [stage.batch or batch for stage in stages]
        for number, (stage, rows) in enumerate(zip(stages, self._batches, strict=True)):
            if rows < 1 or rows % world:
                raise UsageError(f"loader: batch {rows} does not divide over {world} ranks; make it a multiple")
            if stage.rows % rows:
                raise UsageError(f"loader: stage {number} has {stage.rows} rows, no multiple of batch {rows}")
        self.split, self.batch, self.seed, self.rank, self.world = split, batch, seed, rank, world
        parts = [name for stage in stages for name, weight in stage.weights.items() if weight]
        self.domains = domain_streams(corpus_dir, split, parts, verify=verify)
        self.plan = MixturePlan(stages, {name: len(part) for name, part in self.domains.items()}, max_repeats, seed)
        steps = [stage.rows // rows for stage, rows in zip(stages, self._batches, strict=True)]
        self._step_starts = np.cumsum([0, *steps])
        self.step = 0
        self._rows: dict[tuple[str, int], Rows] = {}

    def __len__(self) -> int:
        """Steps in all."""
        return int(self._step_starts[-1])

    def next(self) -> Batch:
        """(input_ids [B, T], targets [B, T], document_ids [B, T]) with B = batch / world: this rank's rows.

        Raises UsageError after the plan's last step.
        """
        if self.step >= len(self):
            raise UsageError(f"mixture: step {self.step} is beyond the plan's {len(self)}; add a stage")
        stage = int(np.searchsorted(self._step_starts, self.step, side="right")) - 1
        batch, inside = self._batches[stage], self.step - int(self._step_starts[stage])
        share = batch // self.world
        first = int(self.plan.starts[stage]) + inside * batch + self.rank * share
        rows = [self._row(first + i) for i in range(share)]
        self.step += 1
        return _stack(rows)

    def __iter__(self) -> Iterator[Batch]:
        while self.step < len(self):
            yield self.next()

    def _row(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        drawn = self.plan.row(number)
        length = self.plan.stages[drawn.stage].length
        key = (drawn.domain, length)
        if key not in self._rows:
            self._rows[key] = Rows(self.domains[drawn.domain], length, lambda epoch: generator(self.seed, *key, epoch))
        return self._rows[key].row(drawn.number)

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs. Independent of rank and world, so that a run may resume on another number."""
        same = {"batch": self.batch, "seed": self.seed, "split": self.split, "plan": self._fingerprint()}
        return {"step": self.step, **same}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises UsageError where this loader would give another stream."""
        for name, value in self.state_dict().items():
            if name != "step" and state.get(name) != value:
                raise UsageError(
                    f"loader: the saved state has {name}={state.get(name)}, this loader {value}; "
                    "resume with the recipe and the corpus of the saved run"
                )
        if not isinstance(state.get("step"), int) or not 0 <= state["step"] <= len(self):
            raise BrokenFileError(f"loader: the saved state has step={state.get('step')!r}; it must be a count")
        self.step = state["step"]

    def _fingerprint(self) -> str:
        """What decides the stream besides the step: stages, shares and the domains' sizes."""
        sizes = {name: [len(part), len(part.ordinals)] for name, part in sorted(self.domains.items())}
        stages = [[s.rows, s.length, batch] for s, batch in zip(self.plan.stages, self._batches, strict=True)]
        said = json.dumps([stages, self.plan.shares, sizes], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]


def domain_streams(
    corpus_dir: str | Path, split: str, parts: Sequence[str] = (), *, verify: bool = True
) -> dict[str, DomainStream]:
    """The parts of a split, by the columns of documents.parquet; without `parts`, every domain.

    A part is a source ("source:NAME"), a domain and a language ("prose/de") or a domain; a document belongs to the
    first of these that is named, and to none where none is. Raises UsageError naming a part without documents.
    """
    table = read_documents_table(corpus_dir).select(["id", "domain", "language", "source"])
    columns = (table[name].to_pylist() for name in table.column_names)
    wanted = set(parts)
    part_of: dict[str, str] = {}
    for document_id, domain, language, source in zip(*columns, strict=True):
        names = (f"source:{source}", f"{domain}/{language}", domain)
        part_of[document_id] = next((name for name in names if name in wanted), "") if wanted else domain
    stream = Stream(corpus_dir, split, verify=verify)
    found = [part_of.get(document_id) for document_id in stream.ids]
    if None in found:
        missing = stream.ids[found.index(None)]
        raise BrokenFileError(f"{corpus_dir}/documents.parquet: has no row for document {missing} of split '{split}'")
    order = np.array(found, dtype=object)
    if empty := sorted(wanted - set(order.tolist())):
        present = {name for names in zip(*(table[c].to_pylist() for c in ("domain", "language")), strict=True)
                   for name in (names[0], "/".join(names))}  # fmt: skip
        raise UsageError(
            f"mixture: no document of split '{split}' belongs to '{empty[0]}'; there are {', '.join(sorted(present))} "
            "and source:NAME"
        )
    return {name: DomainStream(stream, np.flatnonzero(order == name)) for name in sorted(set(order.tolist()) - {""})}


def heldout_documents(
    corpus_dir: str | Path, split: str = "heldout", *, verify: bool = True
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """(ids [n + 1], n_bytes) of each document: [EOS] first, then its n tokens, which spell n_bytes of UTF-8.

    Bits per byte: sum over documents of -log2 p(ids[1:] | ids[:-1]) divided by the sum of n_bytes.
    """
    stream = Stream(corpus_dir, split, verify=verify)
    for start, end, n_bytes in zip(stream.starts[:-1], stream.starts[1:], stream.text_bytes, strict=True):
        yield stream.read(int(start), int(end - start)), n_bytes
