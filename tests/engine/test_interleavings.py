"""Any interleaving of requests, forks, cancellations, pauses, evictions, preemptions and new weights against fresh
engines: what comes out never depends on what else happened."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import random_ids, tiny

from overland.engine import Budget, Engine, Generation, Sampling
from overland.model import Decoder

MODELS = [tiny(seed=0), tiny(seed=1)]
STEMS = [random_ids(n, seed=n).tolist() for n in (34, 40, 3)]


@dataclass
class Asked:
    row: Generation
    crossed: bool = False  # whether weights changed while it ran


def fresh_result(model: Decoder, row: Generation) -> Generation:
    engine = Engine(model)
    again = engine.submit(row.prompt_ids, row.sampling, row.budget)
    engine.run([again])
    return again


TOKEN_BYTES, STATE_BYTES = (lambda pool: (pool.token_bytes, pool.state_bytes))(Engine(MODELS[0]).pool)


@st.composite
def engine_options(draw: st.DrawFn) -> dict[str, Any]:
    """From the plainest engine to one with hardly any room, whose prompts run in pieces of a few tokens."""
    page_size = draw(st.sampled_from([4, 16, 512]))
    options: dict[str, Any] = {
        "max_batch": draw(st.integers(1, 4)),
        "prefix_tokens": draw(st.sampled_from([0, 60, 1000])),
        "prefill_chunk": draw(st.sampled_from([None, 1, 7, 40])),
        "page_size": page_size,
    }
    if draw(st.booleans()):
        pages = -(-96 // page_size)  # one request of the whole context fits, always
        rows = draw(st.sampled_from([1.0, 1.4, 3.0]))
        options["pool_bytes"] = int(rows * (pages * page_size * TOKEN_BYTES + STATE_BYTES))
        options["swap_bytes"] = draw(st.sampled_from([None, 0]))
    return options


VERBS = st.sampled_from(["submit", "submit", "follow", "step", "step", "step", "cancel", "load", "fork", "pause"])


@settings(max_examples=60)
@given(
    verbs=st.lists(VERBS, min_size=5, max_size=40),
    rng=st.randoms(use_true_random=False),
    options=engine_options(),
)
def test_every_request_ends_as_on_a_fresh_engine(verbs: list[str], rng: random.Random, options: dict[str, Any]) -> None:
    engine = Engine(tiny(seed=0), **options)
    version, asked = 0, []

    def submit(ids: list[int]) -> None:
        sampling = Sampling(
            temperature=rng.choice([0.0, 1.0]),
            top_p=rng.choice([1.0, 0.8]),
            seed=rng.randrange(3),
            max_tokens=rng.randint(1, 8),
            stop_ids=(rng.randrange(32), rng.randrange(32), rng.randrange(32)),
        )
        budget = rng.choice([None, Budget(rng.randint(0, 4), 5, (6, 5))])
        asked.append(Asked(engine.submit(ids, sampling, budget, priority=rng.randrange(2))))

    for verb in verbs:
        if verb == "submit":
            submit([*rng.choice(STEMS), *(rng.randrange(32) for _ in range(rng.randint(0, 4)))])
        elif verb == "follow":
            ended = [a.row for a in asked if a.row.done and a.row.ids]
            if ended:
                row = rng.choice(ended)
                submit([*row.prompt_ids, *row.ids, rng.randrange(32)][:90])
        elif verb == "step":
            engine.step()
        elif verb == "cancel" and asked:
            engine.cancel(rng.choice(asked).row)
        elif verb == "load":
            version += 1
            engine.load_weights(MODELS[version % 2], version)
            for a in asked:
                a.crossed |= not a.row.done  # some may be in the middle of their prompts
        elif verb == "fork":
            live = [a for a in asked if not a.row.done and a.row.sampling.temperature == 0]
            if live:
                one = rng.choice(live)
                asked += [Asked(twin, one.crossed) for twin in engine.fork(one.row, [1, 2])]
        elif verb == "pause":
            engine.pause("keep")
            before = [list(a.row.ids) for a in asked]
            engine.step()
            assert [list(a.row.ids) for a in asked] == before
            engine.resume()

    engine.run([a.row for a in asked])
    engine.step()
    assert not engine.busy
    engine.tidy()
    stats = engine.stats()
    assert stats["running"] == stats["waiting"] == stats["swapped_bytes"] == 0
    if "pool_bytes" in options:
        assert stats["cache_bytes"] <= options["pool_bytes"]
    for a in asked:
        assert len(a.row.ids) == len(a.row.logprobs) == len(a.row.forced)
        if a.crossed or not a.row.ids:
            continue
        wanted = fresh_result(MODELS[a.row.version % 2], a.row)
        if a.row.finish_reason == "cancelled":
            assert a.row.ids == wanted.ids[: len(a.row.ids)]
        else:
            assert (a.row.ids, a.row.finish_reason) == (wanted.ids, wanted.finish_reason)
            assert a.row.forced == wanted.forced
            assert max(abs(x - y) for x, y in zip(a.row.logprobs, wanted.logprobs, strict=True)) < 1e-5
