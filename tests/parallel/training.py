"""Three optimiser steps of a small K3-shaped model, alone or under a layout: the numerical contract's two sides.

The model has KDA, sparse attention with its indexer's loss, a dense and latent mixture-of-experts layers, attention
residuals and a multi-token-prediction block; an auxiliary loss and quantile balancing are on. Alone it is the unchanged
single-device model on the whole batch, with torch's own cross-entropy, clipping and AdamW.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from overland.model import Decoder, initialise
from overland.model.config import (
    ActivationConfig,
    DecoderConfig,
    IndexerConfig,
    KDAConfig,
    LayerConfig,
    MLAConfig,
    MoEConfig,
)
from overland.model.decoder import Aux, Output
from overland.parallel.fits import check
from overland.parallel.layout import Layout
from overland.parallel.meshes import build_meshes
from overland.parallel.parallelize import Parallel, parallelize
from overland.parallel.vocabulary import IGNORED
from overland.train.balance_quantile import QuantileBalance
from overland.transform.activation_checkpointing import checkpoint_layers

WARM, STEPS, ROWS, TOKENS, CLIP, RATE = 3, 3, 4, 16, 0.5, 1e-3
MTP, INDEXER, AUXILIARY, BINS = 0.3, 0.1, 0.01, 200

Weights = dict[str, Tensor]
Piece = tuple[Tensor, tuple[slice, ...]]


def small_k3() -> DecoderConfig:
    """Every part of K3, four heads and eight experts."""
    return DecoderConfig(
        family="kimi_linear",
        vocab_size=96,
        hidden_size=32,
        layers=(
            LayerConfig(mixer="kda", feed_forward="dense"),
            LayerConfig(mixer="kda", feed_forward="moe"),
            LayerConfig(mixer="dsa", feed_forward="moe"),
        ),
        dense_width=64,
        activation=ActivationConfig(kind="situ"),
        attn_res_block=2,
        kda=KDAConfig(heads=4, head_dim=8),
        mla=MLAConfig(
            heads=4,
            q_lora_rank=16,
            kv_lora_rank=16,
            nope_dim=8,
            rope_dim=8,
            value_dim=8,
            output_gate=True,
            rotate=False,
        ),
        indexer=IndexerConfig(heads=2, head_dim=8, topk=6),
        moe=MoEConfig(experts=8, top_k=2, width=16, shared=2, latent=16),
        mtp_layers=1,
    )


@dataclass
class Trained:
    """Losses and gradient norms of every step; by name the first and last step's gradients, and the weights.

    The first step's gradients are taken at weights that are equal on both sides. Under a layout tensors are what one
    rank holds; `joined` puts the ranks' together.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    first: dict[str, Piece] = field(default_factory=dict)
    last: dict[str, Piece] = field(default_factory=dict)
    weights: dict[str, Piece] = field(default_factory=dict)


def joined(pieces: list[dict[str, Piece]]) -> Weights:
    """Whole tensors by name from every rank's pieces. Raises where they leave a gap."""
    found = {}
    for name in pieces[0]:
        held = [rank[name] for rank in pieces]
        shape = [max(where[dim].stop for _, where in held) for dim in range(held[0][0].dim())]
        tensor = held[0][0].new_full(shape, torch.nan)
        for own, where in held:
            tensor[where] = own
        if tensor.isnan().any():
            raise AssertionError(f"{name}: the ranks' pieces leave a gap")
        found[name] = tensor
    return found


def batch(step: int, vocabulary: int) -> Tensor:
    """The whole batch of a step, [ROWS, TOKENS]."""
    return torch.randint(0, vocabulary, (ROWS, TOKENS), generator=torch.Generator().manual_seed(step))


def labels(ids: Tensor, ahead: int) -> Tensor:
    """The token `ahead` places on; IGNORED at the end."""
    return F.pad(ids[:, ahead:], (0, ahead), value=IGNORED)


