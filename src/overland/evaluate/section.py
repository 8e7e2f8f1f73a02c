"""The `[evaluate]` section of a recipe: on how many held-out tasks, and how, a checkpoint is measured."""

from __future__ import annotations

from pydantic import Field, field_validator

from overland.chat import EFFORTS
from overland.config import Section


class EvaluateSection(Section):
    """Held-out evaluation. Tasks depend on these fields alone, so every checkpoint of a run meets the same ones."""

    tasks: int = Field(default=300, ge=1)
    """Held-out tasks a domain, spread evenly over its levels. 300 give intervals of about plus or minus 5 points."""
    levels: tuple[int, ...] = ()
    """Levels to draw from. Empty: those that `max_turns` has room for."""
    first_seed: int = Field(default=0, ge=0)
    """Seed of the first task of each level; the next tasks have the next seeds."""
    efforts: tuple[str, ...] = ("low", "high", "max")
    """Efforts that are measured."""
    sampled: bool = True
    """Also measure at temperature 1, as the policy was trained, beside greedy decoding."""
    max_turns: int = Field(default=8, ge=1)
    """Turns after which an episode ends."""
    output_tokens: int = Field(default=512, ge=1)
    """Sampled tokens of an episode, thinking included, after which it ends."""
    concurrency: int = Field(default=128, ge=1)
    """Episodes that run at once. Results at a fixed seed can depend on it in the last bit of a float, not otherwise."""

    @field_validator("efforts")
    @classmethod
    def _efforts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) != len(value) or not set(value) <= set(EFFORTS):
            raise ValueError(f"efforts are different ones of {', '.join(EFFORTS)}")
        return value
