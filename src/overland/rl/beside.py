"""What a recipe asks for beside the policy, a frozen reference, a critic, teachers, and what it applies to it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from overland.errors import UsageError
from overland.rl.algorithms import PPO, Distil, Scored
from overland.rl.critic import Critic, WithCritic
from overland.rl.samples import Group
from overland.rl.score import Numbers, score
from overland.rl.section import RLSection
from overland.train.applied import applied


class Beside:
    """Built once a run from the starting policy."""

    def __init__(self, model: nn.Module, section: RLSection, teachers: Mapping[str, nn.Module] | None = None) -> None:
        """`teachers` (by folder) replaces loading them. Raises UsageError for one that does not fit the student."""
        self.section = section
        self._applied = ExitStack()
        self._applied.enter_context(applied(model, section))
        self.reference = copy.deepcopy(model).requires_grad_(False) if section.reference_kl > 0 else None
        named = {f for a in section.algorithms if isinstance(a, Distil) for f in a.teachers.values()}
        self.teachers = {
            folder: (teachers or {}).get(folder) or load_teacher(folder, model) for folder in sorted(named)
        }
        critics = [a for a in section.algorithms if isinstance(a, PPO)]
        self.critic = Critic(model, trunk=any(a.value_trunk for a in critics)) if critics else None

    def trained(self, model: nn.Module) -> nn.Module:
        """What the optimiser steps and the checkpoint keeps."""
        return model if self.critic is None else WithCritic(model, self.critic)

    def close(self) -> None:
        """Leave the policy as it was."""
        if self.critic is not None:
            self.critic.detach_from_policy()
        self._applied.close()

    def scored(self, model: nn.Module, groups: Sequence[Group]) -> Scored:
        """What the update needs to know of the batch before its first step."""
        section, found = self.section, Scored()
        several = section.epochs * section.minibatches > 1  # else the update's own pass knows it
        if self.critic is not None or (section.correction.level != "none" and several):
            own = score(model, groups, section.micro_batch_tokens, section.temperature, self.critic)
            logp = own.logp if section.correction.level != "none" else {}
            found = Scored(logp=logp, value=own.value)
        return Scored(found.logp, found.value, self._taught(groups))

    def _taught(self, groups: Sequence[Group]) -> Numbers:
        by_teacher: dict[str, list[Group]] = {}
        for group in groups:
            algorithm = self.section.algorithm_of(group.domain)
            if isinstance(algorithm, Distil):
                by_teacher.setdefault(teacher_of(algorithm, group.domain, group.effort), []).append(group)
        taught: Numbers = {}
        for folder, its_groups in by_teacher.items():
            taught |= score(
                self.teachers[folder], its_groups, self.section.micro_batch_tokens, self.section.temperature
            ).logp
        return taught


def teacher_of(algorithm: Distil, domain: str, effort: str) -> str:
    """The folder of the teacher for a domain at an effort: the most exact name wins. Raises UsageError for none."""
    for name in (f"{domain}/{effort}", domain, "*"):
        if name in algorithm.teachers:
            return algorithm.teachers[name]
    raise UsageError(
        f"rl: no teacher for {domain} at {effort} effort; "
        f'add algorithm.teachers."{domain}" or "*" (there are: {", ".join(algorithm.teachers) or "none"})'
    )


def load_teacher(folder: str, student: Any) -> nn.Module:
    """A teacher, frozen. It must read the student's tokens."""
    from overland.model import load_model

    if not (Path(folder) / "config.json").is_file():
        raise UsageError(f"rl: teacher '{folder}' is not a model folder (no config.json)")
    teacher = load_model(folder)
    own, theirs = student.config.vocab_size, teacher.config.vocab_size
    if own != theirs:
        raise UsageError(f"rl: teacher '{folder}' has {theirs} tokens, the student {own}; they need one tokenizer")
    return teacher.eval().requires_grad_(False)