def everyone(x: Tensor) -> Tensor:
    """The sum over all ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(x)
    return x


def step_loss(output: Output, ids: Tensor, losses: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """This process's part of the whole batch's loss."""
    loss = losses(output.logits, labels(ids, 1)).sum() / (ROWS * (TOKENS - 1))
    for i, logits in enumerate(output.aux.mtp):
        loss = loss + MTP * losses(logits, labels(ids, 2 + i)).sum() / (ROWS * (TOKENS - 2 - i))
    for indexing in output.aux.indexer:
        if indexing.kl is not None:
            loss = loss + INDEXER * indexing.kl.sum() / (ROWS * TOKENS)
    return loss + auxiliary(output.aux)


def auxiliary(aux: Aux) -> Tensor:
    """sum_j f_j P_j of every expert layer, f and P those of the whole batch."""
    found = torch.zeros(())
    for record in aux.router:
        assert record.logits is not None
        scores_NE = record.logits.sigmoid()
        counts_E = everyone(record.counts.clone())
        tokens = int(counts_E.sum()) // record.gate.k
        f_E = counts_E.to(scores_NE.dtype) * len(counts_E) / (record.gate.k * tokens)
        P_E = (scores_NE / scores_NE.sum(-1, keepdim=True)).sum(0) / tokens
        found = found + AUXILIARY * f_E @ P_E
    return found


def plain_losses(logits: Tensor, wanted: Tensor) -> Tensor:
    """What one process has for `Parallel.losses`; prediction blocks give fewer logits than there are tokens."""
    return F.cross_entropy(logits.flatten(0, 1), wanted[:, : logits.shape[1]].flatten(), reduction="none")


def warm(config: DecoderConfig, dtype: torch.dtype) -> Weights:
    """Weights and selection biases after some steps alone: nothing is zero or at its start any more."""
    model = initialise(Decoder(config), "standard", 0).to(dtype)
    run(model, None, range(WARM))
    return model.state_dict()


def alone(config: DecoderConfig, weights: Weights, dtype: torch.dtype) -> Trained:
    """The contract's steps by one process."""
    model = Decoder(config).to(dtype)
    model.load_state_dict(weights)
    return run(model, None, range(WARM, WARM + STEPS))


def under(layout: str, config: DecoderConfig, weights: Weights, dtype: torch.dtype) -> Trained:
    """The same on this process's ranks."""
    model = Decoder(config).to(dtype)
    model.load_state_dict(weights)
    parallel = lay(model, layout)
    found = run(model, parallel, range(WARM, WARM + STEPS))
    parallel.meshes.close()
    return found


def lay(model: Decoder, text: str) -> Parallel:
    """`model` under a layout, as text."""
    layout = Layout.parse(text)
    check(layout, model.config, dist.get_world_size(), TOKENS)
    if layout.recompute == "full":
        checkpoint_layers(model)
    return parallelize(model, layout, build_meshes(layout))


def run(model: Decoder, parallel: Parallel | None, steps: range) -> Trained:
    """Train in place."""
    found = Trained()
    parameters = list(model.parameters())
    held: list[nn.Parameter] = []
    balance = QuantileBalance(bins=BINS, reduce=everyone)
    for step in steps:
        model.zero_grad()  # before the forward: behind it FSDP shows whole parameters at the root
        ids = batch(step, model.config.vocab_size)
        ids = ids if parallel is None else parallel.rows(ids)
        output = model(ids, mtp=True, indexer_stage="sparse" if model.config.indexer else None)
        loss = step_loss(output, ids, plain_losses if parallel is None else parallel.losses)
        loss.backward()
        if parallel is not None:
            parallel.sum_gradients()
        if step in (steps[0], steps[-1]):
            gradients = pieces(model, parallel, lambda parameter: parameter.grad)
            found.first, found.last = found.first or gradients, gradients
        clip = nn.utils.clip_grad_norm_(parameters, CLIP) if parallel is None else parallel.clip_gradients(CLIP)
        if not held:  # AdamW is the same on every part; FSDP has moved what it pads by the first forward
            held = [nn.Parameter(local(parameter.detach())) for parameter in parameters]
            optimizer = torch.optim.AdamW(held, lr=RATE)
        for part, parameter in zip(held, parameters, strict=True):
            part.grad = None if parameter.grad is None else local(parameter.grad)
        optimizer.step()
        balance.observe(output.aux.router)
        balance.update()
        found.losses.append(float(everyone(loss.detach().clone())))
        found.norms.append(float(clip))
    found.weights = pieces(model, parallel, lambda parameter: parameter.data)
    return found


def local(tensor: Tensor) -> Tensor:
    """What this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def pieces(model: Decoder, parallel: Parallel | None, of: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Piece]:
    """Copies of what this process holds, and where it lies."""
    found = {}
    for name, parameter in model.named_parameters():
        tensor = of(parameter)
        if tensor is not None:
            if parallel is None:
                own, where = tensor, tuple(slice(0, size) for size in tensor.shape)
            else:
                own, where = parallel.piece(name, tensor)
            found[name] = (own.clone(), where)
    return found


def under_layouts(
    asked: list[tuple[str, torch.dtype]], config: DecoderConfig, weights: dict[torch.dtype, Weights]
) -> dict[tuple[str, torch.dtype], Trained]:
    """This rank's side of training under each layout in the dtype that is asked for."""
    return {(layout, dtype): under(layout, config, weights[dtype], dtype) for layout, dtype in asked}
