"""AdamW with the groups that everybody means, and clipping that returns the norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.95)
EPS = 1e-8


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Two parameter groups: matrices decay; vectors, norms, biases, embeddings and convolution taps do not.

    A tap of a depthwise convolution or a query over depth is a vector for each channel, whatever its stored shape;
    pulling it to zero would pull the layer away from the identity it starts near.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decay: list[Tensor] = []
    keep: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        vector = parameter.ndim < 2 or 1 in parameter.shape
        tap = "conv1d" in name
        norm_or_bias = name.endswith("bias") or "norm" in name
        (keep if vector or tap or norm_or_bias or id(parameter) in embeddings else decay).append(parameter)
    groups: list[dict[str, object]] = [
        {"params": decay, "weight_decay": weight_decay},
        {"params": keep, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters of `model`, in one fused pass.

    Its state exists from the start, as zeros: a parameter without a gradient (layer 0's depth mix) would otherwise
    have none, and what a checkpoint holds would depend on which experts had been used so far.
    """
    optimizer = torch.optim.AdamW(decay_groups(model, weight_decay), lr=lr, betas=betas, eps=eps, fused=True)
    for group in optimizer.param_groups:
        for p in group["params"]:
            moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], limit: float) -> float:
    """Scale all gradients so that their global 2-norm is at most `limit` (0: no limit). Returns the norm before.

    A norm that is not finite leaves the gradients alone: the caller skips the step.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])).item()
    if limit > 0 and limit < norm < float("inf"):
        torch._foreach_mul_(gradients, limit / norm)
    return norm
