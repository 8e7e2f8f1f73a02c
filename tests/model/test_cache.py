"""Every way of running a sequence in pieces against the plain forward over the whole of it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import random_ids, tiny
from torch import Tensor

from overland.model import Cache, Decoder, Packing, load_model

# The tiny model amplifies rounding a thousandfold, so it shows every mistake in fp64; in fp32 the preset itself runs.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
TINY = tiny()
MODELS = {torch.float64: TINY, torch.float32: load_model("nano")}


def feed(model: Decoder, cache: Cache, pieces: list[list[int]]) -> list[Tensor]:
    """One ragged call: pieces[b] are row b's new tokens (none is allowed); the logits of the real ones."""
    lengths = torch.tensor([len(piece) for piece in pieces])
    padded = torch.zeros(len(pieces), max(1, int(lengths.max())), dtype=torch.long)
    for b, piece in enumerate(pieces):
        padded[b, : len(piece)] = torch.tensor(piece)
    logits = model(padded, packing=Packing(lengths=lengths), cache=cache).logits
    return [logits[b, : len(piece)] for b, piece in enumerate(pieces)]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_token_by_token_decode(dtype: torch.dtype, gradients: bool) -> None:
    model, ids = MODELS[dtype], random_ids(3, 20)
    with nullcontext() if gradients else torch.no_grad():
        cache = model.new_cache(3)
        logits = torch.cat([model(ids[:, t : t + 1], cache=cache).logits for t in range(20)], 1)
    assert (logits - model(ids).logits).abs().max() < TOLERANCE[dtype]
    assert cache.lengths.tolist() == [20, 20, 20]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_chunked_prefill(dtype: torch.dtype) -> None:
    model, ids = MODELS[dtype], random_ids(2, 45)
    with torch.no_grad():
        cache = model.new_cache(2)
        logits = torch.cat([model(piece, cache=cache).logits for piece in ids.split(17, dim=1)], 1)
    assert (logits - model(ids).logits).abs().max() < TOLERANCE[dtype]


def test_the_last_real_token_alone_where_asked() -> None:
    model, ids, lengths = TINY, random_ids(3, 9), torch.tensor([9, 1, 4])
    logits = model(ids, packing=Packing(lengths=lengths), last_only=True).logits
    assert logits.shape == (3, 1, 32)
    for b, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(logits[b, 0], model(ids[b : b + 1, :n]).logits[0, -1], rtol=0, atol=1e-9)


@settings(max_examples=40)
@given(data=st.data(), gradients=st.booleans())
def test_any_interleaving_of_pieces_and_cache_verbs(data: st.DataObject, gradients: bool) -> None:
    """Ragged pieces, forks, reorderings, joins, and branches that go on in turn."""
    model = TINY
    rng = data.draw(st.randoms(use_true_random=False))

    def pieces(rows: int) -> list[list[int]]:
        return [[rng.randrange(32) for _ in range(rng.choice([0, 1, 1, 2, 5, 18]))] for _ in range(rows)]

    held: list[list[int]] = [[] for _ in range(data.draw(st.integers(1, 3)))]
    with nullcontext() if gradients else torch.no_grad():
        cache = model.new_cache(len(held))
        branches: list[tuple[Cache, list[list[int]]]] = []
        verbs = st.sampled_from(["feed", "feed", "feed", "select", "repeat", "cat", "branch", "switch"])
        for verb in data.draw(st.lists(verbs, min_size=3, max_size=10)):
            if verb == "feed":
                new = pieces(len(held))
                logits = feed(model, cache, new)
                held = [ids + piece for ids, piece in zip(held, new, strict=True)]
                for ids, piece, mine in zip(held, new, logits, strict=True):
                    if piece:
                        whole = model(torch.tensor([ids])).logits[0, -len(piece) :]
                        assert (mine - whole).abs().max() < 1e-9
            elif verb == "select":
                rows = [rng.randrange(len(held)) for _ in range(rng.randint(1, 3))]
                cache, held = cache.select(rows), [held[r] for r in rows]
            elif verb == "repeat" and len(held) < 4:
                cache, held = cache.repeat_interleave(2), [ids for ids in held for _ in range(2)]
            elif verb == "cat":
                other, new = model.new_cache(2), pieces(2)
                feed(model, other, new)
                cache, held = Cache.cat([cache, other]), held + new
            elif verb == "branch":
                branches.append((cache.clone() if rng.random() < 0.5 else cache.select(range(len(held))), held))
            elif branches:
                other, new = branches.pop(rng.randrange(len(branches)))
                branches.append((cache, held))
                cache, held = other, new
            assert cache.lengths.tolist() == [len(ids) for ids in held]
            assert cache.rows == len(held)


def test_two_branches_of_one_snapshot_go_on_in_turn() -> None:
    ids = random_ids(3, 12)
    with torch.no_grad():
        first = TINY.new_cache(1)
        TINY(ids[:1, :5], cache=first)
        TINY(ids[:1, 5:6], cache=first)  # now there are spare slots, which a decode fills in place
        second = first.clone()
        for t in range(6, 12):
            for row, cache in ((1, first), (2, second)):
                mine = TINY(ids[row : row + 1, t : t + 1], cache=cache).logits[0, -1]
                whole = TINY(torch.cat([ids[:1, :6], ids[row : row + 1, 6 : t + 1]], 1)).logits[0, -1]
                assert (mine - whole).abs().max() < 1e-9


def test_gradients_through_a_repeated_prefix_equal_those_of_the_plain_batch() -> None:
    model, prefix, suffix = TINY, random_ids(1, 21), random_ids(3, 7, seed=1)
    weight = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def gradients(logits: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        (logits * weight).sum().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    cache = model.new_cache(1)
    model(prefix, cache=cache)
    shared = gradients(model(suffix, cache=cache.repeat_interleave(3)).logits)
    plain = gradients(model(torch.cat([prefix.expand(3, -1), suffix], 1)).logits[:, 21:])
    assert shared.keys() == plain.keys()
    for name, wanted in plain.items():
        assert (shared[name] - wanted).abs().max() < 1e-9 * max(1.0, wanted.abs().max().item()), name


def test_a_half_precision_model_decodes_with_a_wide_recurrent_state() -> None:
    model = tiny(torch.bfloat16)
    ids = random_ids(2, 12)
    with torch.no_grad():
        cache = model.new_cache(2)
        steps = [model(piece, cache=cache).logits for piece in ids.split([6, 1, 1, 4], dim=1)]
        whole = model(ids).logits
    assert whole.dtype == torch.bfloat16
    assert cache.layers[0].state.dtype == torch.float32  # type: ignore[union-attr]
    assert (torch.cat(steps, 1) - whole).float().abs().mean() < 0.1 * whole.float().std()
