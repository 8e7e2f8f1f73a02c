"""From a pretraining recipe to the loader that it asks for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from overland.corpus import MixtureLoader, TokenLoader
from overland.corpus.loader import domain_streams
from overland.corpus.mixing import Stage
from overland.corpus.section import MixtureStage
from overland.errors import UsageError
from overland.train.section import PretrainSection


def open_loader(
    corpus: str | Path, section: PretrainSection, rank: int = 0, world: int = 1
) -> TokenLoader | MixtureLoader:
    """Batches of `corpus` for `section.steps` steps: one stream, or the mixture and the stages of the recipe.

    Raises UsageError where the mixture cannot be had from this corpus.
    """
    mixture = section.mixture
    if not mixture.weights and not mixture.stage:
        return TokenLoader(
            corpus, batch=section.batch, length=section.length, seed=section.seed, rank=rank, world=world
        )
    asked = mixture.stage or (MixtureStage(share=1.0),)
    stages = [_stage(section, stage, steps) for stage, steps in zip(asked, _steps(section, asked), strict=True)]
    weights = [stage.weights or mixture.weights for stage in asked]
    if not all(weights):
        natural = {name: float(len(part)) for name, part in domain_streams(corpus, "train", verify=False).items()}
        weights = [given or natural for given in weights]
    named = {name for given in weights for name in given}
    caps = {**dict.fromkeys(named, mixture.repeats), **mixture.max_repeats}
    return MixtureLoader(
        corpus,
        [Stage(rows, length, given, batch) for (rows, length, batch), given in zip(stages, weights, strict=True)],
        batch=section.batch,
        max_repeats=caps,
        seed=section.seed,
        rank=rank,
        world=world,
    )


def _stage(section: PretrainSection, stage: MixtureStage, steps: int) -> tuple[int, int, int]:
    """(rows, length, batch) of a stage."""
    length = stage.length or section.length
    batch = stage.batch or max(1, section.batch * section.length // length)
    return steps * batch, length, batch


def _steps(section: PretrainSection, stages: tuple[MixtureStage, ...]) -> list[int]:
    """The steps of each stage; they add up to the recipe's."""
    total, passed, bounds = sum(stage.share for stage in stages), 0.0, [0]
    for stage in stages:
        passed += stage.share
        bounds.append(round(passed / total * section.steps))
    steps = [after - before for before, after in pairwise(bounds)]
    for number, count in enumerate(steps):
        if count < 1:
            raise UsageError(
                f"pretrain.mixture.stage[{number}].share = {stages[number].share:g} is no whole step of "
                f"{section.steps}; raise the share or pretrain.steps"
            )
    return steps
