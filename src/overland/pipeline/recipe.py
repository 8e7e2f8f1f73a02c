"""The quickstart's recipe: one section for each stage, every default a decision that a person can change."""

from __future__ import annotations

import difflib
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from overland.config import Section
from overland.corpus import CorpusSection
from overland.evaluate import EvaluateSection
from overland.model.presets import PRESETS
from overland.pipeline.oracles import OracleSection
from overland.rl import DomainSection, EffortSection, EffortsSection, RLSection
from overland.serve import ServeSection
from overland.train import PretrainSection, SFTSection


class ModelSection(Section):
    """The model that is trained."""

    preset: str = "nano"
    """A preset's name. Its vocabulary follows the tokenizer."""
    initialiser: str = "induction"
    """How it starts; `induction` learns to copy within seconds (docs/decisions)."""

    @field_validator("preset")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in PRESETS:
            near = difflib.get_close_matches(value, PRESETS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(sorted(PRESETS))}"
            raise ValueError(f"{value!r} is no preset; {hint}")
        return value


class QuantizeSection(Section):
    """Routed experts to MXFP4."""

    rule: Literal["even", "floor", "ceil"] = "even"
    """How a block's scale is rounded."""


class QuickstartRecipe(Section):
    """From raw text to a served agent."""

    seed: int = Field(0, ge=0)
    """Decides initial weights, the order of data, tasks and samples."""
    ranks: int = Field(2, ge=1)
    """Processes that train and roll out together, one core each."""
    corpus: CorpusSection = CorpusSection(vocab_size=768, tokenizer_extra_share=0.85)
    """From raw text to token shards."""
    model: ModelSection = ModelSection()
    """The model that is trained."""
    pretrain: PretrainSection = PretrainSection(
        steps=60, batch=16, length=192, drill_share=0.5, weight_decay=0.01, balance_bins=1000
    )
    """Pretraining on packed text."""
    demonstrations: OracleSection = OracleSection(tasks=200, first_seed=1_000_000)
    """What SFT is shown: the oracles' runs on the easy levels, about once each, on tasks that RL does not draw."""
    sft: SFTSection = SFTSection(steps=600, batch=6, members=3, lr=4e-3, balance_bins=1000, weight_decay=0.01)
    """Supervised tuning on the demonstrations. Small batches, many steps: a tiny model learns by the step."""
    rl: RLSection = RLSection(
        steps=28,
        tasks_per_step=48,
        group_size=8,
        minibatches=3,
        lr=1.5e-3,
        final_lr=0.3,
        eps=1e-4,
        turn_tokens=96,
        max_turns=7,
        over_budget_reward=-0.5,
        min_variance=0.02,
        curriculum_floor=0.1,
        curriculum_domains=True,
        checkpoint_every=4,
        live_episodes=192,
        efforts=EffortsSection(
            low=EffortSection(share=0.25, think_tokens=0, output_tokens=200, tau=3.0),
            high=EffortSection(share=0.25, think_tokens=24, output_tokens=360, tau=3.0),
            max=EffortSection(share=1.0, think_tokens=48, output_tokens=480, tau=4.0),
        ),
    )
    """Reinforcement learning on all levels."""
    quantize: QuantizeSection = QuantizeSection()
    """Routed experts to MXFP4."""
    serve: ServeSection = ServeSection(port=0)
    """The server that the held-out tasks are run through."""
    evaluate: EvaluateSection = EvaluateSection(tasks=45)
    """How every checkpoint is measured."""

    @model_validator(mode="after")
    def _something_for_every_rank(self) -> Self:
        shared = {
            "pretrain.batch": self.pretrain.batch,
            "sft.batch": self.sft.batch,
            "rl.tasks_per_step": self.rl.tasks_per_step,
        }
        name, least = min(shared.items(), key=lambda item: item[1])
        if self.ranks > least:
            raise ValueError(f"ranks = {self.ranks}: {name} = {least} is shared by them; valid: 1 to {least}")
        return self

    def seeded(self) -> QuickstartRecipe:
        """The same recipe with the run's seed in every stage that has one."""
        return self.model_copy(
            update={
                name: getattr(self, name).model_copy(update={"seed": self.seed})
                for name in ("corpus", "pretrain", "sft", "rl")
            }
        )


SHORT = 5.0
"""Minutes below which a run keeps to the easiest tasks: there is no time to learn more."""


def recipe_for_minutes(minutes: float, recipe: QuickstartRecipe | None = None) -> QuickstartRecipe:
    """A recipe that does about `minutes` / 10 of the work of the ten-minute one. Fewer tasks make wider intervals.

    Below SHORT minutes demonstrations, RL and evaluation keep to tasks of one call, whose dialogues are half as long.
    """
    full = recipe or QuickstartRecipe()
    share = minutes / 10

    def scaled(value: int, least: int, times: float = share) -> int:
        return max(least, round(value * times))

    changes: dict[str, dict[str, object]] = {
        "pretrain": {"steps": scaled(full.pretrain.steps, 15)},
        "demonstrations": {"tasks": min(400, scaled(full.demonstrations.tasks, 40))},
        "sft": {"steps": scaled(full.sft.steps, 40)},
        "rl": {"steps": scaled(full.rl.steps, 4)},
        "evaluate": {"tasks": min(300, scaled(full.evaluate.tasks, 12))},
    }
    if minutes < SHORT:
        easiest = {domain: DomainSection(levels=(0,)) for domain in full.demonstrations.domains}
        changes["corpus"] = {"max_megabytes": min(2.0, full.corpus.max_megabytes)}
        changes["sft"] = {"steps": scaled(full.sft.steps, 80, 1.8 * share)}
        changes["demonstrations"] |= {"levels": (0,), "tasks": scaled(full.demonstrations.tasks, 80, 3.6 * share)}
        changes["rl"] = {
            "steps": scaled(full.rl.steps, 4, 2.7 * share),
            "tasks_per_step": min(18, full.rl.tasks_per_step),
            "tasks": min(18, full.rl.tasks_per_step),  # the same ones in every step: a few steps show what is learned
            "minibatches": 1,
            "lr": full.rl.lr / 2,  # a policy that is less sure has larger gradients
            "domains": easiest,
        }
        changes["evaluate"] |= {"levels": (0,)}
    return full.model_copy(update={name: getattr(full, name).model_copy(update=new) for name, new in changes.items()})
