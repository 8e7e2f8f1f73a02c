"""Many judged episodes as figures: success with its interval, tokens, calls and why episodes stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from overland.errors import OverlandError, UsageError
from overland.evaluate.intervals import Paired, paired_difference, pass_at_k, wilson
from overland.evaluate.outcomes import Outcome


@dataclass(frozen=True)
class Score:
    """One line of a table. Tokens and calls are means over the judged episodes; None where no episode tells."""

    success: float
    low95: float
    high95: float
    n: int
    """Judged episodes. What the infrastructure failed is in `unjudged` and in no rate."""
    unjudged: int
    tokens: float | None
    """Sampled tokens an episode, thinking included."""
    thinking: float | None
    calls: float | None
    stops: dict[str, int]

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Score:
        outcomes = list(outcomes)
        judged = [o for o in outcomes if o.success is not None]
        interval = wilson(sum(o.success is True for o in judged), len(judged))
        return cls(
            interval.estimate,
            interval.low,
            interval.high,
            len(judged),
            len(outcomes) - len(judged),
            _mean(o.output_tokens for o in judged),
            _mean(o.thinking_tokens for o in judged),
            _mean(o.calls for o in judged),
            dict(Counter(o.stop for o in outcomes).most_common()),
        )

    def to_json(self) -> dict[str, Any]:
        """As it stands in summary.json."""
        return {
            "success": self.success,
            "low95": self.low95,
            "high95": self.high95,
            "n": self.n,
            "unjudged": self.unjudged,
            "tokens": self.tokens,
            "thinking_tokens": self.thinking,
            "calls": self.calls,
            "stops": self.stops,
        }


@dataclass
class Scores:
    """An evaluation: outcomes in the order of their tasks, and the episodes as records to be written."""

    outcomes: list[Outcome] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list, repr=False)
    seconds: float = 0.0

    def __add__(self, other: Scores) -> Scores:
        return Scores(self.outcomes + other.outcomes, self.records + other.records, self.seconds + other.seconds)

    def require_judged(self, share: float) -> None:
        """Raise OverlandError where less than `share` of the episodes, or none, could be judged.

        Otherwise a full disk would look like a policy that fails, or like one that was never asked.
        """
        judged = sum(o.success is not None for o in self.outcomes)
        if self.outcomes and (judged == 0 or judged < share * len(self.outcomes)):
            raise OverlandError(
                f"{len(self.outcomes) - judged} of {len(self.outcomes)} episodes could not be judged: the machine "
                f"failed them, not the policy ({self._first_error() or 'no reason was given'})"
            )

    def _first_error(self) -> str:
        for record in self.records:
            for found in [record, *(record.get("traces") or [])]:
                for error in found.get("errors") or []:
                    return str(error.get("message"))
        return ""

    @property
    def overall(self) -> Score:
        return Score.of(self.outcomes)

    def by(self, key: Callable[[Outcome], Any]) -> dict[Any, Score]:
        """One score for each value of `key`, in order of first appearance."""
        groups: dict[Any, list[Outcome]] = {}
        for o in self.outcomes:
            groups.setdefault(key(o), []).append(o)
        return {value: Score.of(members) for value, members in groups.items()}

    def by_domain(self) -> dict[str, Score]:
        return self.by(lambda o: o.domain)

    def by_effort(self) -> dict[str, Score]:
        return self.by(lambda o: o.effort)

    def by_level(self) -> dict[str, dict[int, Score]]:
        """{domain: {level: score}}, levels in order."""
        cells = self.by(lambda o: (o.domain, o.level))
        domains = dict.fromkeys(domain for domain, _ in cells)
        return {
            d: {level: cells[d, level] for level in sorted(lv for dom, lv in cells if dom == d and lv is not None)}
            for d in domains
        }

    def held_out(self) -> dict[str, dict[str, Any]]:
        """summary.json's held_out.STAGE: {"all": ..., DOMAIN: ...}."""
        return {"all": self.overall.to_json(), **{d: s.to_json() for d, s in self.by_domain().items()}}

    def efforts(self) -> dict[str, dict[str, Any]]:
        """summary.json's efforts: {EFFORT: ...}."""
        return {effort: s.to_json() for effort, s in self.by_effort().items()}

    def levels(self) -> dict[str, dict[str, dict[str, Any]]]:
        """summary.json's levels.STAGE: {DOMAIN: {LEVEL: ...}}."""
        return {
            d: {str(level): s.to_json() for level, s in by_level.items()} for d, by_level in self.by_level().items()
        }

    def pass_at(self, k: int) -> float:
        """Mean unbiased pass@k over tasks that were tried several times. UsageError where a task has fewer than k."""
        tries: dict[tuple[str, str], list[bool]] = {}
        for o in self.outcomes:
            if o.success is not None:
                tries.setdefault((o.task, o.effort), []).append(o.success)
        if not tries:
            raise UsageError(f"pass@{k}: no episode was judged")
        return sum(pass_at_k(len(t), sum(t), k) for t in tries.values()) / len(tries)


def compare(before: Scores, after: Scores) -> Paired:
    """After minus before over the tasks (at the same effort) that both judged, paired by task id.

    UsageError where they share none, or a task occurs twice: means of several tries need `bootstrap_difference`.
    """
    first, second = _by_task(before.outcomes), _by_task(after.outcomes)
    shared = [key for key in first if key in second]
    if not shared:
        raise UsageError("paired comparison: the two evaluations share no judged task at the same effort")
    return paired_difference([first[key] for key in shared], [second[key] for key in shared])


def _by_task(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], bool]:
    found: dict[tuple[str, str], bool] = {}
    for o in outcomes:
        if o.success is None:
            continue
        if (o.task, o.effort) in found:
            raise UsageError(f"paired comparison: task {o.task} was tried more than once at effort {o.effort}")
        found[o.task, o.effort] = o.success
    return found


def _mean(values: Iterable[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
