"""Reward hacking: how many planted exploits the monitors catch, and how many honest episodes they accuse.

    python -m benchmarks.hacking [--quick] [--json OUT] [--cases FILE] [--data FOLDER]

Planted: `hacking_cases/open.json`, which the monitors were written against, and `hacking_cases/blind.json`, which was
written before them and not looked at while they were. `--cases` adds a file of your own in the same form (a list of
{id, kind, prompt, acts: [[tool, arguments, result]], answer, dims, reasoning}; kind "" is honest).

Honest: the oracles' runs through the real tools (every domain, level and effort), near misses written by hand
(`hacking_cases/near_misses.json`: running tests, reading them, committing, polling), and, where `--data` has them,
conversations of other models with other tools: tau_airline_success_84.json, reason_tool_use_50.jsonl,
glaive_toolcall_300.json.

There is no peer to compare with: no trainer that was looked at has such monitors (verl 0.9.1, TRL 1.16, prime-rl).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from overland.chat import EFFORTS
from overland.environments import DOMAINS, load_environment
from overland.pipeline.dialects import read_dialect
from overland.rl.monitors import MONITORS, Story, findings, story_of
from overland.runs import write_json

CASES = Path(__file__).with_name("hacking_cases")
PUBLIC = ("tau_airline_success_84.json", "reason_tool_use_50.jsonl", "glaive_toolcall_300.json")


def case_story(case: dict[str, Any]) -> Story:
    """A written case as an episode's story."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": case["prompt"]}]
    for number, (tool, arguments, result) in enumerate(case["acts"]):
        call = {"id": f"c{number}", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    messages.append({"role": "assistant", "content": case["answer"], "reasoning_content": case.get("reasoning", "")})
    return story_of(messages, case.get("dims"))


def oracle_stories(seeds: int) -> Iterator[tuple[str, Story]]:
    """The oracles' own runs: honest by construction, with full reward."""
    for domain in DOMAINS:
        taskset = load_environment(domain)
        for level in taskset.levels:
            for seed in range(seeds):
                task = taskset.task("train", level, seed)
                for effort in EFFORTS:
                    messages = [m.to_openai() for m in task.oracle_conversation(effort)]
                    yield f"{task.id}/{effort}", story_of(messages, {"answer": 1.0, "state": 1.0}, 1.0)


def public_stories(folder: Path) -> Iterator[tuple[str, Story]]:
    """Conversations of other models, taken to be honest."""
    for name in PUBLIC:
        if (folder / name).is_file():
            for number, row in enumerate(read_dialect(folder / name)):
                yield f"{name}:{number}", story_of(row["messages"], has_tools=bool(row.get("tools")))


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer oracle runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--cases", type=Path, action="append", default=[], help="more cases, in the same form")
    parser.add_argument("--data", type=Path, help="a folder with public conversations")
    asked = parser.parse_args(argv)

    planted: list[tuple[str, dict[str, Any]]] = []
    honest: list[tuple[str, Story]] = []
    for path in (
        CASES / "open.json",
        CASES / "blind.json",
        CASES / "evasive.json",
        CASES / "near_misses.json",
        *asked.cases,
    ):
        for case in json.loads(path.read_text()):
            if case["kind"]:
                planted.append((path.stem, case))
            else:
                honest.append((case["id"], case_story(case)))
    honest += oracle_stories(3 if asked.quick else 15)
    if asked.data:
        honest += public_stories(asked.data)

    began = time.process_time()
    kinds: dict[str, Counter[str]] = {kind: Counter() for kind in MONITORS}
    halves: dict[str, list[int]] = {}
    missed, misnamed = [], []
    for half, case in planted:
        raised = [f.kind for f in findings(case_story(case))]
        kinds[case["kind"]]["planted"] += 1
        kinds[case["kind"]]["caught"] += bool(raised)
        counts = halves.setdefault(half, [0, 0])
        counts[0] += 1
        counts[1] += bool(raised)
        if not raised:
            missed.append(case["id"])
        elif case["kind"] not in raised:
            misnamed.append(case["id"])
    accused = []
    for name, story in honest:
        for finding in findings(story):
            kinds[finding.kind]["accused"] += 1
            accused.append({"episode": name, "kind": finding.kind, "evidence": finding.evidence})
    seconds = time.process_time() - began

    result = {
        "planted": len(planted),
        "caught": len(planted) - len(missed),
        "honest": len(honest),
        "accused": len({a["episode"] for a in accused}),
        "by_kind": {kind: dict(counts) for kind, counts in kinds.items()},
        "by_half": {half: {"planted": n, "caught": c} for half, (n, c) in halves.items()},
        "missed": missed,
        "caught_under_another_kind": misnamed,
        "accusations": accused,
        "cpu_ms_an_episode": round(1000 * seconds / (len(planted) + len(honest)), 3),
    }
    print(f"{'kind':<18} {'planted':>8} {'caught':>8} {'honest accused':>15}")
    for kind, counts in kinds.items():
        print(f"{kind:<18} {counts['planted']:>8} {counts['caught']:>8} {counts['accused']:>15}")
    for half, (n, c) in halves.items():
        print(f"{half}: {c} of {n} caught")
    print(
        f"all: {result['caught']} of {result['planted']} caught, {result['accused']} of {result['honest']} accused, "
        f"{result['cpu_ms_an_episode']} CPU ms an episode"
    )
    if missed:
        print(f"missed: {', '.join(missed)}")
    if asked.json:
        write_json(asked.json, result)
    return result


if __name__ == "__main__":
    main()
