"""What a command line asks for becomes one recipe: file, then minutes, then single fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from overland.config import dump_toml, load_recipe
from overland.errors import UsageError
from overland.pipeline import QuickstartRecipe, dry_run, recipe_for_minutes
from overland.pipeline.asked import quickstart_recipe
from overland.pipeline.standalone import check_place
from overland.pipeline.summary import summary_table


def test_nothing_asked_gives_the_defaults() -> None:
    assert quickstart_recipe(None, None, []) == QuickstartRecipe()


def test_single_fields_win_over_minutes_and_minutes_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("seed = 3\n[sft]\nsteps = 500\nlr = 0.5\n")
    found = quickstart_recipe(file, 2, ["sft.steps=7"])
    assert (found.seed, found.sft.steps, found.sft.lr) == (3, 7, 0.5)
    assert found.rl.steps == recipe_for_minutes(2).rl.steps < QuickstartRecipe().rl.steps
    assert quickstart_recipe(file, 2, []).sft.steps == 180  # short runs: half-length dialogues, twice the steps


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), 1e9])
def test_impossible_minutes_are_refused(minutes: float) -> None:
    with pytest.raises(UsageError, match="--minutes"):
        quickstart_recipe(None, minutes, [])


def test_more_ranks_than_there_is_work_for_are_refused() -> None:
    with pytest.raises(UsageError, match=r"ranks = 5000: sft.batch = 6 is shared by them; valid: 1 to 6"):
        quickstart_recipe(None, None, ["ranks=5000"])


def test_a_resumed_run_keeps_its_own_recipe(tmp_path: Path) -> None:
    own = quickstart_recipe(None, 2, ["seed=5"])
    (tmp_path / "recipe.toml").write_text(dump_toml(own))
    assert quickstart_recipe(None, None, [], continues=tmp_path) == own


def test_resuming_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run to continue"):
        quickstart_recipe(None, None, [], continues=tmp_path)


def test_a_dry_run_is_a_recipe_that_reads_back_to_itself(tmp_path: Path) -> None:
    recipe = quickstart_recipe(None, 3, ["rl.efforts.low.tau=0.25"])
    (tmp_path / "shown.toml").write_text(dry_run(recipe))
    assert load_recipe(QuickstartRecipe, tmp_path / "shown.toml") == recipe.seeded()


def test_the_summary_shows_what_there_is_and_no_more() -> None:
    score = {"success": 0.5, "low95": 0.4, "high95": 0.6, "n": 100, "tokens": 20.0, "thinking_tokens": 5, "calls": 1.5}
    shown = summary_table({"held_out": {"sft": {"all": score, "web": score}}, "efforts": {"low": score}})
    assert "after SFT" in shown
    assert "50% (40–60)" in shown
    assert "after RL " not in shown.replace("effort, after RL", "")
    assert summary_table({}) == ""


def test_a_run_of_a_version_that_knew_fewer_fields_can_be_resumed(tmp_path: Path) -> None:
    recipe = QuickstartRecipe(seed=3).seeded()
    lines = [line for line in dump_toml(recipe).splitlines() if not line.startswith("live_episodes")]
    (tmp_path / "recipe.toml").write_text("\n".join(lines))
    check_place(tmp_path, recipe, resume=True)
    with pytest.raises(UsageError, match="is not the one in"):
        check_place(tmp_path, QuickstartRecipe(seed=4).seeded(), resume=True)
    with pytest.raises(UsageError, match="continue it with --resume"):
        check_place(tmp_path, recipe, resume=False)


def test_what_a_kill_left_of_the_first_write_is_no_run(tmp_path: Path) -> None:
    (tmp_path / ".recipe.toml.77.tmp").write_text("seed")
    check_place(tmp_path, QuickstartRecipe(), resume=False)
