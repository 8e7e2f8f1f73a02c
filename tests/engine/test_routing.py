"""The experts that the engine records are those of one full forward over what was said; a replay gives its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny import random_ids, tiny
from torch import Tensor

from overland.engine import Engine, Generation, Sampling
from overland.errors import UsageError
from overland.model import Replay

from .naive import MODEL, engine, greedy

PROMPT = random_ids(40, seed=1).tolist()
DRAWN = Sampling(temperature=1.0, max_tokens=9, seed=3)


def by_one_forward(ids: Sequence[int]) -> Tensor:
    """[tokens, layers, k]"""
    with torch.no_grad():
        aux = MODEL(torch.tensor([list(ids)])).aux
    return torch.stack([routing.experts for routing in aux.router], 1).to(torch.uint8)


def recorded(generation: Generation) -> Tensor:
    return torch.cat(generation.routed)


def expected(generation: Generation) -> Tensor:
    said = [*generation.prompt_ids, *generation.ids[:-1]]  # the last token is never run
    return by_one_forward(said)[generation.routed_from :]


@pytest.mark.parametrize("options", [{}, {"prefill_chunk": 16, "page_size": 8}])
def test_what_is_recorded_is_the_routing_of_one_forward(options: dict[str, Any]) -> None:
    mine = engine(**options)
    first = mine.submit(PROMPT, DRAWN)  # leaves prefixes, and shares its steps with the others
    mine.run([first])
    group = [mine.submit(PROMPT, Sampling(temperature=1.0, max_tokens=9, seed=s), routed_from=0) for s in range(3)]
    other = mine.submit(PROMPT, DRAWN)
    mine.run([*group, other])
    for generation in group:
        assert torch.equal(recorded(generation), expected(generation))
        assert generation.cached_tokens == 0
    assert other.ids == first.ids
    assert not other.routed
    assert other.cached_tokens > 0


def test_a_turn_that_goes_on_records_its_own_part_and_takes_the_rest_from_the_cache() -> None:
    mine = engine()
    stop = greedy(PROMPT, 4)[-1]
    first = mine.submit(PROMPT, Sampling(temperature=0, max_tokens=6, stop_ids=(stop,)), routed_from=0)
    mine.run([first])
    whole = [*PROMPT, *first.ids]
    known = len(whole) - 1
    second = mine.submit([*whole, *random_ids(5, seed=2).tolist()], DRAWN, routed_from=known)
    mine.run([second])
    assert second.cached_tokens == known
    assert torch.equal(torch.cat([recorded(first), recorded(second)]), expected(_whole(second)))


def _whole(generation: Generation) -> Generation:
    generation.routed_from = 0
    return generation


def test_a_request_that_was_put_aside_and_run_again_records_every_token_once() -> None:
    pool = engine().pool
    room = 80 * pool.token_bytes + 2 * pool.state_bytes
    mine = Engine(MODEL, pool_bytes=room, swap_bytes=0, page_size=8)
    both = [
        mine.submit(random_ids(30, seed=s).tolist(), Sampling(temperature=1.0, max_tokens=20, seed=s), routed_from=4)
        for s in range(2)
    ]
    mine.run(both)
    assert mine.stats()["preemptions"] > 0
    for generation in both:
        assert torch.equal(recorded(generation), expected(generation))


def test_the_record_replays() -> None:
    mine = engine()
    one = mine.submit(PROMPT, DRAWN, routed_from=0)
    mine.run([one])
    ids = torch.tensor([[*one.prompt_ids, *one.ids[:-1]]])
    experts = [layer.long() for layer in recorded(one).unbind(1)]
    with torch.no_grad():
        free, replayed = MODEL(ids).logits, MODEL(ids, replay=Replay(experts=experts)).logits
    torch.testing.assert_close(replayed, free, rtol=1e-12, atol=1e-12)


def test_a_model_without_experts_and_a_token_that_is_none_are_refused() -> None:
    with pytest.raises(UsageError, match="routed_from = 40 is no token of the prompt; valid: 0 to 39"):
        engine().submit(PROMPT, DRAWN, routed_from=40)
    dense = tiny(first_k_dense_replace=MODEL.config.num_hidden_layers)
    with pytest.raises(UsageError, match="this model has no experts to record"):
        engine(dense).submit(PROMPT, DRAWN, routed_from=0)
