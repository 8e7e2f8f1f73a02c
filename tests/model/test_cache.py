"""Every way of running a sequence in pieces against the plain forward over the whole of it, for every layer kind."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import random_ids, tiny
from torch import Tensor

from model.test_families import CASES
from overland.model import Cache, Decoder, DecoderConfig, Packing, load_model

# The tiny model amplifies rounding a thousandfold, so it shows every mistake in fp64; in fp32 the preset itself runs.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
TINY = tiny()
MODELS = {torch.float64: TINY, torch.float32: load_model("nano")}


def of_family(case: str, **changes: object) -> Decoder:
    """A released family's tiny case, every parameter drawn."""
    model = Decoder(DecoderConfig.from_dict({**CASES[case], "vocab_size": 32, **changes})).double()
    gen = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=gen, dtype=torch.float64)
            value.copy_(1 + 0.2 * noise if "norm" in name else noise * value.shape[-1] ** -0.5)
    return model


KINDS = {
    "KDA and MLA": TINY,
    "KDA and DSA": tiny(dsa_config={"num_heads": 4, "head_dim": 8, "topk": 5}),
    "unbounded KDA": of_family("kimi_linear"),
    "rotated MLA": of_family("deepseek_v3 with YaRN"),
    "rotated DSA": of_family("deepseek_v32", index_topk=5),
    "GQA": of_family("llama tied, stretched"),
    "GQA with windows": of_family("qwen3 with a window"),
    "GQA with windows and sinks": of_family("gpt_oss"),
}


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_kind_decodes_prefills_in_chunks_and_takes_ragged_rows(kind: str) -> None:
    model, ids = KINDS[kind], random_ids(3, 19)
    whole = model(ids).logits
    with torch.no_grad():
        cache = model.new_cache(3)
        pieces = [model(piece, cache=cache).logits for piece in ids.split([7, 1, 1, 6, 1, 3], dim=1)]
        assert (torch.cat(pieces, 1) - whole).abs().max() < 1e-9
        ragged = model.new_cache(3)
        rows = ids.tolist()
        taken = [0, 0, 0]
        for step in ([4, 0, 9], [1, 1, 1], [6, 13, 0], [1, 1, 1]):
            logits = feed(model, ragged, [row[at : at + n] for row, at, n in zip(rows, taken, step, strict=True)])
            for b, (at, n) in enumerate(zip(taken, step, strict=True)):
                if n:
                    assert (logits[b] - whole[b, at : at + n]).abs().max() < 1e-9
            taken = [at + n for at, n in zip(taken, step, strict=True)]
        assert ragged.lengths.tolist() == taken == [12, 15, 11]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_in_a_row_equal_each_alone(kind: str) -> None:
    model, ids, sizes = KINDS[kind], random_ids(1, 24), [9, 1, 14]
    documents = torch.cat([torch.full((n,), i) for i, n in enumerate(sizes)])[None]
    packed = model(ids, packing=Packing(documents=documents)).logits
    alone = torch.cat([model(piece).logits for piece in ids.split(sizes, dim=1)], 1)
    assert (packed - alone).abs().max() < 1e-9


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
@given(data=st.data(), gradients=st.booleans(), kind=st.sampled_from(list(KINDS)))
def test_any_interleaving_of_pieces_and_cache_verbs(data: st.DataObject, gradients: bool, kind: str) -> None:
    """Ragged pieces, forks, reorderings, joins, cuts, and branches that go on in turn."""
    model = KINDS[kind]
    rng = data.draw(st.randoms(use_true_random=False))

    def pieces(rows: int) -> list[list[int]]:
        return [[rng.randrange(32) for _ in range(rng.choice([0, 1, 1, 2, 5, 18]))] for _ in range(rows)]

    held: list[list[int]] = [[] for _ in range(data.draw(st.integers(1, 3)))]
    with nullcontext() if gradients else torch.no_grad():
        cache = model.new_cache(len(held))
        branches: list[tuple[Cache, list[list[int]]]] = []
        verbs = st.sampled_from(
            ["feed", "feed", "feed", "select", "repeat", "cat", "branch", "switch", "trim", "restore"]
        )
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
            elif verb == "trim" and all(layer.slotted for layer in cache.layers):
                cut = [rng.randint(0, len(ids)) for ids in held]
                cache, held = cache.trim(cut), [ids[:n] for ids, n in zip(held, cut, strict=True)]
            elif verb == "restore":
                snapshot, new = cache.clone(), pieces(len(held))
                feed(model, cache, new)
                cache.restore(snapshot)
                feed(model, snapshot, new)  # a restored cache does not share memory with its snapshot
            elif verb == "branch":
                branches.append((cache.clone() if rng.random() < 0.5 else cache.select(range(len(held))), held))
            elif branches:
                other, new = branches.pop(rng.randrange(len(branches)))
                branches.append((cache, held))
                cache, held = other, new
            assert cache.lengths.tolist() == [len(ids) for ids in held]
            assert cache.rows == len(held)


def test_a_recurrent_state_cannot_be_cut_back() -> None:
    with torch.no_grad():
        cache = TINY.new_cache(2)
        TINY(random_ids(2, 5), cache=cache)
    with pytest.raises(ValueError, match="keep a clone"):
        cache.trim([3, 5])
    with pytest.raises(ValueError, match=r"trim to \[6, 5\]: the rows hold \[5, 5\]"):
        cache.trim([6, 5])
    assert cache.trim([5, 5]).lengths.tolist() == [5, 5]


@pytest.mark.parametrize("kind", ["rotated DSA", "GQA with windows"])
def test_a_cut_cache_is_bit_equal_to_one_that_never_went_further(kind: str) -> None:
    model, ids = KINDS[kind], random_ids(2, 9)
    with torch.no_grad():
        cache, short = model.new_cache(2), model.new_cache(2)
        model(ids[:, :6], cache=short)
        model(ids[:, :6], cache=cache)
        model(ids[:, 6:], cache=cache)
        for cut, wanted in zip(cache.trim([6, 6]).layers, short.trim([6, 6]).layers, strict=True):
            for a, b in zip(cut.tensors(), wanted.tensors(), strict=True):
                assert torch.equal(a, b)


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
