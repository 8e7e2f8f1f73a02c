"""A run's episodes are found by domain, effort, outcome and reward."""

from __future__ import annotations

from pathlib import Path

import pytest
from studio.made_up import make_run

from overland.errors import UsageError
from overland.pipeline.episodes import Wanted, conversation, find


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


def test_everything_is_found_up_to_the_limit(run: Path) -> None:
    everything = find(run, Wanted(), 10_000)
    assert len(everything) > 20
    assert [f.record for f in find(run, Wanted(), 3)] == [f.record for f in everything[:3]]


@pytest.mark.parametrize("domain", ["terminal", "finance", "web"])
@pytest.mark.parametrize("effort", ["low", "max"])
@pytest.mark.parametrize("success", [True, False])
def test_filters_select_what_they_say_and_all_of_it(run: Path, domain: str, effort: str, success: bool) -> None:
    found = find(run, Wanted(domain, effort, success), 10_000)
    matching = [
        f
        for f in find(run, Wanted(), 10_000)
        if (f.outcome.domain, f.outcome.effort, f.outcome.success) == (domain, effort, success)
    ]
    assert [f.record["id"] for f in found] == [f.record["id"] for f in matching]


def test_rewards_are_bounded_on_both_sides(run: Path) -> None:
    rewards = [f.outcome.reward for f in find(run, Wanted(least=0.0, most=0.5), 10_000)]
    assert rewards
    assert all(reward is not None and 0.0 <= reward <= 0.5 for reward in rewards)


def test_files_are_chosen_by_their_beginning(run: Path) -> None:
    assert {f.file for f in find(run, Wanted(files="sft"), 10_000)} == {"sft-heldout"}
    with pytest.raises(UsageError, match=r"no file in .* begins so"):
        find(run, Wanted(files="nothing"), 1)


def test_a_conversation_shows_who_said_what(run: Path) -> None:
    [found] = find(run, Wanted(success=True), 1)
    labels = {line.split(" ", 1)[0] for line in conversation(found)}
    assert {"user", "calls", "result", "answers"} <= labels


def test_an_unknown_domain_names_those_of_the_run(run: Path) -> None:
    with pytest.raises(UsageError, match="finance, terminal, web"):
        find(run, Wanted("cooking"), 1)


def test_a_run_without_episodes_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no episodes"):
        find(tmp_path, Wanted(), 1)
