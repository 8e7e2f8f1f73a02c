"""Tasks follow from their seed; oracles solve them in level + 1 calls through the real tools."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.environments import (
    LEVELS,
    STARTERS,
    Attempt,
    Task,
    combine,
    faults,
    load_environment,
    prompts,
    score,
    task_data,
    task_from_data,
)
from overland.environments.names import FIRSTS, MOST, NAMES, SECONDS, draw_names, split_of
from overland.environments.terminal import FILES
from overland.environments.web import ATTRIBUTES, RELATIONS, page_html
from overland.errors import OverlandError, UsageError

ALL_NAMES = frozenset(NAMES["train"]) | frozenset(NAMES["held_out"])


def every_kind(seeds: range, splits: tuple[str, ...] = ("train", "held_out")) -> Iterator[Task]:
    """Of the starter domains' easy levels, which are solved in level + 1 calls; test_domains.py has the rest."""
    for domain in STARTERS:
        for level in LEVELS:
            for kind in load_environment(domain).kinds[level]:
                for split in splits:
                    for seed in seeds:
                        yield load_environment(domain).task(split, level, seed, kind)


def names_in(task: Task) -> set[str]:
    return ALL_NAMES.intersection(re.findall(r"[a-z]+", repr(task)))


def test_equal_seeds_give_equal_tasks_and_different_seeds_different_worlds() -> None:
    first, again = list(every_kind(range(3))), list(every_kind(range(3)))
    assert first == again
    worlds = [tuple(sorted(names_in(task))) for task in first]
    assert len(set(worlds)) == len(worlds)


def test_a_seed_means_the_same_task_on_every_machine() -> None:
    """Golden: a change here silently makes recorded episodes and held-out sets another thing."""
    found = {name: load_environment(name).task("held_out", 2, 7) for name in STARTERS}
    assert {name: (task.prompt, task.answer) for name, task in found.items()} == GOLDEN


def test_the_easy_tasks_are_the_ones_that_models_were_trained_and_tested_on() -> None:
    """The digest of tasks, demonstrations and tools as they were when the figures of the quickstart were measured."""
    digest = hashlib.sha256()
    for domain in STARTERS:
        taskset = load_environment(domain)
        for level in LEVELS:
            for kind in taskset.kinds[level]:
                for split in ("train", "held_out"):
                    for seed in range(6):
                        t = taskset.task(split, level, seed, kind)
                        steps = [(step.plan, dict(step.args)) for step in t.steps]
                        digest.update(repr((t.id, t.prompt, t.answer, steps, t.outcome, t.closing)).encode())
                        for effort in ("low", "high", "max") if seed < 2 else ():
                            shown = [message.to_openai() for message in t.oracle_conversation(effort)]
                            digest.update(repr(shown).encode())
                            digest.update(repr([spec.declaration for spec in t.tool_specs()]).encode())
    assert digest.hexdigest() == "19ef578e86cb4acc759392da6783c7cf4a17b769031d71468a6d472093fb3b5a"


def test_splits_share_no_name() -> None:
    for task in every_kind(range(20)):
        assert names_in(task), task.id
        assert {split_of(name) for name in names_in(task)} == {task.split}


def test_no_name_is_a_word_of_prompts_pages_or_commands() -> None:
    texts = [str(value) for key, value in vars(prompts).items() if key.isupper()]
    words = set(re.findall(r"[a-z]+", " ".join([*texts, page_html("", (), 0), *FILES, *RELATIONS, *ATTRIBUTES])))
    words |= {"select", "from", "where", "order", "desc", "limit", "firms", "facts", "sales", "profit", "next", "done"}
    assert len(words) > 150
    assert not words & ALL_NAMES
    assert len(NAMES["train"]) > 700
    assert len(NAMES["held_out"]) > 200
    assert all(re.fullmatch(r"[a-z]{4}", name) for names in NAMES.values() for name in names)


@given(seed=st.integers(0, 2**32), split=st.sampled_from(["train", "held_out"]), count=st.integers(1, MOST - 2))
@settings(deadline=None, max_examples=60)
def test_names_of_one_world_share_no_syllable(seed: int, split: str, count: int) -> None:
    drawn = draw_names(random.Random(seed), split, count)
    assert {split_of(name) for name in drawn} == {split}
    assert len({name[:2] for name in drawn}) == len({name[2:] for name in drawn}) == count


def test_both_splits_have_every_syllable() -> None:
    for names in NAMES.values():
        assert {name[:2] for name in names} == set(FIRSTS)
        assert {name[2:] for name in names} == set(SECONDS)
    with pytest.raises(ValueError, match="there are 30"):
        draw_names(random.Random(0), "train", MOST + 1)


def test_every_kind_passes_every_probe() -> None:
    for task in every_kind(range(4)):
        assert faults(task) == []


