"""Several documents in a row against each document alone; chosen positions against all of them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import random_ids, tiny

from overland.model import Packing

MODEL = tiny()


@settings(max_examples=25)
@given(rows=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=4), min_size=1, max_size=3))
def test_documents_in_a_row_equal_each_document_alone(rows: list[list[int]]) -> None:
    T = max(sum(row) for row in rows)
    rows = [[*row, T - sum(row)] if sum(row) < T else row for row in rows]
    ids = random_ids(len(rows), T)
    documents = torch.stack([torch.cat([torch.full((n,), 3 + i) for i, n in enumerate(row)]) for row in rows])
    packed = MODEL(ids, packing=Packing(documents=documents)).logits
    for b, row in enumerate(rows):
        alone = torch.cat([MODEL(piece[None]).logits[0] for piece in ids[b].split(row)])
        assert (packed[b] - alone).abs().max() < 1e-9


def test_an_id_that_comes_back_is_another_document() -> None:
    ids, documents = random_ids(1, 40), torch.tensor([[0] * 5 + [1] * 7 + [0] * 6 + [1] * 22])
    packed = MODEL(ids, packing=Packing(documents=documents)).logits
    alone = torch.cat([MODEL(piece).logits for piece in ids.split([5, 7, 6, 22], dim=1)], 1)
    assert (packed - alone).abs().max() < 1e-9


def test_gradients_stay_inside_a_document() -> None:
    ids, documents = random_ids(1, 12), torch.tensor([[0] * 5 + [1] * 7])
    MODEL.zero_grad()
    ids[0, :5], ids[0, 5:] = 1, 2
    MODEL(ids, packing=Packing(documents=documents)).logits[0, 5:].square().sum().backward()
    grad = MODEL.model.embed_tokens.weight.grad
    assert grad is not None
    assert grad[1].abs().max() < 1e-12 * grad[2].abs().max()


def test_padding_on_the_right_changes_no_real_token() -> None:
    ids, lengths = random_ids(3, 20), torch.tensor([20, 1, 17])
    padded = MODEL(ids, packing=Packing(lengths=lengths)).logits
    for b, n in enumerate(lengths.tolist()):
        assert (padded[b, :n] - MODEL(ids[b : b + 1, :n]).logits[0]).abs().max() < 1e-9


def test_logits_at_chosen_positions() -> None:
    ids = random_ids(3, 15)
    where = torch.rand(3, 15, generator=torch.Generator().manual_seed(0)) < 0.3
    chosen, whole = MODEL(ids, where=where).logits, MODEL(ids).logits
    assert chosen.shape == (int(where.sum()), 32)
    torch.testing.assert_close(chosen, whole[where], rtol=0, atol=1e-12)
