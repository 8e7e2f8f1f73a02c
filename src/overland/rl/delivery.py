"""Did the weights reach the sampler? A checksum over all of them, and a canary prompt that both sides score.

Weights that were not delivered, or only partly (tied, quantised, adapted ones), train nothing for weeks before anybody
notices; so every hand-over is checked, and a difference ends the run.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from overland.errors import OverlandError

CANARY = tuple(range(1, 25))
"""Ids that both sides score: any text does."""
CLOSE = 1e-3
"""Nats by which the two may differ: other batch shapes, not other weights."""


def checksum(model: nn.Module) -> str:
    """SHA-256 over the names, shapes, dtypes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_delivery(model: Any, engine: Any, version: int) -> None:
    """Raise OverlandError where `engine` does not hold `model`'s weights under `version`.

    The checksum is skipped where both are one module; the canary never is.
    """
    if engine.version != version:
        raise OverlandError(f"weights: the sampler says version {engine.version}, the trainer handed over {version}")
    if engine.model is not model:
        ours, theirs = checksum(model), checksum(engine.model)
        if ours != theirs:
            raise OverlandError(
                f"weights: version {version} reached the sampler changed (checksum {theirs[:12]}, not {ours[:12]})"
            )
    ids = [id % engine.vocab_size for id in CANARY]
    device = next(model.parameters()).device
    with torch.no_grad():
        logp = model(torch.tensor([ids], device=device)).logits.float().log_softmax(-1)[0, :-1].cpu()
    own = logp.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    worst = float((own - torch.tensor(engine.score(ids))).abs().max())
    if not worst <= CLOSE:
        raise OverlandError(
            f"weights: trainer and sampler score the canary {worst:.3g} nats apart at version {version}; "
            "they hold other weights or compute otherwise"
        )
