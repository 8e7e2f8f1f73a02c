"""Supervised tuning on dialogues: only the assistant's tokens carry loss, shared beginnings are computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from overland.errors import UsageError
from overland.model import Decoder
from overland.runs import RunFolder, deferred_interrupt, progress
from overland.train.applied import applied
from overland.train.dialogues import DialogueOrder, Group, as_dialogues
from overland.train.evaluate import evaluate_dialogues
from overland.train.losses import token_logprobs
from overland.train.ranks import Ranks
from overland.train.section import SFTSection
from overland.train.shared_prefix import GroupedOutput, run_groups
from overland.train.step import Steps, device_of


def sft(
    model: Decoder,
    dataset: Iterable[object],
    section: SFTSection,
    run: RunFolder,
    *,
    held_out: Iterable[object] = (),
    resume: bool = False,
    stage: str = "sft",
) -> dict[str, Any]:
    """Tune `model` in place on `dataset` (Dialogue, or (ids, trained[, label])); returns the figures of the stage.

    Resuming, Ctrl-C and errors are those of `pretrain`. The order of the data follows from seed and step alone.
    """
    dialogues = as_dialogues(dataset)
    if len(dialogues) < Ranks.current().world:
        raise UsageError(f"{stage}: {len(dialogues)} dialogues for {Ranks.current().world} ranks; give each rank one")
    kept_out = list(held_out)
    order = DialogueOrder(dialogues, section.batch, section.members, section.seed)
    steps = Steps(model, section, run, stage, "sft")
    first = steps.start(resume)
    device = device_of(model)

    model.train()
    with applied(model, section), deferred_interrupt() as stop, progress(stage, section.steps) as bar:
        bar.advance(first)
        for step in range(first, section.steps):
            groups = order.step(step)
            denominator = float(sum(sum(d.trained[1:]) for group in groups for d in group.members))
            by_label: Sums = defaultdict(lambda: [0.0, 0.0])
            loss, tokens = 0.0, 0
            own = _share(groups, steps.ranks)
            pieces = min(section.micro_batches, len(own))
            for piece in (own[i::pieces] for i in range(pieces)):
                out = run_groups(model, piece, device)
                nll = -token_logprobs(out.logits, out.targets)
                part = nll.sum() / denominator
                loss += part.item()
                steps.balanced(part, *out.router, share=len(out.targets) / denominator).backward()
                tokens += out.tokens
                _add_labels(by_label, out, nll.detach())
                for router in out.router:
                    steps.observe(router)
            by_label = _of_all(steps.ranks.gather(dict(by_label)))
            figures = {f"sft/loss/{name}": total / weight for name, (total, weight) in sorted(by_label.items())}
            steps.finish(step, loss, tokens, **figures)
            bar.advance(loss=steps.last_loss)
            if steps.ranks.any(stop.asked):
                steps.save(step + 1)
                raise KeyboardInterrupt

    steps.end()
    result: dict[str, Any] = {
        "steps": section.steps,
        "tokens": steps.tokens,
        "loss": steps.last_loss,
        "dialogues": len(dialogues),
        "skipped_steps": steps.alarms.skipped,
    }
    if kept_out:
        with applied(model, section):
            result["held_out"] = evaluate_dialogues(model, as_dialogues(kept_out))
        flat = {f"held_out/{label}/{k}": v for label, found in result["held_out"].items() for k, v in found.items()}
        run.metrics({"stage": stage, "step": section.steps, **flat})
    return result


def _share(groups: Sequence[Group], ranks: Ranks) -> list[Group]:
    """A rank's part of a step: whole groups where there are enough, else some members of each."""
    if len(groups) >= ranks.world:
        return list(ranks.share(groups))
    parts = [Group(group.prefix, tuple(ranks.share(group.members))) for group in groups]
    return [part for part in parts if part.members]


Sums = dict[str, list[float]]


def _add_labels(sums: Sums, out: GroupedOutput, nll: Tensor) -> None:
    totals = torch.zeros(len(out.rows)).index_add(0, out.row, nll.float().cpu())
    counts = torch.bincount(out.row, minlength=len(out.rows))
    for dialogue, total, count in zip(out.rows, totals.tolist(), counts.tolist(), strict=True):
        if dialogue.label:
            sums[dialogue.label][0] += total
            sums[dialogue.label][1] += count


def _of_all(parts: Sequence[Sums]) -> Sums:
    """The ranks' sums added up."""
    total: Sums = {}
    for part in parts:
        for label, (loss, count) in part.items():
            old = total.get(label, [0.0, 0.0])
            total[label] = [old[0] + loss, old[1] + count]
    return total
