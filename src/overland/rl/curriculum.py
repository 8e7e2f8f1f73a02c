"""Which tasks to run next: exact shares for domains and efforts, and levels that can still teach something.

Domains and efforts: the cell (domain, effort) that is furthest behind its share goes next, counted over the whole run,
so that the shares hold over any few steps and not only on average. With `curriculum_domains` a domain's share follows
what its groups teach, and a solved domain leaves its place to the others.

Levels: what a group with pass rate p teaches grows with its variance p (1 - p), the square of the advantages that its
samples get. A level's weight is the mean variance that its groups showed lately (not that of their mean rate: a level
whose tasks are each either solved or hopeless teaches nothing), but never below `curriculum_floor` of the full weight:
solved levels keep being practised and hopeless ones keep being tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overland.chat import EFFORTS
from overland.errors import UsageError
from overland.rl.samples import Group
from overland.rl.section import DomainSection, RLSection

Cell = tuple[str, int, str]
"""Domain, level, effort."""


PRIOR = 0.5
"""What a cell's variance is taken for at first: one group alone says little, and most say nothing."""


@dataclass(frozen=True)
class Order:
    """One group to run."""

    domain: str
    level: int
    effort: str
    seed: int
    """The task's seed: the same for all samples of the group, repeated only where `tasks` of the recipe says so."""


class PassRates:
    """Running success by (domain, level, effort), and how much of it varies within a task."""

    def __init__(self, memory: float = 0.8) -> None:
        self.memory = memory
        self.rate: dict[Cell, float] = {}
        self.variance: dict[Cell, float] = {}
        """4 p (1 - p) of single groups, so that 1 stands for a task that is solved half of the time."""

    def update(self, groups: Iterable[Group]) -> None:
        for group in groups:
            if group.judged:
                cell = (group.domain, group.level, group.effort)
                success = sum(s.success for s in group.judged) / len(group.judged)
                self.rate[cell] = self._moved(self.rate.get(cell, success), success)
                self.variance[cell] = self._moved(self.variance.get(cell, PRIOR), 4 * success * (1 - success))

    def _moved(self, old: float, new: float) -> float:
        return self.memory * old + (1 - self.memory) * new

    def weight(self, cell: Cell, floor: float) -> float:
        """How much the cell teaches, in floor..1."""
        return max(floor, self.variance.get(cell, PRIOR))


class Curriculum:
    """Deals out groups; its whole state is in `state_dict`, so a resumed run deals the same ones."""

    def __init__(self, section: RLSection, levels: Mapping[str, Sequence[int]]) -> None:
        """`levels`: for every taskset, the levels it offers."""
        self.section = section
        for domain in section.domains:
            if domain not in levels:
                raise UsageError(f"rl.domains.{domain} names no taskset of this run; there are: {', '.join(levels)}")
        self.levels = {domain: self._levels(domain, offered) for domain, offered in levels.items()}
        self.shares = {
            (domain, effort): section.domains.get(domain, DomainSection()).share * section.efforts.of(effort).share
            for domain in levels
            for effort in EFFORTS
        }
        self.shares = {cell: share for cell, share in self.shares.items() if share > 0}
        if not self.shares:
            raise UsageError("rl: no (domain, effort) has a share above 0; raise a share in rl.domains or rl.efforts")
        self.owed = dict.fromkeys(self.shares, 0.0)
        """Groups that a cell should have had by now, less those that it had."""
        self.rates = PassRates(section.pass_rate_memory)
        self.next_seed = 0

    def _levels(self, domain: str, offered: Sequence[int]) -> tuple[int, ...]:
        wanted = self.section.domains.get(domain, DomainSection()).levels or tuple(offered)
        for level in wanted:
            if level not in offered:
                raise UsageError(
                    f"rl.domains.{domain}.levels: {level} is not a level of {domain}; "
                    f"it has {', '.join(map(str, offered))}"
                )
        return tuple(wanted)

    def deal(self, count: int) -> list[Order]:
        """The next `count` groups, in order."""
        orders = []
        for _ in range(count):
            shares = self._shares_now()
            total = sum(shares.values())
            for cell, share in shares.items():
                self.owed[cell] += share / total
            cell = max(self.owed, key=self.owed.__getitem__)
            self.owed[cell] -= 1.0
            orders.append(self._order(*cell))
        return orders

    def _shares_now(self) -> dict[tuple[str, str], float]:
        """The shares of the recipe; where domains follow their variance too, each times what a group of it teaches."""
        if not self.section.curriculum_domains:
            return self.shares
        teaches: dict[str, list[tuple[float, float]]] = {}
        for (domain, effort), share in self.shares.items():
            weights = self.level_weights(domain, effort)
            teaches.setdefault(domain, []).append((share, sum(w * w for w in weights) / sum(weights)))
        of_domain = {d: sum(s * t for s, t in found) / sum(s for s, _ in found) for d, found in teaches.items()}
        return {cell: share * of_domain[cell[0]] for cell, share in self.shares.items()}

    def measuring(self) -> list[Order]:
        """`measure_groups` groups of every (domain, level, effort) that can be dealt, and about a step's worth."""
        cells = [(domain, level, effort) for domain, effort in self.shares for level in self.levels[domain]]
        times = max(self.section.measure_groups, round(self.section.tasks_per_step / len(cells)))
        return [Order(*cell, self._seed()) for cell in cells for _ in range(times)]

    def level_weights(self, domain: str, effort: str) -> list[float]:
        floor = self.section.curriculum_floor
        return [self.rates.weight((domain, level, effort), floor) for level in self.levels[domain]]

    def _order(self, domain: str, effort: str) -> Order:
        seed = self._seed()
        choice = random.Random(f"{self.section.seed}/{seed}/{domain}/{effort}")
        level = choice.choices(self.levels[domain], self.level_weights(domain, effort))[0]
        return Order(domain, level, effort, seed)

    def _seed(self) -> int:
        self.next_seed += 1
        number = self.next_seed % self.section.tasks if self.section.tasks else self.next_seed
        return self.section.seed * 1_000_003 + number

    def state_dict(self) -> dict[str, Any]:
        return {
            "owed": [[*cell, count] for cell, count in self.owed.items()],
            "rates": [[*cell, rate, self.rates.variance[cell]] for cell, rate in self.rates.rate.items()],
            "next_seed": self.next_seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.owed.update({(domain, effort): count for domain, effort, count in state["owed"]})
        for *cell, rate, variance in state["rates"]:
            self.rates.rate[tuple(cell)] = rate
            self.rates.variance[tuple(cell)] = variance
        self.next_seed = state["next_seed"]
