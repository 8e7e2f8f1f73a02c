"""Demonstrations: the oracles of the environments, run through the real tools, as dialogues."""

from __future__ import annotations

from pydantic import Field, field_validator

from overland.chat import EFFORTS, XTML, Segment, Template, Tokenizer
from overland.config import Section
from overland.environments import DOMAINS, STARTERS, Task, load_environment
from overland.environments.names import FIRSTS, SECONDS
from overland.runs import progress
from overland.train import Dialogue, Ranks


class OracleSection(Section):
    """Which tasks the oracles show."""

    domains: tuple[str, ...] = STARTERS
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
    """One dialogue for each task and effort, labelled with its domain. The ranks share the work; all get all."""
    ranks = Ranks.current()
    shown = _shown(section)
    own = ranks.share(shown)
    found = []
    with progress("demonstrations", len(own), "dialogue") as bar:
        for task, effort in own:
            encoded = template.encode(_segments(task, effort, template), tokenizer)
            found.append(Dialogue(tuple(encoded.ids), tuple(encoded.trained), task.domain))
            bar.advance()
    parts = ranks.gather(found)
    return [parts[i % ranks.world][i // ranks.world] for i in range(len(shown))]


def template_texts(section: OracleSection, tasks: int = 100) -> list[str]:
    """What demonstrations are spelled with, segment by segment: the words that a tokenizer should have whole."""
    few = section.model_copy(update={"tasks": min(tasks, section.tasks)})
    efforts = len(few.efforts)  # each task at one effort, in turn
    shown = [pair for n, pair in enumerate(_shown(few)) if n % efforts == n // efforts % efforts]
    texts = [s.text for task, effort in shown for s in _segments(task, effort, XTML()) if not s.special]
    # Each syllable as a word of its own, twice a dialogue: names are then cut between their syllables, always alike.
    return texts + [" ".join((*FIRSTS, *SECONDS))] * (10 * len(shown))


def _shown(section: OracleSection) -> list[tuple[Task, str]]:
    seeds = range(section.first_seed, section.first_seed + section.tasks)
    return [
        (load_environment(domain).task("train", level, seed), effort)
        for domain in section.domains
        for level in section.levels
        for seed in seeds
        for effort in section.efforts
    ]


def _segments(task: Task, effort: str, template: Template) -> list[Segment]:
    return template.render(task.oracle_conversation(effort), task.tool_specs(), effort, generate=False)
