"""Pretraining: packed text in, next tokens out, one flat loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from overland.model import Packing
from overland.runs import RunFolder, deferred_interrupt, progress
from overland.train.applied import applied
from overland.train.batch import Loader, as_batch, split_batch
from overland.train.evaluate import HeldOut, evaluate_bpb
from overland.train.losses import cross_entropy
from overland.train.section import PretrainSection
from overland.train.step import Steps, device_of


def pretrain(
    model: nn.Module,
    loader: Loader,
    section: PretrainSection,
    run: RunFolder,
    *,
    held_out: Iterable[HeldOut] = (),
    resume: bool = False,
    stage: str = "pretrain",
) -> dict[str, Any]:
    """Train `model` in place on the loader's batches; returns the figures of the stage.

    With `resume` the newest checkpoint under checkpoints/`stage` is continued, bit for bit as if nothing had happened;
    where there is none, and without `resume`, the model as given is the start. `held_out` documents (ids, bytes) are
    measured before and after (with `section.qat`, after on the quantised values). Ctrl-C saves a checkpoint and then
    raises KeyboardInterrupt. Raises OverlandError when the loss stays non-finite, BrokenFileError for a damaged
    checkpoint.
    """
    steps = Steps(model, section, run, stage, "train", loader)
    first = steps.start(resume)
    documents = list(held_out)
    device = device_of(model)
    if documents and "bpb_before" not in steps.notes:
        model.eval()
        steps.notes["bpb_before"] = evaluate_bpb(model, documents, length=section.length)
        run.metrics({"stage": stage, "step": -1, "held_out/bits_per_byte": steps.notes["bpb_before"]})

    model.train()
    with applied(model, section), deferred_interrupt() as stop, progress(stage, section.steps) as bar:
        bar.advance(first)
        for step in range(first, section.steps):
            batch = as_batch(loader.next())
            denominator = max(1.0, steps.ranks.sum(batch.weights.sum().item())[0])
            loss = 0.0
            for piece in split_batch(batch, section.micro_batches):
                packing = Packing(documents=piece.documents.to(device)) if piece.documents is not None else None
                out = model(piece.inputs.to(device), packing=packing)
                part = cross_entropy(out.logits, piece.targets.to(device), piece.weights.to(device), denominator)
                loss += part.item()
                share = piece.weights.sum().item() / denominator
                steps.balanced(part, out.aux.router, share=share).backward()
                steps.observe(out.aux.router)
            steps.finish(step, loss, batch.inputs.numel())
            bar.advance(loss=steps.last_loss)
            if steps.ranks.any(stop.asked):
                steps.save(step + 1)
                raise KeyboardInterrupt

    steps.end()
    figures = {
        "steps": section.steps,
        "tokens": steps.tokens,
        "loss": steps.last_loss,
        "skipped_steps": steps.alarms.skipped,
    }
    if documents:
        figures["bpb_before"] = steps.notes["bpb_before"]
        with applied(model, section):
            figures["bpb_after"] = evaluate_bpb(model, documents, length=section.length)
        run.metrics({"stage": stage, "step": section.steps, "held_out/bits_per_byte": figures["bpb_after"]})
    return figures
