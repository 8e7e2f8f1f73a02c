"""Which domain each row of a training stream comes from: weights, repetition caps and a curriculum, as arithmetic.

A plan is a list of stages. In a stage every block of rows has the same number of each domain, and each domain's rows
are spread evenly over the block with a jitter drawn from (seed, stage, block): the shares hold at every moment, not
only in the end. Row `i` is a function of the plan and `i` alone: nothing to replay on resume, no state per rank, and
the same stream for any number of ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overland.errors import UsageError

BLOCK = 16_384  # a share is kept to within half of its inverse, .003 %


@dataclass(frozen=True)
class Stage:
    """`rows` rows of `length` tokens, of the domains in proportion to `weights` (they need not add up to 1).

    `batch`: rows of a step over all ranks; None is the loader's.
    """

    rows: int
    length: int
    weights: Mapping[str, float]
    batch: int | None = None


@dataclass(frozen=True)
class Drawn:
    """A row: the `number`-th that its stage's length has asked of `domain`, counted from 0 over all stages."""

    stage: int
    domain: str
    number: int


def capped_shares(
    weights: Mapping[str, float], tokens: Mapping[str, int], wanted: int, max_repeats: Mapping[str, float]
) -> dict[str, float]:
    """Shares of `wanted` tokens: the weights, but no domain beyond `max_repeats` times its tokens.

    What a capped domain cannot give goes to the others in proportion to their weights. Raises UsageError where all
    together cannot give as much, naming how much they can.
    """
    for name, weight in weights.items():
        if not weight >= 0:
            raise UsageError(f"mixture: weight of '{name}' is {weight}; it must not be negative")
        if weight > 0 and tokens.get(name, 0) < 2:
            raise UsageError(f"mixture: domain '{name}' has no text; its weight must be 0. There are: {_names(tokens)}")
    free = {name: weight for name, weight in weights.items() if weight > 0}
    if not free:
        raise UsageError("mixture: every weight is 0; give at least one domain a weight")
    limit = {name: max_repeats.get(name, float("inf")) * tokens[name] for name in free}
    if sum(limit.values()) < wanted:
        most = int(sum(limit.values()))
        raise UsageError(
            f"mixture: {wanted} tokens are wanted, the caps allow {most}; raise mixture.repeats or train less"
        )
    given: dict[str, float] = {}
    left = float(wanted)
    while free:
        scale = left / sum(free.values())
        full = [name for name, weight in free.items() if weight * scale > limit[name]]
        if not full:
            given.update({name: weight * scale for name, weight in free.items()})
            break
        for name in full:
            given[name] = limit[name]
            left -= limit[name]
            del free[name]
    return {name: given[name] / wanted for name in weights if name in given}


class MixturePlan:
    """The rows of a curriculum over domains of `tokens` tokens each.

    `max_repeats`: how often a domain's tokens may be seen over the whole plan (missing: no cap). Raises UsageError
    where a stage cannot be had.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        tokens: Mapping[str, int],
        max_repeats: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        if not stages:
            raise UsageError("mixture: no stage; give at least one")
        self.stages, self.seed = tuple(stages), seed
        self.shares: list[dict[str, float]] = []
        left = {name: (max_repeats or {}).get(name, float("inf")) for name in tokens}
        for number, stage in enumerate(stages):
            if stage.rows < 1 or stage.length < 1:
                raise UsageError(
                    f"mixture: stage {number} has rows={stage.rows} length={stage.length}; both must be at least 1"
                )
            wanted = stage.rows * stage.length
            shares = capped_shares(stage.weights, tokens, wanted, left)
            for name, share in shares.items():
                left[name] -= share * wanted / tokens[name]
            self.shares.append(shares)
        self._names = [list(shares) for shares in self.shares]
        self.starts = np.cumsum([0, *(stage.rows for stage in stages)])
        self._rows = [rows_of_block(shares) for shares in self.shares]
        self._block: tuple[int, int, NDArray[np.int64], NDArray[np.int64]] | None = None
        self._before = self._counts_before()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def stage_of(self, row: int) -> int:
        """The stage that row `row` belongs to. Raises UsageError past the end."""
        if not 0 <= row < len(self):
            raise UsageError(f"mixture: row {row} is beyond the plan's {len(self)}; add a stage")
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def row(self, row: int) -> Drawn:
        """Where row `row` comes from."""
        stage = self.stage_of(row)
        block, place = divmod(row - int(self.starts[stage]), BLOCK)
        domains, numbers = self._order(stage, block)
        name = self._names[stage][domains[place]]
        earlier = self._before[stage][name] + block * int(self._rows[stage][domains[place]])
        return Drawn(stage, name, earlier + int(numbers[place]))

    def _order(self, stage: int, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each place of a block, which domain and which of the domain's rows in the block."""
        if self._block is None or self._block[:2] != (stage, block):
            counts = self._rows[stage]
            domains = np.repeat(np.arange(len(counts)), counts)
            numbers = np.concatenate([np.arange(count) for count in counts])
            jitter = generator(self.seed, "block", stage, block).random(len(domains))
            order = np.argsort((numbers + jitter) / counts[domains], kind="stable")
            self._block = (stage, block, domains[order], numbers[order])
        return self._block[2:]

    def _counts_before(self) -> list[dict[str, int]]:
        """Rows of each domain in earlier stages of the same length: those go on where the earlier stopped."""
        out: list[dict[str, int]] = []
        used: dict[tuple[int, str], int] = {}
        for number, stage in enumerate(self.stages):
            blocks, rest = divmod(stage.rows, BLOCK)
            domains, _ = self._order(number, blocks)
            counts = blocks * self._rows[number] + np.bincount(domains[:rest], minlength=len(self._rows[number]))
            out.append({name: used.get((stage.length, name), 0) for name in self._names[number]})
            for name, count in zip(self._names[number], counts.tolist(), strict=True):
                used[stage.length, name] = used.get((stage.length, name), 0) + count
        return out


def rows_of_block(shares: Mapping[str, float]) -> NDArray[np.int64]:
    """Rows of each domain in a block, by largest remainders; a domain with any share has at least one."""
    exact = np.array(list(shares.values())) / sum(shares.values()) * BLOCK
    rows = np.maximum(np.floor(exact).astype(np.int64), 1)
    for i in np.argsort(np.floor(exact) - exact, kind="stable")[: max(0, BLOCK - int(rows.sum()))]:
        rows[i] += 1
    rows[np.argmax(rows)] -= rows.sum() - BLOCK
    return rows


def generator(seed: int, *key: object) -> np.random.Generator:
    """A random generator that belongs to this key under this seed."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, int.from_bytes(digest, "little")]))


def _names(tokens: Mapping[str, int]) -> str:
    return ", ".join(name for name, count in tokens.items() if count > 1)
