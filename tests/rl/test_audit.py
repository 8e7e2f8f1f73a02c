"""An audit finds a reward that was not earned, whoever wrote it down, and leaves honest ones alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overland.agent.sandbox import choose_sandbox
from overland.engine import Sampling
from overland.environments import load_environment, run_episode
from overland.errors import UsageError
from overland.pipeline.audit import audit_run
from overland.pipeline.episodes import Wanted, compare_page, find, trajectory_page
from overland.rl import Group
from overland.rl.quarantine import Quarantine
from overland.rl.rollout import to_sample
from overland.rl.trainer import write_episodes
from overland.runs import RunFolder, read_jsonl_zst, write_jsonl_zst
from tests.environments.conftest import Scripted

DOMAINS = ("finance", "web", "terminal")


async def played(domain: str, seed: int, lazy: bool) -> Group:
    """One task played by its oracle, or answered without the work."""
    task = load_environment(domain).task("train", 0, seed, None if domain != "terminal" else "read")
    replies = [m for m in task.oracle_conversation("high") if m.role == "assistant"]
    policy = Scripted(replies[-1:] if lazy else replies)
    if lazy:
        policy.replies = [type(replies[-1])("assistant", "nobody knows")]
    episode = await run_episode(
        task,
        policy,
        "high",
        Sampling(max_tokens=64, seed=1),
        sandbox=choose_sandbox(True),
        id=f"{domain}-{seed}-{lazy}",
    )
    return Group(domain, 0, "high", task.id, (to_sample(episode, version=0),))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import asyncio

    folder = RunFolder(tmp_path_factory.mktemp("run"))
    groups = [asyncio.run(played(d, seed, lazy)) for d in DOMAINS for seed, lazy in ((0, False), (1, True))]
    ids = [s.id for g in groups for s in g.samples]
    for step in (0, 4):
        write_episodes(folder, f"rl-step-{step:05d}", groups, dict.fromkeys(ids, 0.25))
        folder.metrics({"stage": "rl", "step": step + 1, "rl/success": 0.5 + step / 10, "rl/success/web": 0.5})
    return folder.path


def rewritten(run: Path, target: Path, change: Any) -> Path:
    """A copy of a run whose records `change` was given."""
    for path in sorted((run / "episodes").iterdir()):
        records = list(read_jsonl_zst(path))
        for record in records:
            change(record)
        write_jsonl_zst(target / "episodes" / path.name, records)
    return target


def test_honest_rewards_come_out_again(run: Path) -> None:
    report = audit_run(run, sample=5, no_sandbox=True)
    assert report["episodes"] == report["agrees"] == 12
    assert report["replayed_differently"] == report["suspected"] == 0
    assert report["quarantine"] == {}
    assert not (run / "quarantine.json").exists()
    labels = [json.loads(line) for line in (run / "label.jsonl").read_text().splitlines()]
    assert len(labels) == len(report["sample"]) == 5
    assert all(row["label"] is None for row in labels)


def test_a_reward_that_was_written_in_is_found_and_its_task_put_aside(run: Path, tmp_path: Path) -> None:
    def pay(record: dict[str, Any]) -> None:
        house = record["traces"][0]["info"]["overland"]
        if house["reward"] == 0.0:
            house["reward"] = 1.0

    report = audit_run(rewritten(run, tmp_path, pay), sample=4, no_sandbox=True)
    assert report["differs"] == report["agrees"] == 6
    assert all("reward 1 came out as 0" in why for why in report["quarantine"].values())
    assert len(Quarantine.read(tmp_path)) == 3
    assert "differs" in {row["verdict"] for row in report["sample"][:2]}


def test_a_task_of_another_version_is_said_and_not_put_aside(run: Path, tmp_path: Path) -> None:
    def rephrase(record: dict[str, Any]) -> None:
        record["task"]["data"]["prompt"] += " please"

    report = audit_run(rewritten(run, tmp_path, rephrase), limit=3, no_sandbox=True)
    assert (report["not_rebuilt"], report["episodes"], report["quarantine"]) == (3, 3, {})


def test_an_unjudged_episode_stays_so(run: Path, tmp_path: Path) -> None:
    def lose(record: dict[str, Any]) -> None:
        record["traces"][0]["info"]["overland"]["reward"] = None

    assert audit_run(rewritten(run, tmp_path, lose), limit=2, no_sandbox=True)["not_judged"] == 2


def test_a_run_without_such_episodes_is_said(run: Path) -> None:
    with pytest.raises(UsageError, match="begins with 'sft-'"):
        audit_run(run, files="sft-", no_sandbox=True)


def test_episodes_are_found_by_level_stop_id_and_suspicion(run: Path, tmp_path: Path) -> None:
    assert len(find(run, Wanted(stop="answered", level=0), 50)) == 12
    assert len(find(run, Wanted(id="web-1"), 50)) == 2
    assert find(run, Wanted(suspected="any"), 50) == []

    def suspect(record: dict[str, Any]) -> None:
        record["traces"][0]["info"]["training"]["hacks"] = ["network"] if record["id"].startswith("web-0") else []

    changed = rewritten(run, tmp_path, suspect)
    assert {f.outcome.id for f in find(changed, Wanted(suspected="network"), 50)} == {"web-0-False"}
    assert find(changed, Wanted(suspected="any"), 1)[0].figures()["suspected"] == "network"
    with pytest.raises(UsageError, match="suspected = 'luck'"):
        Wanted(suspected="luck")


def test_a_page_shows_every_token_with_mask_log_probability_and_advantage(run: Path, tmp_path: Path) -> None:
    found = find(run, Wanted(id="web-0"), 1)
    page = trajectory_page(run, found, tmp_path / "one.html").read_text()
    nodes = found[0].record["traces"][0]["nodes"]
    assert page.count('<span class="tok') - 8 == sum(len(n["token_ids"]) for n in nodes)  # 8 in the legend
    trained = sum(sum(n["mask"]) for n in nodes)
    assert page.count("log-probability -0.500, advantage +0.25") == trained
    assert "<script" not in page
    with pytest.raises(UsageError, match="no episode matches"):
        trajectory_page(run, [], tmp_path / "none.html")


def test_two_steps_stand_side_by_side(run: Path, tmp_path: Path) -> None:
    page = compare_page(run, "0,4", tmp_path / "two.html").read_text()
    assert "+0.4</td>" in page
    assert page.count('<section class="side">') == len(DOMAINS)
    with pytest.raises(UsageError, match="no episodes of it; it has 0 to 4"):
        compare_page(run, "0,2", None)
    with pytest.raises(UsageError, match="two steps"):
        compare_page(run, "3", None)
