"""Kimi Delta Attention's recurrence: a gated delta rule with one forget gate per key channel.

    S <- diag(exp(g_t)) S;  u = beta_t (v_t - S^T k_t);  S <- S + k_t u^T;  o_t = S^T q_t

Shapes: B batch, T tokens, H heads, K key dim, V value dim, N chunks, C tokens in a chunk.
Source: Kimi Linear (2025) §3; Kimi K3 report §2.1.1. The chunk form is the WY representation of the same products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from overland.kernels.choice import kernel_choice
from overland.kernels.compiled import Compiled
from overland.kernels.kda_fla import kda_fla, triton_chunk_kda

CHUNK = 16  # with a log decay above -5 a tile of 16 spans less than e^80, and e^±40 around its middle
UNIT_EPS = 1e-6

_native = Compiled("kda", kda_forward="ppp ppppp ppp iiiiii", kda_backward="pppppp ppp ppppp pp iiiiii",
                   kda_step="ppp ppppp pp iiiiii")  # fmt: skip
_WIDEST = 128  # channels of a head that the compiled form holds


def kda(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor | None = None,
    documents_BT: Tensor | None = None,
    bounded: bool = True,
    lengths_B: Tensor | None = None,
    unit: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over T tokens from `state_BHKV` (zeros when None).

    `g_BTHK` is the log decay (<= 0), `beta_BTH` the write strength. Where `documents_BT` changes along T the state
    starts again from zero (`state_BHKV` belongs to the document of the first token; an id must not come back later in
    its row). Tokens past `lengths_B` neither decay nor write the state. `unit` brings queries and keys to length 1
    first, and scales the queries by K^-1/2. `bounded` promises g > -5, which allows cheaper tile products in the torch
    form; the compiled one needs no promise. Returns the outputs [B, T, H, V] and the final state [B, H, K, V].
    """
    if _native.runs(q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, state_BHKV) and _fits(q_BTHK, v_BTHV):
        tensors = (q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, state_BHKV)
        learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
        if learns:
            return _CompiledKDA.apply(*tensors, documents_BT, lengths_B, unit)
        return _without_gradient(*tensors, documents_BT, lengths_B, unit)
    if unit:
        q_BTHK, k_BTHK = _unit(q_BTHK) * q_BTHK.shape[-1] ** -0.5, _unit(k_BTHK)
    if lengths_B is not None:
        valid_BT = torch.arange(q_BTHK.shape[1], device=q_BTHK.device)[None] < lengths_B[:, None]
        g_BTHK = g_BTHK * valid_BT[..., None, None].to(g_BTHK.dtype)
        beta_BTH = beta_BTH * valid_BT[..., None].to(beta_BTH.dtype)
    if kernel_choice() == "fla" and q_BTHK.is_cuda:
        return kda_fla(q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, state_BHKV, documents_BT, bounded, triton_chunk_kda())
    if q_BTHK.shape[1] <= 2 or kernel_choice() == "reference":
        return kda_recurrent(q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, state_BHKV, documents_BT)
    return kda_chunk(q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, state_BHKV, documents_BT, bounded)


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + UNIT_EPS).rsqrt()


def _fits(q_BTHK: Tensor, v_BTHV: Tensor) -> bool:
    return q_BTHK.shape[1] > 0 and max(q_BTHK.shape[-1], v_BTHV.shape[-1]) <= _WIDEST


def _without_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None,
    documents: Tensor | None,
    lengths: Tensor | None,
    unit: bool,
) -> tuple[Tensor, Tensor]:
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    (B, T, H, K), V = q.shape, v.shape[-1]
    state = q.new_zeros(B, H, K, V) if state is None else state
    o, sizes = torch.empty_like(v), (B, T, H, K, V, unit)
    final = torch.empty_like(state, memory_format=torch.contiguous_format)
    if T <= 4:  # a tile would be mostly padding
        _native("kda_step", o, final, state.contiguous(), q, k, v, g, beta, documents, lengths, *sizes)
    else:
        inputs = (q, k, v, g, beta, state.contiguous())
        _native("kda_forward", o, final, None, *inputs, documents, lengths, *sizes)
    return o, final


