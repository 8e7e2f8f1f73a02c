"""The loader: resume is exact to the token, ranks add up to one stream, and broken shards are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus import CorpusReport, TokenLoader
from overland.corpus.shards import Stream
from overland.errors import BrokenFileError, UsageError

Small = tuple[Path, CorpusReport]


def take(loader: TokenLoader, steps: int) -> list[tuple[np.ndarray, ...]]:
    return [loader.next() for _ in range(steps)]


def same(left: list[tuple[np.ndarray, ...]], right: list[tuple[np.ndarray, ...]]) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a, b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)
    )


@settings(max_examples=25, deadline=None)
@given(
    before=st.integers(0, 30),
    after=st.integers(1, 30),
    batch=st.integers(1, 4),
    length=st.integers(1, 700),
    seed=st.integers(0, 9),
)
def test_resumed_stream_is_the_uninterrupted_stream(
    small: Small, before: int, after: int, batch: int, length: int, seed: int
) -> None:
    def make() -> TokenLoader:
        return TokenLoader(small[0], batch=batch, length=length, seed=seed, verify=False)

    whole = take(make(), before + after)
    first = make()
    head = take(first, before)
    state = json.loads(json.dumps(first.state_dict()))
    second = make()
    second.load_state_dict(state)
    assert same(whole, head + take(second, after))


@settings(max_examples=20, deadline=None)
@given(world=st.sampled_from([1, 2, 3, 4, 6, 12]), length=st.integers(1, 300), steps=st.integers(1, 12))
def test_ranks_together_see_what_one_rank_sees(small: Small, world: int, length: int, steps: int) -> None:
    alone = take(TokenLoader(small[0], batch=12, length=length, seed=3, verify=False), steps)
    ranks = [
        take(TokenLoader(small[0], batch=12, length=length, seed=3, rank=r, world=world, verify=False), steps)
        for r in range(world)
    ]
    joined = [tuple(np.concatenate([rank[s][part] for rank in ranks]) for part in range(3)) for s in range(steps)]
    assert same(alone, joined)


def test_resume_on_another_number_of_ranks_goes_on_alike(small: Small) -> None:
    one = TokenLoader(small[0], batch=4, length=32)
    take(one, 5)
    halves = [TokenLoader(small[0], batch=4, length=32, rank=rank, world=2) for rank in range(2)]
    for half in halves:
        half.load_state_dict(one.state_dict())
    joined = np.concatenate([half.next()[0] for half in halves])
    assert np.array_equal(joined, one.next()[0])


def test_epoch_reads_every_row_once_and_targets_follow(small: Small) -> None:
    stream = Stream(small[0], "train")
    loader = TokenLoader(small[0], batch=1, length=50, seed=1)
    tokens = stream.read(0, len(stream))
    rows = take(loader, loader.rows_per_epoch)
    counts = np.bincount(np.concatenate([ids.ravel() for ids, _, _ in rows]), minlength=stream.vocab_size)
    whole = np.bincount(tokens, minlength=stream.vocab_size)
    assert (counts <= whole).all()
    assert counts.sum() == loader.tokens_per_epoch > len(stream) - 50
    for ids, targets, documents in rows:
        assert ids.dtype == targets.dtype == np.int64
        assert documents.dtype == np.int32
        assert np.array_equal(ids[0, 1:], targets[0, :-1])
        # A document begins at its [EOS] and nowhere else.
        assert np.array_equal(np.diff(documents[0]) != 0, ids[0, 1:] == stream.eos)


def test_seeds_and_epochs_differ(small: Small) -> None:
    first = TokenLoader(small[0], batch=1, length=50, seed=0)
    other = TokenLoader(small[0], batch=1, length=50, seed=1)
    n = first.rows_per_epoch
    epochs = take(first, 2 * n)
    assert not same(epochs[:n], epochs[n:])
    assert not same(epochs[:n], take(other, n))


def test_rows_longer_than_the_corpus_still_mark_every_round(small: Small) -> None:
    loader = TokenLoader(small[0], "heldout", batch=1, length=len(Stream(small[0], "heldout")) * 2 + 3)
    ids, _, documents = loader.next()
    assert np.array_equal(np.diff(documents[0]) != 0, ids[0, 1:] == loader.stream.eos)


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_broken_shard_is_named(small: Small, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "corpus"
    shutil.copytree(small[0], out)
    shard = out / "shards" / "train-0001.bin"
    data = bytearray(shard.read_bytes())
    if damage == "cut":
        shard.write_bytes(data[:-2])
    elif damage == "flip":
        data[100] ^= 1
        shard.write_bytes(data)
    else:
        shard.unlink()
    with pytest.raises(BrokenFileError, match=r"train-0001\.bin"):
        TokenLoader(out, batch=1, length=8)


def test_broken_index_is_named(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    shutil.copytree(small[0], out)
    (out / "index.json").write_text('{"format": 1, "dty')
    with pytest.raises(BrokenFileError, match=r"index\.json"):
        TokenLoader(out, batch=1, length=8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0, "length": 8}, "at least 1"),
        ({"batch": 3, "length": 8, "world": 2}, "does not divide"),
        ({"batch": 4, "length": 8, "world": 2, "rank": 2}, "rank"),
        ({"batch": 4, "length": 8, "split": "test"}, "train, heldout"),
    ],
)
def test_wrong_arguments_are_refused(small: Small, arguments: dict[str, int | str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TokenLoader(small[0], **arguments)  # type: ignore[arg-type]


def test_state_of_another_stream_is_refused(small: Small) -> None:
    loader = TokenLoader(small[0], batch=2, length=16)
    with pytest.raises(UsageError, match="length=8"):
        loader.load_state_dict({**loader.state_dict(), "length": 8})


def test_folder_without_a_corpus_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="overland corpus build"):
        TokenLoader(tmp_path, batch=1, length=8)


def test_cut_shard_is_named_even_without_checking_hashes(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    shutil.copytree(small[0], out)
    shard = out / "shards" / "train-0000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(BrokenFileError, match=r"train-0000\.bin"):
        TokenLoader(out, batch=1, length=8, verify=False)
