"""Copying drills: only what can be copied is scored, and the stream does not depend on the number of ranks."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.train import Drilled, TokenBatch
from overland.train.drill import LONGEST, SHORTEST

TEXT = 1_000
"""Ids from here on are the inner loader's."""


class Rows:
    """A loader whose every row is its own number, shared among ranks."""

    def __init__(self, batch: int, length: int, rank: int = 0, world: int = 1) -> None:
        self.batch, self.length, self.rank, self.world, self.step = batch, length, rank, world, 0

    def next(self) -> TokenBatch:
        own = self.batch // self.world
        first = self.step * self.batch + self.rank * own
        self.step += 1
        rows = TEXT + torch.arange(first, first + own)[:, None].expand(own, self.length + 1)
        return TokenBatch.of(rows, torch.zeros(own, self.length + 1, dtype=torch.long))

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def steps(loader: Drilled, count: int) -> list[TokenBatch]:
    return [loader.next() for _ in range(count)]


@given(seed=st.integers(0, 2**40), length=st.integers(8, 80))
@settings(deadline=None, max_examples=40)
def test_what_is_scored_of_a_drill_was_said_a_period_ago(seed: int, length: int) -> None:
    drilled = Drilled(Rows(4, length), share=1.0, vocab=640, seed=seed)
    for batch in steps(drilled, 2):
        assert batch.inputs.max() < 640
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
        for ids, targets, weights in zip(batch.inputs, batch.targets, batch.weights, strict=True):
            period = int((weights == 0).sum()) + 1
            assert SHORTEST <= period <= LONGEST
            assert torch.equal(weights, (torch.arange(length) >= period - 1).float())
            assert torch.equal(targets[period - 1 :], ids[: length - period + 1])


def test_ranks_together_see_the_rows_that_one_process_sees() -> None:
    alone = steps(Drilled(Rows(8, 40), 0.5, 640, seed=3), 3)
    parts = [steps(Drilled(Rows(8, 40, rank, 2), 0.5, 640, 3, rank, 2), 3) for rank in range(2)]
    for whole, first, second in zip(alone, *parts, strict=True):
        assert torch.equal(whole.inputs, torch.cat([first.inputs, second.inputs]))
        assert torch.equal(whole.weights, torch.cat([first.weights, second.weights]))


def test_a_drilled_loader_continues_where_it_was() -> None:
    whole = steps(Drilled(Rows(4, 40), 0.5, 640, seed=1), 4)
    first = Drilled(Rows(4, 40), 0.5, 640, seed=1)
    steps(first, 2)
    again = Drilled(Rows(4, 40), 0.5, 640, seed=1)
    again.load_state_dict(first.state_dict())
    for batch, expected in zip(steps(again, 2), whole[2:], strict=True):
        assert torch.equal(batch.inputs, expected.inputs)


def test_about_the_share_is_drilled_and_the_rest_is_the_text() -> None:
    rows = torch.cat([batch.inputs for batch in steps(Drilled(Rows(16, 40), 0.25, 640, seed=0), 40)])
    drilled = (rows < TEXT).all(1)
    assert 0.2 < drilled.float().mean() < 0.3
    assert torch.equal(rows[~drilled][:, 0], (TEXT + torch.arange(640))[~drilled])
    untouched = steps(Drilled(Rows(4, 40), 0.0, 640, seed=0), 1)[0]
    assert (untouched.inputs >= TEXT).all()
