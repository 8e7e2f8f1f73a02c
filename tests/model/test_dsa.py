"""Sparse attention and its indexer: against fla-core's naive form, the dense form, finite differences, its recipe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from kernels.references import fla_naive
from tiny import TINY, random_ids, tiny
from torch import Tensor

from overland.kernels import index_scores, select, selected_ids, selected_mask
from overland.model import Decoder, Replay, indexer_parameters
from overland.model.context import Context, visible
from overland.model.dsa import DSA, divergence
from overland.model.mla import MLA

from .finite_differences import check_gradients

T = 24


def sparse(topk: int = 6, **changes: Any) -> Decoder:
    """The K3-shaped tiny model with an indexer on both full-attention layers."""
    return tiny(dsa_config={"num_heads": 4, "head_dim": 8, "topk": topk}, **changes)


def part(model: Decoder) -> DSA:
    return next(m for m in model.modules() if isinstance(m, DSA))


def hidden(B: int = 2, tokens: int = T) -> Tensor:
    return torch.randn(B, tokens, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def causal(tokens: int = T) -> Tensor:
    return torch.ones(1, tokens, tokens, dtype=torch.bool).tril()


def test_selection_and_attention_equal_fla_core() -> None:
    naive_indexer, naive_dsa = fla_naive("dsa", "naive_dsa_indexer"), fla_naive("dsa", "naive_dsa")
    dsa, x, context = part(sparse()), hidden(), Context()
    with torch.no_grad():
        r = dsa.query_latent(x)
        q_idx = dsa.indexer.wq_b(r).view(2, T, 4, 8)
        k_idx = F.layer_norm(dsa.indexer.wk(x), (8,), dsa.indexer.k_norm.weight, dsa.indexer.k_norm.bias, 1e-5)
        wanted = naive_indexer(q_idx, k_idx, dsa.indexer.weights_proj(x), topk=6, activation="relu")
        q, e = dsa.queries(r, context), dsa.latents(x, context)
        kv = dsa.kv_b_proj(e[..., : dsa.L]).view(2, T, dsa.H, dsa.N + dsa.V)
        k = torch.cat([kv[..., : dsa.N], e[:, :, None, dsa.L :].expand(-1, -1, dsa.H, -1)], -1)
        o = naive_dsa(q, k, kv[..., dsa.N :].contiguous(), q_idx, k_idx, indices=wanted, topk=6)
        y, record = dsa(x, Context(keep_selection=True))
        assert record.selected is not None
        assert torch.equal(record.selected.sort(-1).values, wanted.sort(-1).values)
        assert (y - dsa.output(o, x)).abs().max() < 2e-6  # the naive form works in fp32


@pytest.mark.parametrize("rotate", [False, True])
def test_with_no_more_than_topk_in_sight_it_is_mla(rotate: bool) -> None:
    if rotate:
        from model.test_families import DEEPSEEK

        fields = {**DEEPSEEK, "model_type": "deepseek_v32", "index_n_heads": 4, "index_head_dim": 8, "index_topk": T}
        model = tiny(**dict.fromkeys(TINY) | fields)
    else:
        model = sparse(topk=T)
    dsa, context = part(model), model.model.context(random_ids(2, T), None, None)
    x = torch.randn(2, T, model.config.hidden_size, dtype=torch.float64)
    assert torch.equal(dsa(x, context)[0], MLA.forward(dsa, x, context))
    few = model.model.context(random_ids(2, 3), None, None)
    assert torch.equal(dsa(x[:, :3], few)[0], MLA.forward(dsa, x[:, :3], few))


def test_gathered_keys_equal_a_mask() -> None:
    dsa, x, context = part(sparse()), hidden(), Context()
    q, e = dsa.queries(dsa.query_latent(x), context), dsa.latents(x, context)
    scores = torch.randn(2, T, T, generator=torch.Generator().manual_seed(0))
    kept = select(scores, causal().expand(2, T, T), 6)
    masked, gathered = dsa.expanded(q, e, kept), dsa.gathered(q, e, selected_ids(kept, 6))
    assert (masked - gathered).abs().max() < 1e-12
    (g_masked,) = torch.autograd.grad(masked.square().sum(), dsa.kv_b_proj.weight, retain_graph=True)
    (g_gathered,) = torch.autograd.grad(gathered.square().sum(), dsa.kv_b_proj.weight)
    assert (g_masked - g_gathered).abs().max() < 1e-10


def test_queries_in_chunks_equal_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = sparse(), random_ids(2, T)
    whole = model(ids, indexer_stage="sparse")
    monkeypatch.setattr("overland.model.dsa.SCORE_ELEMENTS", 5 * 2 * 4 * T)
    pieces = model(ids, indexer_stage="sparse")
    assert (pieces.logits - whole.logits).abs().max() < 1e-11
    for a, b in zip(pieces.aux.indexer, whole.aux.indexer, strict=True):
        torch.testing.assert_close(a.kl, b.kl, rtol=0, atol=1e-11)


@given(data=st.data(), S=st.integers(1, 12), topk=st.integers(1, 12))
def test_of_equal_scores_the_earlier_key_is_kept(data: st.DataObject, S: int, topk: int) -> None:
    row = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.0, 2.0]), min_size=S, max_size=S))
    seen = data.draw(st.lists(st.booleans(), min_size=S, max_size=S))
    kept = select(torch.tensor([[row]]), torch.tensor([[seen]]), topk)
    wanted = sorted((i for i in range(S) if seen[i]), key=lambda i: (-row[i], i))[:topk]
    assert kept[0, 0].nonzero().flatten().tolist() == sorted(wanted)
    ids = selected_ids(kept, topk)
    assert ids.shape[-1] == min(topk, S)
    assert [i for i in ids[0, 0].tolist() if i >= 0] == sorted(wanted)
    assert torch.equal(selected_mask(ids, S), kept)


def test_a_recorded_selection_is_used_again() -> None:
    model, ids = sparse(), random_ids(2, T)
    first = model(ids, keep_selection=True)
    kept = [record.selected for record in first.aux.indexer]
    assert (model(ids, replay=Replay(selected=kept)).logits - first.logits).abs().max() < 1e-12
    diagonal = torch.arange(T).view(1, T, 1).expand(2, -1, -1)
    other = model(ids, replay=Replay(selected=[diagonal, diagonal]), keep_selection=True)
    assert not torch.allclose(other.logits, first.logits)
    assert torch.equal(other.aux.indexer[0].selected[..., :1], diagonal)


@pytest.mark.parametrize("stage", ["dense", "sparse"])
def test_each_loss_trains_its_own_part(stage: Any) -> None:
    model, ids = sparse(), random_ids(2, T)
    indexers = {id(p) for p in indexer_parameters(model)}
    out = model(ids, indexer_stage=stage)
    kl = sum(record.kl.sum() for record in out.aux.indexer)
    kl.backward(retain_graph=True)
    for name, p in model.named_parameters():
        assert (p.grad is not None and p.grad.norm() > 0) == (id(p) in indexers), name
    model.zero_grad(set_to_none=True)
    out.logits.square().mean().backward()
    assert all(p.grad is None for p in indexer_parameters(model))
    assert part(model).q_b_proj.weight.grad is not None


def test_the_dense_stage_attends_to_everything() -> None:
    model, ids = sparse(), random_ids(2, T)
    model.train()
    dense = tiny()
    dense.load_state_dict({n: v for n, v in model.state_dict().items() if ".indexer." not in n})
    assert (model(ids, indexer_stage="dense").logits - dense(ids).logits).abs().max() < 1e-11
    assert not torch.allclose(model(ids).logits, dense(ids).logits)


@pytest.mark.parametrize("stage", ["dense", "sparse"])
def test_the_loss_is_the_divergence_from_the_heads_summed_attention(stage: Any) -> None:
    """Formed anew, query by query, from the layers' own projections and torch's kl_div."""
    dsa, x, context = part(sparse()), hidden(1), Context()
    _, record = dsa(x, Context(indexer_stage=stage))
    r = dsa.query_latent(x)
    q, e = dsa.queries(r, context)[0], dsa.latents(x, context)[0]
    kv = dsa.kv_b_proj(e[:, : dsa.L]).view(T, dsa.H, dsa.N + dsa.V)
    k = torch.cat([kv[..., : dsa.N], e[:, None, dsa.L :].expand(-1, dsa.H, -1)], -1)
    scores = index_scores(*dsa.indexer.queries(r, x, context), dsa.indexer.keys(x, context))[0]
    for t in range(T):
        support = torch.arange(t + 1)
        if stage == "sparse":
            support = scores[t, : t + 1].argsort(descending=True, stable=True)[:6]
        p = sum((k[support, h] @ q[t, h] * dsa.scale).softmax(-1) for h in range(dsa.H)) / dsa.H
        wanted = F.kl_div(scores[t, support].log_softmax(-1), p, reduction="sum")
        assert record.kl[0, t].item() == pytest.approx(wanted.item(), abs=1e-10)
        if stage == "dense":
            best = scores[t, : t + 1].argsort(descending=True, stable=True)[:6]
            assert record.mass[0, t].item() == pytest.approx(p[best].sum().item(), abs=1e-10)


@pytest.mark.parametrize("stage", ["dense", "sparse"])
def test_the_indexers_gradient_agrees_with_finite_differences(stage: Any) -> None:
    dsa, x = part(sparse()), hidden(1)

    def loss() -> Tensor:
        return dsa(x, Context(indexer_stage=stage))[1].kl.sum()

    assert check_gradients(dsa.indexer, loss) > 3


def test_warm_up_teaches_the_indexer_where_attention_goes() -> None:
    """The dense stage alone: divergence falls and the kept 16 of 96 tokens cover most of the attention."""
    model = tiny(
        torch.float32,
        dsa_config={"num_heads": 8, "head_dim": 16, "topk": 16},
        linear_attn_config={"full_attn_layers": [1], "kda_layers": [], "num_heads": 2, "head_dim": 8},
        num_hidden_layers=1,
        num_attention_heads=4,
        q_lora_rank=16,
    )
    dsa = part(model)
    optimiser = torch.optim.Adam(indexer_parameters(model), lr=2e-2)
    gen = torch.Generator().manual_seed(0)

    def measure(x: Tensor) -> tuple[Tensor, float, float]:
        record = dsa(x, Context(indexer_stage="dense"))[1]
        late = slice(48, None)  # earlier queries see few tokens
        return record.kl.mean(), record.kl[:, late].mean().item(), record.mass[:, late].mean().item()

    held_out = torch.randn(4, 96, 16, generator=gen)
    _, kl_before, mass_before = measure(held_out)
    for _ in range(100):
        optimiser.zero_grad()
        measure(torch.randn(2, 96, 16, generator=gen))[0].backward()
        optimiser.step()
    _, kl_after, mass_after = measure(held_out)
    assert kl_after < 0.4 * kl_before
    assert mass_after > 1.7 * mass_before


def test_padding_has_no_loss() -> None:
    from overland.model import Packing

    model, ids = sparse(), random_ids(2, T)
    out = model(ids, packing=Packing(lengths=torch.tensor([T, 7])), indexer_stage="sparse")
    alone = model(ids[1:, :7], indexer_stage="sparse")
    for record, wanted in zip(out.aux.indexer, alone.aux.indexer, strict=True):
        assert record.kl[1, 7:].abs().max() == 0
        torch.testing.assert_close(record.kl[1, :7], wanted.kl[0], rtol=0, atol=1e-10)


def test_divergence_of_equal_distributions_is_zero() -> None:
    seen = causal(5)
    scores = torch.randn(1, 5, 5, dtype=torch.float64)
    p = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    assert divergence(p, scores, seen).abs().max() < 1e-12
    assert visible(Context(), 5, 5, torch.device("cpu")) is None
