"""Held-out measures: bits per byte of text, loss and exactness of dialogues. Nothing is changed, nothing is sampled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from overland.model import Packing
from overland.train.dialogues import Dialogue
from overland.train.losses import token_logprobs
from overland.train.meters import bits_per_byte
from overland.train.ranks import Ranks
from overland.train.step import device_of

HeldOut = tuple[Sequence[int], int]
"""A document's ids, the first one given and not predicted (BOS), and its UTF-8 bytes."""


@torch.inference_mode()
def evaluate_bpb(model: nn.Module, documents: Iterable[HeldOut], length: int = 512, batch: int = 16) -> float:
    """Bits per byte over `documents`: every token but each document's first is predicted exactly once.

    A document longer than `length` is cut into windows and the context starts again in each, which overstates the
    bits a little; choose the training length or more. The ranks share the documents; all get the figure of all.
    """
    ranks = Ranks.current()
    windows: list[torch.Tensor] = []
    text_bytes = 0
    for ids, size in ranks.share(list(documents)):
        text_bytes += size
        tokens = torch.as_tensor(ids, dtype=torch.long)
        windows += [tokens[at : at + length + 1] for at in range(0, len(tokens) - 1, length)]
    nats = 0.0
    windows.sort(key=len)  # rows of like length together: less padding
    for start in range(0, len(windows), batch):
        rows = windows[start : start + batch]
        lengths = torch.tensor([len(row) - 1 for row in rows], device=device_of(model))
        padded = pad_sequence(rows, batch_first=True).to(device_of(model))
        logits = model(padded[:, :-1], packing=Packing(lengths=lengths)).logits
        logprobs = token_logprobs(logits, padded[:, 1:])
        real = torch.arange(logprobs.shape[1], device=lengths.device) < lengths[:, None]
        nats -= logprobs.double().masked_fill(~real, 0.0).sum().item()
    nats, total_bytes = ranks.sum(nats, text_bytes)
    return bits_per_byte(nats, int(total_bytes))


@torch.inference_mode()
def evaluate_dialogues(model: nn.Module, dialogues: Sequence[Dialogue], batch: int = 16) -> dict[str, dict[str, float]]:
    """Of the trained tokens, by label and for "all": `loss` in nats, `exact` (share of dialogues greedy reproduces).

    Teacher forcing: every token is predicted from the true ones before it.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    ordered = sorted(dialogues, key=lambda d: len(d.ids))
    for start in range(0, len(ordered), batch):
        rows = ordered[start : start + batch]
        lengths = torch.tensor([len(d.ids) - 1 for d in rows], device=device_of(model))
        ids = pad_sequence([torch.tensor(d.ids) for d in rows], batch_first=True).to(device_of(model))
        trained = pad_sequence([torch.tensor(d.trained) for d in rows], batch_first=True)[:, 1:].to(ids.device)
        logits = model(ids[:, :-1], packing=Packing(lengths=lengths)).logits
        nll = -token_logprobs(logits, ids[:, 1:]).double().masked_fill(~trained, 0.0).sum(1)
        right = ((logits.argmax(-1) == ids[:, 1:]) | ~trained).all(1)
        for row, dialogue in enumerate(rows):
            for label in {"all", dialogue.label or "all"}:
                for place, value in enumerate((nll[row].item(), trained[row].sum().item(), float(right[row]), 1.0)):
                    sums[label][place] += value
    return {label: {"loss": s[0] / max(1.0, s[1]), "exact": s[2] / s[3]} for label, s in sorted(sums.items())}
