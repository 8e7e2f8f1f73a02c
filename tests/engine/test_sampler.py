"""The sampler: frequencies, masks of top-k and top-p against plain ones, and a tail that stays whole."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from overland.engine import Generation, Sampling
from overland.engine.sampler import sample


def rows(n: int, **fields: float) -> list[Generation]:
    return [Generation([0], Sampling(seed=seed, **fields)) for seed in range(n)]  # type: ignore[arg-type]


def naive(logits: list[float], temperature: float, top_k: int, top_p: float) -> dict[int, float]:
    """Token -> probability, token by token."""
    weights = sorted(((math.exp(x / temperature), -i) for i, x in enumerate(logits)), reverse=True)
    weights = weights[: top_k or None]
    total, mass, kept = sum(w for w, _ in weights), 0.0, []
    for w, i in weights:
        if not kept or mass < top_p:
            kept.append((w, -i))
        mass += w / total
    return {i: w / sum(w for w, _ in kept) for w, i in kept}


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.7}, {"top_k": 5, "top_p": 0.8}]
)
def test_frequencies_match_the_distribution(fields: dict[str, float]) -> None:
    n, logits = 4000, torch.tensor([1.2, 0.3, -0.5, 2.0, 0.0, -1.0, 0.7, 1.9])
    drawn = [token for token, *_ in sample(logits.expand(n, -1), rows(n, **fields))]
    whole = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    wanted = naive(logits.tolist(), **{**whole, **fields})  # type: ignore[arg-type]
    assert set(drawn) <= wanted.keys()
    chi_square = sum((drawn.count(i) - n * p) ** 2 / (n * p) for i, p in wanted.items())
    assert chi_square < 24.3  # the 99.9% point with 7 degrees of freedom; fewer tokens have a lower one


@given(
    units=st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True),
    top_k=st.integers(0, 13),
    top_p=st.floats(0.01, 1.0),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_masks_and_logprobs_equal_plain_ones(units: list[int], top_k: int, top_p: float, temperature: float) -> None:
    logits = [u / 10 for u in units]
    wanted = naive(logits, temperature, top_k, top_p)
    near = naive(logits, temperature, top_k, max(0.0, top_p - 1e-6)), naive(logits, temperature, top_k, top_p + 1e-6)
    asked = rows(30, top_k=top_k, top_p=top_p, temperature=temperature)
    for token, logprob, forced, _ in sample(torch.tensor(logits).expand(30, -1), asked):
        assert not forced
        if near[0].keys() == near[1].keys():  # the cut does not fall on a rounding
            assert logprob == pytest.approx(math.log(wanted[token]), abs=1e-5)


def test_temperature_zero_takes_the_most_likely_whatever_the_masks() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.9, -1.0]]).expand(5, -1)
    assert {token for token, *_ in sample(logits, rows(5, temperature=0, top_p=0.1))} == {1}
    assert {token for token, *_ in sample(logits, rows(5, top_k=1))} == {1}


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")])
    assert {token for token, *_ in sample(logits.expand(300, -1), rows(300))} == {1, 3}


def _last_of(logits: Tensor, neighbour: Sampling) -> tuple[int, float, bool]:
    row, other = Generation([0], Sampling()), Generation([0], neighbour)
    row.draw = lambda: 1 - 1e-12  # type: ignore[method-assign]
    return sample(logits.expand(2, -1), [row, other])[0]


def test_the_tail_of_a_whole_distribution_stays_whole_beside_a_truncated_row() -> None:
    """In single precision the running mass of these passes 1 some hundred tokens before the last one."""
    logits = (4 * torch.randn(640, generator=torch.Generator().manual_seed(0))).sort(descending=True).values
    assert (logits.softmax(-1).cumsum(-1)[500:600] >= 1).any()
    assert _last_of(logits, Sampling())[0] > 630
    assert _last_of(logits, Sampling(top_k=3)) == _last_of(logits, Sampling())
