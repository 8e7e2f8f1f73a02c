"""Balanced expert plans: exactly even on any routing, held against a search for the fewest redundant experts.

The exact solver decides by maximum flow (networkx) whether a set of redundant experts can even out the ranks, and
tries sets in order of their size.
"""

from __future__ import annotations

from itertools import combinations

import networkx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from overland.errors import UsageError
from overland.parallel.balance import Shares, balanced, capacity, plain, replicated, spread_over_sources
from overland.parallel.balance.shares import at_home


@st.composite
def routings(draw: st.DrawFn, most_ranks: int = 8, most_home: int = 6) -> tuple[Tensor, int]:
    """Tokens of each expert and a number of ranks: even, skewed, collapsed onto few experts, mostly empty."""
    ranks, home = draw(st.integers(1, most_ranks)), draw(st.integers(1, most_home))
    one = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 100), st.sampled_from([997, 10_000, 1_000_003]))
    counts = draw(st.lists(one, min_size=ranks * home, max_size=ranks * home))
    return torch.tensor(counts, dtype=torch.int64), ranks


@given(routings())
def test_every_rank_has_exactly_its_share_with_at_most_a_home_worth_of_redundant_experts(
    routing: tuple[Tensor, int],
) -> None:
    counts, ranks = routing
    plan = balanced(counts, ranks)
    floor, more = divmod(int(counts.sum()), ranks)
    assert plan.loads.tolist() == [floor + (rank < more) for rank in range(ranks)]
    assert torch.equal(plan.tokens.sum(0), counts)
    assert int(plan.redundant.max()) <= len(counts) // ranks
    assert bool((plan.tokens >= 0).all())


@given(routings())
def test_foreign_tokens_of_a_rank_come_from_one_rank(routing: tuple[Tensor, int]) -> None:
    counts, ranks = routing
    plan = balanced(counts, ranks)
    for rank in range(ranks):
        foreign = plan.tokens[rank].nonzero().flatten() // (len(counts) // ranks)
        assert len(set(foreign.tolist()) - {rank}) <= 1


@pytest.mark.parametrize("ranks", [1, 2, 4, 16, 64])
def test_all_tokens_on_one_expert(ranks: int) -> None:
    counts = torch.zeros(128, dtype=torch.int64)
    counts[77] = 64 * 1000
    plan = balanced(counts, ranks)
    assert plan.imbalance == 1
    assert int(plan.redundant.sum()) == ranks - 1
    assert plain(counts, ranks).imbalance == ranks


def test_an_even_routing_moves_nothing() -> None:
    counts = torch.full((64,), 10)
    assert torch.equal(balanced(counts, 8).tokens, plain(counts, 8).tokens)


def fewest_redundant(counts: Tensor, ranks: int) -> int:
    """The least number of (rank, expert) pairs away from home with which every rank can have the same load."""
    experts, target = len(counts), int(counts.sum()) // ranks
    home = at_home(experts, ranks)
    foreign = [(r, e) for r in range(ranks) for e in range(experts) if not home[r, e] and counts[e]]
    for size in range(len(foreign) + 1):
        for extra in combinations(foreign, size):
            graph = networkx.DiGraph()
            for expert in range(experts):
                graph.add_edge("from", ("expert", expert), capacity=int(counts[expert]))
                graph.add_edge(("expert", expert), int(home[:, expert].nonzero()), capacity=int(counts[expert]))
            for rank, expert in extra:
                graph.add_edge(("expert", expert), rank, capacity=int(counts[expert]))
            for rank in range(ranks):
                graph.add_edge(rank, "to", capacity=target)
            if networkx.maximum_flow_value(graph, "from", "to") == int(counts.sum()):
                return size
    raise AssertionError("some set always suffices")


def test_redundant_experts_are_near_the_fewest_possible() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, exact = 0, 0
    for _ in range(60):
        ranks, home = [(2, 2), (3, 2), (4, 1), (3, 1)][int(torch.randint(4, (1,), generator=generator))]
        counts = torch.randint(0, 30, (ranks * home,), generator=generator) ** 2
        counts[0] += (-int(counts.sum())) % ranks
        found, least = int(balanced(counts, ranks).redundant.sum()), fewest_redundant(counts, ranks)
        assert least <= found <= ranks - 1 + least
        ours, exact = ours + found, exact + least
    assert ours <= 1.15 * exact


@given(routings(6, 4), st.data())
def test_sources_are_spread_so_that_all_sums_hold_and_what_can_stay_stays(
    routing: tuple[Tensor, int], data: st.DataObject
) -> None:
    counts, ranks = routing
    cuts = data.draw(st.lists(st.integers(0, 100), min_size=ranks, max_size=ranks).filter(sum))
    weights = torch.tensor(cuts, dtype=torch.float64)
    ends = (counts[None] * (weights.cumsum(0) / weights.sum())[:, None]).round().long()
    counts_SE = torch.diff(ends, dim=0, prepend=torch.zeros(1, len(counts), dtype=torch.int64))
    plan = balanced(counts, ranks)
    moved = spread_over_sources(counts_SE, plan)
    assert torch.equal(moved.sum(0), plan.tokens)
    assert torch.equal(moved.sum(1), counts_SE)
    own = torch.arange(ranks)
    assert torch.equal(moved[own, own], torch.minimum(counts_SE, plan.tokens))


@given(routings(), st.floats(0.5, 4))
def test_capacity_drops_what_is_beyond_it_and_nothing_else(routing: tuple[Tensor, int], factor: float) -> None:
    counts, ranks = routing
    plan = capacity(counts, ranks, factor)
    assert int(plan.loads.sum()) + plan.dropped == int(counts.sum())
    assert int(plan.tokens.max()) <= factor * int(counts.sum()) / len(counts) + 1


@given(routings(), st.integers(0, 3))
def test_replication_keeps_every_token_and_its_slots(routing: tuple[Tensor, int], spare: int) -> None:
    counts, ranks = routing
    plan = replicated(counts, counts, ranks, spare)
    assert torch.equal(plan.tokens.sum(0), counts)
    assert int((plan.tokens > 0).sum(1).max()) <= len(counts) // ranks + spare


def test_replication_evens_a_load_it_foresaw_but_not_exactly_and_a_new_one_badly() -> None:
    generator = torch.Generator().manual_seed(1)
    before = (1000 * torch.rand(64, generator=generator) ** 3).long()
    now = before[torch.randperm(64, generator=generator)]
    foreseen, surprised = replicated(before, before, 8, 2), replicated(before, now, 8, 2)
    assert 1 < foreseen.imbalance < 1.1 < plain(before, 8).imbalance
    assert surprised.imbalance > 1.2
    assert balanced(now, 8).imbalance < 1.01


@pytest.mark.parametrize(
    ("counts", "ranks", "message"),
    [
        (torch.ones(6, dtype=torch.int64), 4, r"ep = 4 does not divide the experts = 6; nearest valid: 2, 3, 6"),
        (torch.tensor([1, -1]), 2, r"whole number from 0"),
        (torch.ones(4), 2, r"whole number from 0"),
    ],
)
def test_what_is_no_routing_is_refused(counts: Tensor, ranks: int, message: str) -> None:
    for plan in (balanced, plain):
        with pytest.raises(UsageError, match=message):
            plan(counts, ranks)


def test_imbalance_of_nothing_is_none() -> None:
    assert Shares(torch.zeros(2, 4, dtype=torch.int64)).imbalance == 1