class _CompiledKDA(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor | None,
        documents: Tensor | None,
        lengths: Tensor | None,
        unit: bool,
    ) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
        (B, T, H, K), V = q.shape, v.shape[-1]
        o, final = torch.empty_like(v), q.new_empty(B, H, K, V)
        states = q.new_empty(B, H, -(-T // CHUNK), K, V)  # the state that enters each chunk, for the backward
        entering, ctx.sizes = state.contiguous() if state is not None else None, (B, T, H, K, V, unit)
        _native("kda_forward", o, final, states, q, k, v, g, beta, entering, documents, lengths, *ctx.sizes)
        ctx.save_for_backward(q, k, v, g, beta, states, documents, lengths)
        ctx.has_state = state is not None
        ctx.set_materialize_grads(False)
        return o, final

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, g, beta, states, documents, lengths = ctx.saved_tensors
        d_o = torch.zeros_like(v) if gradients[0] is None else gradients[0].contiguous()
        d_final = gradients[1].contiguous() if gradients[1] is not None else None
        d_state = states.new_empty(states.shape[:2] + states.shape[3:])
        found = [torch.empty_like(x) for x in (q, k, v, g, beta)]
        inputs = (states, q, k, v, g, beta, documents, lengths)
        _native("kda_backward", *found, d_state, d_o, d_final, *inputs, *ctx.sizes)
        return (*found, d_state if ctx.has_state else None, None, None, None)


def kda_recurrent(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor | None = None,
    documents_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The formula, token by token: the reference, and the form that decoding uses. Arguments as in `kda`."""
    B, T, H, K = q_BTHK.shape
    S = q_BTHK.new_zeros(B, H, K, v_BTHV.shape[-1]) if state_BHKV is None else state_BHKV
    outputs = []
    for t in range(T):
        if documents_BT is not None and t > 0:
            same = documents_BT[:, t] == documents_BT[:, t - 1]
            S = S * same.to(S.dtype)[:, None, None, None]
        S = S * g_BTHK[:, t].exp()[..., None]
        k_BHK = k_BTHK[:, t]
        u_BHV = beta_BTH[:, t, :, None] * (v_BTHV[:, t] - torch.einsum("bhkv,bhk->bhv", S, k_BHK))
        S = S + k_BHK[..., None] * u_BHV[..., None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q_BTHK[:, t]))
    return torch.stack(outputs, dim=1), S


def kda_chunk(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor | None = None,
    documents_BT: Tensor | None = None,
    bounded: bool = True,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """The chunkwise form: products inside a chunk are matrix products, and only the state goes from chunk to chunk."""
    B, T, H, K = q_BTHK.shape
    V = v_BTHV.shape[-1]
    pad = -T % chunk
    N = (T + pad) // chunk

    def tiles(x: Tensor) -> Tensor:  # [B, T, H, X] -> [B, H, N, C, X]; padding has g = 0, beta = 0: it changes nothing
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad)) if pad else x
        return x.reshape(B, N, chunk, H, x.shape[-1]).permute(0, 3, 1, 2, 4).contiguous()

    q, k, v = tiles(q_BTHK), tiles(k_BTHK), tiles(v_BTHV)
    beta = tiles(beta_BTH[..., None])
    G = tiles(g_BTHK).cumsum(dim=3)
    decay, decay_total = G.exp(), G[:, :, :, -1:].exp()

    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    strict = causal.tril(-1)
    enter, leave, keep = None, None, None
    if documents_BT is not None:
        docs = torch.cat([documents_BT, documents_BT[:, -1:].expand(B, pad)], dim=1)
        docs = docs.reshape(B, 1, N, chunk)
        same = docs[..., :, None] == docs[..., None, :]
        causal, strict = causal & same, strict & same
        before = torch.cat([docs[:, :, :1, :1], docs[:, :, :-1, -1:]], dim=2)  # the document whose state enters a chunk
        last = docs[..., -1:]
        enter = (docs == before).to(q.dtype)[..., None]
        leave = (docs == last).to(q.dtype)[..., None]
        keep = (last == before).to(q.dtype)[..., None]

    kk, qk = _tile_products(q, k, G, bounded)
    A = (beta * kk).masked_fill(~strict, 0.0)
    P = qk.masked_fill(~causal, 0.0)
    k_in = k * decay if enter is None else k * decay * enter
    q_in = q * decay if enter is None else q * decay * enter
    right = torch.cat([beta * v, beta * k_in], dim=-1)
    identity = torch.eye(chunk, dtype=q.dtype, device=q.device)
    solved = torch.linalg.solve_triangular(A + identity, right, upper=False, unitriangular=True)
    U, W = solved[..., :V], solved[..., V:]
    k_out = k * (G[:, :, :, -1:] - G).exp()
    if leave is not None and keep is not None:
        k_out = k_out * leave
        decay_total = decay_total * keep

    S = q.new_zeros(B, H, K, V) if state_BHKV is None else state_BHKV
    # unbind, not indexing: the backward of N indexings would fill N tensors of the whole size with zeros
    steps = (x.unbind(2) for x in (U, W, k_out.transpose(-1, -2), decay_total.transpose(-1, -2)))
    fresh, entering = [], []
    for u, w, k_to_state, kept in zip(*steps, strict=True):
        entering.append(S)
        fresh.append(u - w @ S)
        S = kept * S + k_to_state @ fresh[-1]
    o = q_in @ torch.stack(entering, dim=2) + P @ torch.stack(fresh, dim=2)
    return o.permute(0, 2, 3, 1, 4).reshape(B, T + pad, H, V)[:, :T], S


def _tile_products(q: Tensor, k: Tensor, G: Tensor, bounded: bool) -> tuple[Tensor, Tensor]:
    """k_i.k_j and q_i.k_j, both weighted by exp(G_i - G_j): exact where j <= i, anything finite elsewhere."""
    if bounded:
        middle = G[:, :, :, G.shape[3] // 2 : G.shape[3] // 2 + 1]
        down, up = (G - middle).exp(), (middle - G).exp()
        k_up = (k * up).transpose(-1, -2)
        return (k * down) @ k_up, (q * down) @ k_up
    # Without a bound the difference is masked before exp: inf * 0 in the backward would be NaN (reference §15).
    C = G.shape[3]
    later = torch.ones(C, C, dtype=torch.bool, device=G.device).triu(1)
    ratio = (G[..., :, None, :] - G[..., None, :, :]).masked_fill(later[..., None], float("-inf")).exp()
    weighted = k[..., None, :, :] * ratio
    return (k[..., :, None, :] * weighted).sum(-1), (q[..., :, None, :] * weighted).sum(-1)
