"""Norm, depth mix, forget gate and routing: the compiled forms against the torch ones and finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from overland import kernels

Form = Callable[..., Sequence[Tensor]]
BACK = torch.tensor([[2, 0], [5, 1], [3, 4]])
EXPERTS = torch.tensor([[3, 0], [1, 2], [0, 3], [2, 3]])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case(form: Form, *shapes: tuple[int, ...]) -> tuple[Form, list[Tensor]]:
    return form, [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]


CASES = {
    "norm": case(lambda x, w: [kernels.rms_norm(x, w, 1e-5)], (3, 4, 20), (20,)),
    "gated norm": case(lambda x, w, g: [kernels.rms_norm(x, w, 1e-5, g)], (5, 32), (32,), (5, 32)),
    "depth mix": case(lambda q, *v: [kernels.depth_mix(v, q, 1e-5)], (20,), (2, 3, 20), (2, 3, 20), (2, 3, 20)),
    "bounded gate": case(lambda z, b, a: [kernels.log_decay(z, b, a, -5.0)], (2, 3, 2, 20), (2, 20), (2,)),
    "unbounded gate": case(lambda z, b, a: [kernels.log_decay(z, b, a, None)], (2, 3, 2, 20), (2, 20), (2,)),
    "choice": case(lambda x: kernels.choose_experts(x, torch.linspace(0, 0.5, 6).to(x), 3)[::2], (5, 6)),
    "plain choice": case(
        lambda x: kernels.choose_experts(x, torch.zeros(4).to(x), 2, EXPERTS, False, 2.5)[::2], (4, 4)
    ),
    "rows": case(lambda z: [kernels.rows_by_expert(z, EXPERTS, 4)[0]], (4, 20)),
    "weighted rows": case(lambda y, w: [kernels.weighted_rows(y, BACK, w)], (6, 20), (3, 2)),
}
each_case = pytest.mark.parametrize("name", CASES)


def results(form: Form, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Outputs and the gradients of a fixed random projection of them."""
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    outputs = form(*leaves)
    loss = sum((y * drawn(*y.shape, seed=9).to(dtype)).sum() for y in outputs)
    assert isinstance(loss, Tensor)
    return [y.detach() for y in outputs] + list(torch.autograd.grad(loss, leaves))


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_forms_agree(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    form, inputs = CASES[name]
    monkeypatch.setenv("OVERLAND_KERNELS", "reference")
    wanted = results(form, inputs, torch.float64)
    for choice in ("torch", "fast"):
        monkeypatch.setenv("OVERLAND_KERNELS", choice)
        ours, tolerance = results(form, inputs, dtype), 3e-6 if dtype == torch.float32 else 1e-13
        for mine, theirs in zip(ours, wanted, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance)
        with torch.no_grad():
            assert torch.equal(form(*(x.to(dtype) for x in inputs))[0], ours[0])


@each_case
def test_gradients_agree_with_finite_differences(name: str) -> None:
    form, inputs = CASES[name]
    assert torch.autograd.gradcheck(lambda *x: tuple(form(*x)), [x.clone().requires_grad_() for x in inputs])


def test_values_that_are_not_finite_stay_visible() -> None:
    x = torch.zeros(2, 32)
    x[0, 3] = float("nan")
    y = kernels.rms_norm(x, torch.ones(32), 1e-5)
    assert y[0].isnan().all()
    assert y[1].isfinite().all()
    assert kernels.situ_glu(x, x, 4.0, 25.0)[0, 3].isnan()
    assert kernels.log_decay(x[:, None, None], torch.zeros(1, 32), torch.zeros(1), -5.0)[0, 0, 0, 3].isnan()


def test_rows_are_sorted_by_expert_and_find_their_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gen = torch.Generator().manual_seed(3)
    experts, z = torch.rand(50, 8, generator=gen).topk(3).indices, torch.randn(50, 5, generator=gen)
    rows, back, counts = kernels.rows_by_expert(z, experts, 8)
    assert torch.equal(counts, torch.bincount(experts.flatten(), minlength=8))
    assert torch.equal(rows[back], z[:, None].expand(50, 3, 5))
    of_row = torch.empty(150, dtype=torch.long).index_put_((back.flatten(),), experts.flatten())
    assert torch.equal(of_row, of_row.sort().values)
    monkeypatch.setenv("OVERLAND_KERNELS", "torch")
    for mine, wanted in zip((rows, back, counts), kernels.rows_by_expert(z, experts, 8), strict=True):
        assert torch.equal(mine, wanted)


@pytest.mark.parametrize("E, k", [(16, 4), (24, 1), (40, 39)])
def test_the_choice_and_the_margins_are_those_of_topk(E: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gen = torch.Generator().manual_seed(E)
    logits, bias = 2 * torch.randn(200, E, generator=gen), 0.1 * torch.randn(E, generator=gen)
    low, width = bias.min() - 1, (bias.max() - bias.min() + 2) / 50
    found = []
    for choice in ("fast", "torch"):
        monkeypatch.setenv("OVERLAND_KERNELS", choice)
        scores, experts, weights = kernels.choose_experts(logits, bias, k)
        found.append((experts, kernels.margin_counts(logits.sigmoid(), bias, k, 50, low, width)))
        torch.testing.assert_close(weights.sum(-1), torch.ones(200))
        torch.testing.assert_close(scores, logits.sigmoid())
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][1].sum() == 200 * E


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_to_latents_is_the_same_in_both_forms_and_sees_no_junk(dtype: torch.dtype) -> None:
    q, e, seen = drawn(3, 2, 4, 20).to(dtype), drawn(3, 40, 20, seed=1).to(dtype), torch.tensor([0, 17, 38])
    args = (seen, 12, 0.3)
    with torch.no_grad():
        m = kernels.attend_latents(q, e, *args)
        torch.testing.assert_close(m, kernels.attend_latents_reference(q, e, *args))
        e[1, 19:] = float("nan")
        assert torch.equal(kernels.attend_latents(q, e, *args), m)
        with pytest.raises(IndexError, match="38 tokens seen and 3 queries do not fit into 40 slots"):
            kernels.attend_latents(drawn(3, 3, 4, 20).to(dtype), e, *args)


def test_recorded_experts_that_do_not_exist_are_refused() -> None:
    with pytest.raises(IndexError, match=r"in 0..4, not in 0..3"):
        kernels.choose_experts(torch.zeros(1, 4), torch.zeros(4), 2, torch.tensor([[0, 4]]))
