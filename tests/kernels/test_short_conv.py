"""The short convolution against torch's conv1d."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from overland.kernels import short_conv


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(u_BTC: Tensor, w_CW: Tensor) -> Tensor:
    """A causal depthwise conv1d with zeros before the first token."""
    C, W = w_CW.shape
    return F.conv1d(F.pad(u_BTC.transpose(1, 2), (W - 1, 0)), w_CW[:, None], groups=C).transpose(1, 2)


def test_equals_a_causal_depthwise_convolution() -> None:
    u, w = drawn(2, 11, 5), drawn(5, 4, seed=1)
    torch.testing.assert_close(short_conv(u, w)[0], reference(u, w))


def test_the_tail_is_the_tokens_before() -> None:
    u, w = drawn(2, 11, 5), drawn(5, 4, seed=1)
    _, history = short_conv(u[:, :6], w)
    y, _ = short_conv(u[:, 6:], w, tail=history[:, -3:])
    torch.testing.assert_close(y, reference(u, w)[:, 6:])


def test_taps_stop_at_a_document_boundary_and_the_tail_belongs_to_the_first_document() -> None:
    u, w, tail = drawn(1, 9, 3), drawn(3, 4, seed=1), drawn(1, 3, 3, seed=2)
    documents = torch.tensor([[7, 7, 2, 3, 3, 3, 3, 3, 4]])
    y, _ = short_conv(u, w, tail, documents)
    wanted = torch.cat(
        [
            reference(torch.cat([tail, u[:, :2]], 1), w)[:, 3:],
            reference(u[:, 2:3], w),
            reference(u[:, 3:8], w),
            reference(u[:, 8:], w),
        ],
        dim=1,
    )
    torch.testing.assert_close(y, wanted)


def test_gradients_agree_with_finite_differences() -> None:
    leaves = [drawn(*shape, seed=i).requires_grad_() for i, shape in enumerate([(1, 6, 2), (2, 4), (1, 3, 2)])]
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert torch.autograd.gradcheck(lambda u, w, tail: short_conv(u, w, tail, documents)[0], leaves)
