"""Demonstrations: the oracles of the environments, run through the real tools, as dialogues."""

from __future__ import annotations

from pydantic import Field, field_validator

from overland.chat import EFFORTS, Template, Tokenizer
from overland.config import Section
from overland.environments import DOMAINS, load_environment
from overland.runs import progress
from overland.train import Dialogue


class OracleSection(Section):
    """Which tasks the oracles show."""

    domains: tuple[str, ...] = tuple(DOMAINS)
    """Domains that are shown."""
    levels: tuple[int, ...] = (0, 1)
    """Levels that are shown. The harder ones are left for RL to find out."""
    tasks: int = Field(default=100, ge=1)
    """Tasks of each domain and level, each shown at every effort."""
    efforts: tuple[str, ...] = EFFORTS
    """Efforts, each with thinking of its own length."""
    first_seed: int = Field(default=0, ge=0)
    """Seed of the first task."""

    @field_validator("domains")
    @classmethod
    def _domains(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not set(value) <= set(DOMAINS):
            raise ValueError(f"give one or more of {', '.join(DOMAINS)}")
        return value

    @field_validator("efforts")
    @classmethod
    def _efforts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not set(value) <= set(EFFORTS):
            raise ValueError(f"give one or more of {', '.join(EFFORTS)}")
        return value


def oracle_dialogues(section: OracleSection, tokenizer: Tokenizer, template: Template) -> list[Dialogue]:
    """One dialogue for each task and effort, labelled with its domain."""
    found = []
    total = len(section.domains) * len(section.levels) * section.tasks * len(section.efforts)
    with progress("demonstrations", total, "dialogue") as bar:
        for domain in section.domains:
            taskset = load_environment(domain)
            for level in section.levels:
                for seed in range(section.first_seed, section.first_seed + section.tasks):
                    task = taskset.task("train", level, seed)
                    for effort in section.efforts:
                        segments = template.render(
                            task.oracle_conversation(effort), task.tool_specs(), effort, generate=False
                        )
                        encoded = template.encode(segments, tokenizer)
                        found.append(Dialogue(tuple(encoded.ids), tuple(encoded.trained), domain))
                        bar.advance()
    return found
