"""Mixtures: shares hold at every moment, caps are kept, the stream is the same on resume and for any ranks."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus import CorpusReport
from overland.corpus.loader import MixtureLoader, Rows, domain_streams
from overland.corpus.mixing import BLOCK, MixturePlan, Stage, capped_shares, generator, rows_of_block
from overland.corpus.shards import Stream
from overland.errors import BrokenFileError, UsageError

Small = tuple[Path, CorpusReport]
WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-3, 1.0), min_size=1)


@given(WEIGHTS)
@settings(max_examples=60, deadline=None)
def test_blocks_are_full_and_close_to_the_shares(weights: dict[str, float]) -> None:
    rows = rows_of_block(weights)
    assert rows.sum() == BLOCK
    exact = np.array(list(weights.values())) / sum(weights.values()) * BLOCK
    assert (rows >= 1).all()
    assert np.abs(rows - exact).max() <= len(weights)


@given(weights=WEIGHTS, seed=st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_shares_hold_after_every_row(weights: dict[str, float], seed: int) -> None:
    plan = MixturePlan([Stage(3000, 8, weights)], dict.fromkeys("abcdef", 10**9), seed=seed)
    counts: Counter[str] = Counter()
    for i in range(3000):
        drawn = plan.row(i)
        assert drawn.number == counts[drawn.domain]  # a domain's rows come in order, none left out
        counts[drawn.domain] += 1
    for name, share in plan.shares[0].items():
        assert abs(counts[name] - share * 3000) <= 2 + 0.0002 * 3000


def test_ratio_error_after_ten_thousand_rows_is_under_a_thousandth() -> None:
    weights = {"prose": 0.55, "code": 0.25, "math": 0.1337, "de": 0.0663}
    plan = MixturePlan([Stage(40_000, 64, weights)], dict.fromkeys(weights, 10**9))
    counts = Counter(plan.row(i).domain for i in range(10_000))
    assert all(abs(counts[name] / 10_000 - weight) < 0.001 for name, weight in weights.items())


@given(
    weights=WEIGHTS,
    tokens=st.fixed_dictionaries({name: st.integers(20, 10**6) for name in "abcdef"}),
    caps=st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 8.0)),
    part=st.floats(0.01, 1.0),
)
@settings(max_examples=80, deadline=None)
def test_caps_are_kept_and_shares_add_up(
    weights: dict[str, float], tokens: dict[str, int], caps: dict[str, float], part: float
) -> None:
    most = sum(caps.get(name, 4.0) * tokens[name] for name in weights)
    wanted = max(1, int(most * part))
    shares = capped_shares(weights, tokens, wanted, {**dict.fromkeys("abcdef", 4.0), **caps})
    assert sum(shares.values()) == pytest.approx(1)
    for name, share in shares.items():
        assert share * wanted <= caps.get(name, 4.0) * tokens[name] * (1 + 1e-9) + 1e-6
    # Domains below their caps keep the proportion of their weights.
    free = [n for n in shares if shares[n] * wanted < caps.get(n, 4.0) * tokens[n] * (1 - 1e-9)]
    for name in free:
        assert shares[name] / shares[free[0]] == pytest.approx(weights[name] / weights[free[0]])


def test_what_cannot_be_had_is_refused() -> None:
    with pytest.raises(UsageError, match="caps allow 200"):
        capped_shares({"a": 1}, {"a": 100}, 300, {"a": 2})
    with pytest.raises(UsageError, match="'b' has no text"):
        capped_shares({"a": 1, "b": 1}, {"a": 100}, 10, {})
    with pytest.raises(UsageError, match="every weight is 0"):
        capped_shares({"a": 0}, {"a": 100}, 10, {})
    with pytest.raises(UsageError, match="beyond the plan's 4"):
        MixturePlan([Stage(4, 8, {"a": 1})], {"a": 100}).row(4)


def test_caps_hold_over_all_stages() -> None:
    stages = [Stage(40, 10, {"a": 1, "b": 1}), Stage(60, 10, {"a": 1, "b": 1})]
    plan = MixturePlan(stages, {"a": 100, "b": 10_000}, {"a": 3})
    counts = Counter(plan.row(i).domain for i in range(100))
    assert counts["a"] * 10 <= 300 + 20
    assert plan.shares[0]["a"] == pytest.approx(0.5)
    assert plan.shares[1]["a"] == pytest.approx(1 / 6)


def test_stages_of_one_length_go_on_in_the_domain_where_the_last_stopped() -> None:
    stages = [Stage(50, 8, {"a": 1, "b": 3}), Stage(30, 16, {"a": 1}), Stage(40, 8, {"b": 1, "a": 1})]
    plan = MixturePlan(stages, {"a": 10**6, "b": 10**6})
    seen: dict[tuple[int, str], list[int]] = {}
    for i in range(120):
        drawn = plan.row(i)
        seen.setdefault((stages[drawn.stage].length, drawn.domain), []).append(drawn.number)
    assert all(numbers == list(range(len(numbers))) for numbers in seen.values())


@pytest.fixture(scope="module")
def mixed(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small corpus with every third document called code."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = tmp_path_factory.mktemp("mixed") / "corpus"
    shutil.copytree(small[0], out)
    table = pq.read_table(out / "documents.parquet")
    domains = pa.array(["code" if i % 3 == 0 else "prose" for i in range(len(table))])
    pq.write_table(table.set_column(table.column_names.index("domain"), "domain", domains), out / "documents.parquet")
    return out


STAGES = [Stage(24, 40, {"prose": 1, "code": 2}), Stage(12, 90, {"prose": 3, "code": 1})]


def make(corpus: Path, **options: object) -> MixtureLoader:
    return MixtureLoader(corpus, STAGES, **{"batch": 12, "seed": 3, "verify": False, **options})  # type: ignore[arg-type]


def same(left: list[tuple[np.ndarray, ...]], right: list[tuple[np.ndarray, ...]]) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a, b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)
    )


@given(world=st.sampled_from([1, 2, 3, 4, 6, 12]), stop=st.integers(0, 3), later=st.sampled_from([1, 2, 3, 4, 6, 12]))
@settings(max_examples=12, deadline=None)
def test_stream_is_the_same_for_any_ranks_and_any_interruption(mixed: Path, world: int, stop: int, later: int) -> None:
    whole = list(make(mixed))
    assert [batch[0].shape for batch in whole] == [(12, 40), (12, 40), (12, 90)]
    ranks = [make(mixed, rank=r, world=world) for r in range(world)]
    joined = []
    for _ in range(stop):
        parts = [rank.next() for rank in ranks]
        joined.append(tuple(np.concatenate([part[i] for part in parts]) for i in range(3)))
    state = json.loads(json.dumps(ranks[-1].state_dict()))
    ranks = [make(mixed, rank=r, world=later) for r in range(later)]
    for rank in ranks:
        rank.load_state_dict(state)
    while ranks[0].step < len(ranks[0]):
        parts = [rank.next() for rank in ranks]
        joined.append(tuple(np.concatenate([part[i] for part in parts]) for i in range(3)))
    assert same(whole, joined)


def test_rows_are_of_their_domain_and_documents_are_marked(mixed: Path) -> None:
    stream, domains = Stream(mixed, "train"), domain_streams(mixed, "train")
    assert sum(map(len, domains.values())) == len(stream)
    for domain in domains.values():
        rows = Rows(domain, 50, lambda epoch: generator(0, epoch))
        texts = {tuple(stream.read(int(b), int(n))) for b, n in zip(domain.begins, np.diff(domain.starts), strict=True)}
        tokens, documents = rows.row(0)
        assert np.array_equal(np.diff(documents) != 0, tokens[1:-1] == stream.eos)
        whole = domain.read(0, 2 * len(domain))
        assert np.array_equal(whole[: len(domain)], whole[len(domain) :])
        pieces = np.split(whole[: len(domain)], domain.starts[1:-1])
        assert {tuple(piece) for piece in pieces} == texts
        epoch = np.concatenate([rows.row(i)[0][:-1] for i in range(rows.per_epoch)])
        assert (np.bincount(epoch, minlength=1000) <= np.bincount(whole[: len(domain)], minlength=1000)).all()


def test_state_of_another_plan_is_refused(mixed: Path) -> None:
    loader = make(mixed)
    with pytest.raises(UsageError, match="plan="):
        MixtureLoader(mixed, STAGES[:1], batch=12, seed=3).load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="seed=3"):
        make(mixed, seed=4).load_state_dict(loader.state_dict())
    with pytest.raises(BrokenFileError, match="step=99"):
        loader.load_state_dict({**loader.state_dict(), "step": 99})
    with pytest.raises(UsageError, match="no multiple of batch"):
        MixtureLoader(mixed, [Stage(5, 8, {"prose": 1})], batch=2)
