"""Group-relative advantages, held against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overland.rl import GRPO, Group, Successes

from .toy import make_sample


def group(rewards: list[float | None], success: list[bool] | None = None) -> Group:
    success = success or [False] * len(rewards)
    samples = [
        make_sample(str(i), (1, 2), (3,), (-1.0,), r, s) for i, (r, s) in enumerate(zip(rewards, success, strict=True))
    ]
    return Group("toy", 0, "high", "t", tuple(samples))


@given(rewards=st.lists(st.one_of(st.none(), st.floats(-2, 2)), min_size=2, max_size=12), scale=st.booleans())
def test_advantages_are_centred_on_the_judged_samples_of_the_group(rewards: list[float | None], scale: bool) -> None:
    advantages = GRPO(scale_by_std=scale).advantages(group(rewards))
    judged = np.array([r for r in rewards if r is not None])
    if len(judged) < 2 or len(set(judged.tolist())) == 1:
        assert advantages == {}
        return
    expected = judged - judged.mean()
    if scale:
        expected = expected / (judged.std(ddof=1) + 1e-4)
    assert list(advantages) == [str(i) for i, r in enumerate(rewards) if r is not None]
    assert np.allclose(list(advantages.values()), expected, atol=1e-9)


@pytest.mark.parametrize("rewards", [[None, None], [1.0, None], [0.5, 0.5, 0.5]])
def test_a_group_that_cannot_be_compared_gives_nothing(rewards: list[float | None]) -> None:
    assert GRPO().advantages(group(rewards)) == {}


def test_rejection_sampling_keeps_only_successes() -> None:
    assert Successes().advantages(group([1.0, 0.0, None], [True, False, True])) == {"0": 1.0}
