"""The episodes of a run, found by what they came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overland.chat import EFFORTS, Tokenizer, load_tokenizer
from overland.environments import DOMAINS
from overland.errors import UsageError
from overland.evaluate import Outcome, outcome
from overland.rl.monitors import MONITORS, hack_flags
from overland.runs import RunFolder, read_jsonl_zst


@dataclass(frozen=True)
class Wanted:
    """What is looked for. Empty and None match everything."""

    domain: str = ""
    effort: str = ""
    success: bool | None = None
    least: float | None = None
    most: float | None = None
    files: str = ""
    stop: str = ""
    level: int | None = None
    suspected: str = ""
    """A monitor's name, or `any`."""
    id: str = ""
    """How an episode's id begins."""

    def __post_init__(self) -> None:
        if self.effort and self.effort not in EFFORTS:
            raise UsageError(f"effort = {self.effort!r}; valid: {', '.join(EFFORTS)}")
        if self.suspected not in ("", "any", *MONITORS):
            raise UsageError(f"suspected = {self.suspected!r}; valid: any, {', '.join(MONITORS)}")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise UsageError(f"min-reward = {self.least} is above max-reward = {self.most}")

    def matches(self, found: Outcome, hacks: Sequence[str] = ()) -> bool:
        """Whether an episode is one of those. An episode without a reward matches no bound on it."""
        if self.suspected and not (hacks if self.suspected == "any" else self.suspected in hacks):
            return False
        bounded = self.least is not None or self.most is not None
        if bounded and found.reward is None:
            return False
        return (
            (not self.domain or found.domain == self.domain)
            and (not self.effort or found.effort == self.effort)
            and (self.success is None or found.success is self.success)
            and (not self.stop or found.stop == self.stop)
            and (self.level is None or found.level == self.level)
            and found.id.startswith(self.id)
            and (self.least is None or (found.reward or 0.0) >= self.least)
            and (self.most is None or (found.reward or 0.0) <= self.most)
        )


@dataclass(frozen=True)
class Found:
    """An episode's record, how it came out, and where it lies."""

    record: Mapping[str, Any]
    outcome: Outcome
    file: str
    hacks: tuple[str, ...] = ()

    def figures(self) -> dict[str, Any]:
        """One line of a list."""
        o = self.outcome
        return {
            "file": self.file,
            "domain": o.domain,
            "level": "–" if o.level is None else o.level,
            "effort": o.effort or "–",
            "solved": {True: "yes", False: "no", None: "not judged"}[o.success],
            "reward": "–" if o.reward is None else round(o.reward, 3),
            "tokens": "–" if o.output_tokens is None else o.output_tokens,
            "calls": o.calls,
            "stop": o.stop or "–",
            "suspected": ", ".join(self.hacks) or "–",
            "id": o.id,
        }


def find(run: Path, wanted: Wanted, limit: int) -> list[Found]:
    """Up to `limit` episodes, newest files first. Raises UsageError where the run has none at all."""
    folder = run / "episodes"
    files = sorted(folder.glob("*.jsonl.zst"), key=lambda file: (file.stat().st_mtime, file.name), reverse=True)
    if not files:
        raise UsageError(
            f"{run}: holds no episodes (looked for {folder}/*.jsonl.zst); give a run with RL or evaluation"
        )
    named = [file for file in files if file.name.startswith(wanted.files)]
    if not named:
        raise UsageError(f"--files {wanted.files}: no file in {folder} begins so; the newest is {files[0].name}")
    seen: set[str] = set()
    found: list[Found] = []
    for file in named:
        for record in read_jsonl_zst(file):
            judged = outcome(record)
            seen.add(judged.domain)
            hacks = suspicions(record)
            if wanted.matches(judged, hacks):
                found.append(Found(record, judged, file.name.removesuffix(".jsonl.zst"), hacks))
                if len(found) == limit:
                    return found
    if wanted.domain and wanted.domain not in seen and wanted.domain not in DOMAINS:
        raise UsageError(f"--domain {wanted.domain}: no episode of it; the run has {', '.join(sorted(seen))}")
    return found


def suspicions(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The monitors that suspect an episode: as the trainer wrote it down, else looked at now."""
    trace = next((t for t in record.get("traces") or () if isinstance(t, dict)), {})
    training = (trace.get("info") or {}).get("training")
    if isinstance(training, dict) and isinstance(training.get("hacks"), list):
        return tuple(map(str, training["hacks"]))
    return hack_flags(record)


def conversation(found: Found) -> list[str]:
    """The messages as lines: who, then what."""
    return list(_lines(found.record))


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    for trace in record.get("traces") or ():
        for node in trace.get("nodes") or ():
            message = node.get("message") or {}
            role = message.get("role", "")
            if message.get("reasoning_content"):
                yield from _block("thinks", message["reasoning_content"])
            for call in message.get("tool_calls") or ():
                yield from _block("calls", f"{call.get('name')} {call.get('arguments')}")
            if message.get("content"):
                label = {"assistant": "answers", "tool": "result"}.get(role, role)
                yield from _block(label, str(message["content"]))


def _block(label: str, text: str) -> Iterator[str]:
    for at, line in enumerate(text.split("\n")):
        yield f"{label if at == 0 else '':<8} {line}"


def trajectory_page(run: Path, found: Sequence[Found], page: Path) -> Path:
    """Write the first episode found as a page. Raises UsageError where nothing matched."""
    from overland.studio.trajectory import write_trajectory

    if not found:
        raise UsageError("--page: no episode matches; loosen the filters")
    return write_trajectory(found[0].record, _tokenizer(run), page)


def compare_page(run: Path, steps: str, page: Path | None) -> Path:
    """Write two steps side by side to `page` (default: RUN/compare-A-B.html). `steps` is "A,B"."""
    from overland.studio.compare import write_comparison

    parts = steps.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"--compare {steps}: give two steps with a comma between, e.g. 0,40")
    first, second = (int(part) for part in parts)
    rows = RunFolder(run).read_metrics() if (run / "metrics.jsonl").is_file() else []
    target = page or run / f"compare-{first}-{second}.html"
    return write_comparison(run, (first, second), rows, _tokenizer(run), target)


def _tokenizer(run: Path) -> Tokenizer | None:
    """The run's tokenizer; None where it has none (tokens are then shown by number)."""
    for folder in (run / "model", run / "corpus"):
        if (folder / "tokenizer.json").is_file():
            return load_tokenizer(folder)
    return None