def test_a_leaking_prompt_and_a_wrong_answer_are_refused() -> None:
    import dataclasses

    task = load_environment("web").task("train", 1, 0)
    leaking = dataclasses.replace(task, prompt=f"{task.prompt} {task.answer}")
    assert any("stands in the prompt" in fault for fault in faults(leaking))
    longer = dataclasses.replace(task, level=2)
    assert any("oracle takes 2 calls, level 2 means 3" in fault for fault in faults(longer))
    terminal = load_environment("terminal").task("train", 1, 0, "copy")
    lazy = dataclasses.replace(terminal, outcome="answer", expected=terminal.files)
    assert faults(lazy)


@pytest.mark.parametrize("effort", ["low", "high", "max"])
def test_demonstrations_call_the_real_tool_and_end_with_the_answer_alone(effort: str) -> None:
    for task in every_kind(range(3)):
        messages = task.oracle_conversation(effort)
        roles = [message.role for message in messages]
        assert roles == ["user", *["assistant", "tool"] * (task.level + 1), "assistant"]
        assert messages[-1].content == task.answer
        assert all(m.content == "" and len(m.tool_calls) == 1 for m in messages[1:-1:2])
        for call, result in zip(messages[1:-1:2], messages[2::2], strict=False):
            assert result.tool_call_id == call.tool_calls[0].id
            task.tool_specs()[0].check(json.loads(call.tool_calls[0].arguments))
            assert len(result.content.split()) <= 12
            assert not result.content.startswith("error")
        if task.outcome == "answer":
            assert task.answer in re.findall(r"\w+", messages[-2].content)


def test_thinking_is_empty_at_low_the_subject_at_high_and_the_remaining_path_at_max() -> None:
    for task in every_kind(range(3)):
        thoughts = {
            effort: [m.reasoning for m in task.oracle_conversation(effort) if m.role == "assistant"]
            for effort in ("low", "high", "max")
        }
        assert not any(thoughts["low"])
        assert thoughts["high"] == [*(f"{step.plan[0]}." for step in task.steps), f"{task.closing} {task.answer}."]
        for high, most in zip(thoughts["high"], thoughts["max"], strict=True):
            subject, path = high.removesuffix("."), most.removesuffix(".").split(" ")[-1].split(">")
            assert most == f"{subject} {'>'.join(path)}."
        paths = [thought.split(" ")[-1] for thought in thoughts["max"]]
        assert all(len(a) >= len(b) for a, b in itertools.pairwise(paths))


def test_figures_of_a_world_are_all_different() -> None:
    for seed in range(30):
        task = load_environment("finance").task("train", 3, seed)
        cells = [value for _, _, *values in task.facts for value in values]  # type: ignore[attr-defined]
        assert len(set(cells)) == len(cells)


def test_pointers_never_loop() -> None:
    for seed in range(60):
        task = load_environment("terminal").task("train", 3, seed)
        files = {path: text.strip() for path, text in task.files.items()}  # type: ignore[attr-defined]
        for start in files:
            path, steps = start, 0
            while files[path].startswith("next "):
                path, steps = files[path][5:], steps + 1
                assert steps < len(files)


def test_a_task_is_rebuilt_from_its_data() -> None:
    for task in every_kind(range(2)):
        assert task_from_data(json.loads(json.dumps(task_data(task)))) == task
    data = task_data(load_environment("web").task("train", 0, 0))
    with pytest.raises(UsageError, match="another version"):
        task_from_data({**data, "prompt": "open the page"})


def test_a_right_answer_after_the_world_was_changed_is_worth_nothing() -> None:
    task = load_environment("terminal").task("train", 0, 0, "read")
    with task.world() as world:
        messages = [*task.messages(), task.oracle_conversation("low")[-1]]
        assert combine(score(task, Attempt(messages), world)) == 1.0
        (world.workdir.path / "extra").write_text("x")  # type: ignore[attr-defined]
        scored = score(task, Attempt(messages), world)
        assert combine(scored) == 0.0
        assert scored["harm"].value == 1.0
        assert combine(scored, wrong=0.5, harm=0.25) == -0.75


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("training", 0, 0), "split 'training' is unknown: use one of train, held_out"),
        (("train", 6, 0), "level 6 does not exist in web: use one of 0, 1, 2, 3"),
        (("train", 0, -1), "seed -1"),
        (("train", 0, 0, "chain"), "kind 'chain' is not in level 0 of web: use one of page"),
    ],
)
def test_wrong_arguments_name_what_is_valid(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load_environment("web").task(*arguments)  # type: ignore[arg-type]


def test_an_unknown_environment_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean terminal"):
        load_environment("termnal")
    with pytest.raises(UsageError, match="no option 'colour'"):
        load_environment("web", colour=1)


def test_the_oracles_shell_runs_nothing_but_the_oracles_commands() -> None:
    with load_environment("terminal").task("train", 0, 0).world() as world:
        with pytest.raises(OverlandError, match="not one of the oracle's"):
            world.call_now({"cmd": "id"})


GOLDEN: dict[str, tuple[str, str]] = {
    "terminal": ("this concerns file zexi/log , walk file>follow>word. , show it", "zupi"),
    "finance": ("start at firm judo , bring firm>partner>owner>topprofit>quarter. at once", "q2"),
    "web": ("start at page bumi , we look for page>friend>tutor>age. now", "85"),
}
