"""A finished run looked at again, offline: is every reward what the task says, and does anything look like cheating?

Each episode's task is built anew from its seed, its calls are replayed in a fresh world (a fresh sandbox where the task
has a shell), and the verifiers score what is left: nothing the policy left behind in the run can reach them. A reward
that does not come out again, and a task that cannot be built, are proposed for quarantine; a sample is drawn for a
person to label, disagreements and suspicions first.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from overland.environments import Attempt, Task, combine, judge, task_from_data
from overland.environments.wire import message_from_record
from overland.errors import OverlandError, UsageError
from overland.rl.monitors import Finding, findings, read_story
from overland.runs import read_jsonl_zst

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox

Verdict = Literal["agrees", "differs", "not_judged", "not_rebuilt", "broken"]
VERDICTS: tuple[Verdict, ...] = ("agrees", "differs", "not_judged", "not_rebuilt", "broken")
TOLERANCE = 1e-6
REACHED_THE_WORLD = (None, "tool_error", "timeout")
"""Codes of calls that were run; others were answered before they reached the world."""


@dataclass(frozen=True)
class Checked:
    """One episode, looked at again."""

    id: str
    file: str
    task: str
    domain: str
    reward: float | None
    again: float | None
    verdict: Verdict
    why: str = ""
    observations_differ: int = 0
    """Calls that were answered otherwise than in the run."""
    suspicions: tuple[Finding, ...] = ()
    answer: str = ""


@dataclass
class Audit:
    """What an audit found."""

    checked: list[Checked] = field(default_factory=list)

    @property
    def proposals(self) -> dict[str, str]:
        """Tasks for the quarantine list, with the reason."""
        found: dict[str, str] = {}
        for c in self.checked:
            if c.verdict == "broken":
                found.setdefault(c.task, f"cannot be built or scored again: {c.why}")
            elif c.verdict == "differs" and not c.observations_differ:
                found.setdefault(c.task, f"reward {c.reward:g} came out as {c.again:g}")
        return found

    def sample(self, count: int, seed: int = 0) -> list[Checked]:
        """Episodes for a person to label: differing ones, suspected ones, well paid ones, others; each in turn."""
        draw = random.Random(seed)
        buckets: list[list[Checked]] = [[], [], [], []]
        for c in self.checked:
            well_paid = c.reward is not None and c.reward > 0.5
            buckets[0 if c.verdict == "differs" else 1 if c.suspicions else 2 if well_paid else 3].append(c)
        for bucket in buckets:
            draw.shuffle(bucket)
        chosen: list[Checked] = []
        while len(chosen) < count and any(buckets):
            chosen += [bucket.pop() for bucket in buckets if bucket][: count - len(chosen)]
        return chosen

    def figures(self) -> dict[str, Any]:
        """Counts, for people and machines."""
        verdicts = Counter(c.verdict for c in self.checked)
        kinds = Counter(f.kind for c in self.checked for f in c.suspicions)
        domains: dict[str, dict[str, int]] = {}
        for c in self.checked:
            own = domains.setdefault(c.domain, {"episodes": 0, "differs": 0, "suspected": 0})
            own["episodes"] += 1
            own["differs"] += c.verdict == "differs"
            own["suspected"] += bool(c.suspicions)
        return {
            "episodes": len(self.checked),
            **{verdict: verdicts.get(verdict, 0) for verdict in VERDICTS},
            "replayed_differently": sum(bool(c.observations_differ) for c in self.checked),
            "suspected": sum(bool(c.suspicions) for c in self.checked),
            "suspicions": dict(kinds.most_common()),
            "domains": dict(sorted(domains.items())),
            "quarantine": self.proposals,
        }


def audit(
    run: Path,
    *,
    sandbox: Sandbox | None = None,
    files: str = "rl-",
    limit: int = 0,
    scoring: Mapping[str, float] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Audit:
    """Look at episodes of `run` in files whose name begins with `files`, newest first, at most `limit` (0: all).

    `scoring` is what wrong and harmful outcomes cost in the run. Raises UsageError where there are no such episodes.
    """
    result = Audit()
    for file, record in _records(run, files):
        result.checked.append(asyncio.run(check(record, file, sandbox, scoring or {})))
        progress()
        if limit and len(result.checked) >= limit:
            break
    return result


async def check(record: Mapping[str, Any], file: str, sandbox: Sandbox | None, scoring: Mapping[str, float]) -> Checked:
    """One episode in wire form, rebuilt, replayed and scored."""
    data = (record.get("task") or {}).get("data") or {}
    trace: Mapping[str, Any] = next(iter(record.get("traces") or ()), {})
    house = (trace.get("info") or {}).get("overland") or {}
    reward = house.get("reward")
    story = read_story(record)
    known: dict[str, Any] = {
        "id": str(record.get("id", "")),
        "file": file,
        "task": str(data.get("id", "")),
        "domain": str(data.get("domain", "")),
        "reward": reward,
        "suspicions": tuple(findings(story)),
        "answer": story.answer,
    }
    if reward is None:
        return Checked(**known, again=None, verdict="not_judged")
    try:
        task = task_from_data(data)
        again, differ = await _replay(task, trace, sandbox, scoring)
    except UsageError as error:  # this version makes another task of the seed: nothing is said about the run's
        return Checked(**known, again=None, verdict="not_rebuilt", why=str(error))
    except (OverlandError, KeyError, ValueError) as error:
        return Checked(**known, again=None, verdict="broken", why=f"{type(error).__name__}: {error}")
    same = again is not None and abs(again - reward) <= TOLERANCE
    return Checked(**known, again=again, verdict="agrees" if same else "differs", observations_differ=differ)


async def _replay(
    task: Task, trace: Mapping[str, Any], sandbox: Sandbox | None, scoring: Mapping[str, float]
) -> tuple[float | None, int]:
    """(the reward that the replay earns, how many calls were answered otherwise)."""
    messages = [message_from_record(node["message"]) for node in trace.get("nodes") or ()]
    codes = iter(call.get("code") for call in (trace.get("info") or {}).get("tool_calls") or ())
    results = {m.tool_call_id: m.content for m in messages if m.role == "tool"}
    differ = 0
    async with task.open_world(sandbox) as world:
        for message in messages:
            for call in message.tool_calls:
                if next(codes, None) not in REACHED_THE_WORLD:
                    continue
                seen = await world.use(call.name, call.parsed())
                differ += not results.get(call.id, "").startswith(seen)  # a nudge may follow what the tool said
        dimensions = await judge(task, Attempt(messages, str(trace.get("stop_condition") or "")), world)
    return combine(dimensions, wrong=scoring.get("wrong", 0.0), harm=scoring.get("harm", 0.0)), differ


def _records(run: Path, files: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    folder = run / "episodes"
    found: Sequence[Path] = sorted(folder.glob(f"{files}*.jsonl.zst"), reverse=True)
    if not found:
        raise UsageError(f"{run}: no file in {folder} begins with '{files}'; give a run with RL, or --files")
    for path in found:
        for record in read_jsonl_zst(path):
            yield path.name.removesuffix(".jsonl.zst"), record
