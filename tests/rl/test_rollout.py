"""From episodes to samples: the sampler's ids are the only truth, forced and observed tokens are never trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import tiny

from overland.chat import Message, Tokenizer, build_tokenizer
from overland.corpus.bpe import train_bpe
from overland.engine import Engine
from overland.environments import Episode, MessageNode, ModelCall, Reward, Trace, load_environment
from overland.errors import OverlandError
from overland.model import Decoder
from overland.rl import GRPO, Order, RLSection
from overland.rl.batch import train_rows
from overland.rl.rollout import EpisodeRollouts, to_sample
from overland.rl.section import EffortSection, EffortsSection
from overland.rl.trainer import preflight
from overland.rl.update import accumulate


def episode(**changes: object) -> Episode:
    """Prompt 1 2 3; the policy writes 4 and is forced to 5; the tool says 6 7; the policy writes 8 9."""
    nodes = [
        MessageNode(Message("user", "?"), None, False, [1, 2, 3], [False] * 3, [], [False] * 3),
        MessageNode(Message("assistant", ""), 0, True, [4, 5], [True, False], [-0.5], [False, True]),
        MessageNode(Message("tool", "!"), 1, False, [6, 7], [False] * 2, [], [False] * 2),
        MessageNode(Message("assistant", "done"), 2, True, [8, 9], [True, True], [-0.25, -0.75], [False] * 2),
    ]
    calls = [
        ModelCall(1, completion_tokens=2, reasoning_tokens=1, policy_version=3),
        ModelCall(3, completion_tokens=2, policy_version=4),
    ]
    trace = Trace("t", nodes, calls, dimensions={"answer": Reward(1.0)}, reward=1.0, stop="answered")
    task = {"id": "web/train/0/1", "domain": "web"}
    return replace(Episode("e", "web", task, [trace]), **changes)  # type: ignore[arg-type]


def test_an_episode_of_several_turns_is_one_sequence_with_the_samplers_own_ids() -> None:
    sample = to_sample(episode(), version=4)
    assert sample.ids == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert sample.prompt_length == 3
    assert sample.trained == (False, False, False, True, False, False, False, True, True)
    assert sample.logprobs == (0.0, 0.0, 0.0, -0.5, 0.0, 0.0, 0.0, -0.25, -0.75)
    assert (sample.reward, sample.success, sample.output_tokens, sample.thinking_tokens) == (1.0, True, 4, 1)
    assert sample.policy_version == 3
    assert not sample.forked


def test_a_prompt_ends_where_forcing_begins_when_nothing_could_be_sampled_before() -> None:
    forced_first = episode()
    node = forced_first.traces[0].nodes[1]
    node.mask, node.forced, node.logprobs = [False, True], [True, False], [-0.5]
    assert to_sample(forced_first, version=0).prompt_length == 3


@pytest.mark.parametrize("changes", [{"is_timeout": True}, {"errors": [{"type": "OSError", "message": "disk full"}]}])
def test_what_the_machine_failed_is_not_judged(changes: dict[str, object]) -> None:
    sample = to_sample(episode(**changes), version=0)
    assert sample.reward is None
    assert not sample.success


def test_an_episode_that_failed_before_its_first_token_is_kept_without_anything_to_train() -> None:
    failed = Episode("e", "web", {"id": "x", "domain": "web"}, [Trace("t", errors=[{"type": "E", "message": "m"}])])
    sample = to_sample(failed, version=2)
    assert (sample.reward, sample.trained_tokens, sample.policy_version) == (None, 0, 2)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(train_bpe(["open a page of the site and find the job of the friend"], 270))


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Decoder:
    return tiny(torch.float32, vocab_size=tokenizer.vocab_size, max_position_embeddings=2048)


SECTION = RLSection(
    group_size=3,
    turn_tokens=12,
    max_turns=2,
    efforts=EffortsSection(low=EffortSection(think_tokens=4), max=EffortSection(output_tokens=9)),
)
ORDERS = [Order("web", 0, "low", 1), Order("finance", 1, "high", 2), Order("web", 1, "max", 3)]


def rollouts(model: Decoder, tokenizer: Tokenizer, section: RLSection = SECTION) -> EpisodeRollouts:
    tasksets = {name: load_environment(name) for name in ("web", "finance")}
    source = EpisodeRollouts(Engine(model, max_batch=16), tokenizer, tasksets, section)
    source.set_weights(model, version=1)
    return source


def test_real_episodes_train_exactly_what_the_engine_sampled(model: Decoder, tokenizer: Tokenizer) -> None:
    """The trainer, with shared prompts and padding, finds the engine's log-probabilities again."""
    groups = rollouts(model, tokenizer).run(ORDERS, version=1)
    for group in groups:
        assert len({s.ids[: s.prompt_length] for s in group.samples}) == 1
        assert len({s.id for s in group.samples}) == 3
    varied = [g.with_samples([replace(s, reward=float(i)) for i, s in enumerate(g.samples)]) for g in groups]
    done = accumulate(model, train_rows(varied, GRPO()), SECTION)
    model.zero_grad(set_to_none=True)
    means = done.figures.means()
    assert done.figures.tokens > 50
    assert means["mismatch_kl"] < 1e-9
    assert means["log_ratio_abs_max"] < 1e-3


def test_the_same_seed_and_version_give_the_same_episodes(model: Decoder, tokenizer: Tokenizer) -> None:
    first = rollouts(model, tokenizer).run(ORDERS, version=1)
    assert rollouts(model, tokenizer).run(ORDERS, version=1) == first
    in_waves = SECTION.model_copy(update={"live_episodes": 4})
    waves = rollouts(model, tokenizer, in_waves).run(ORDERS, version=1)
    assert [s.ids for g in waves for s in g.samples] == [s.ids for g in first for s in g.samples]
    other = rollouts(model, tokenizer).run(ORDERS, version=2)
    assert [s.ids for g in other for s in g.samples] != [s.ids for g in first for s in g.samples]


def test_budgets_bound_thinking_and_output_and_forced_tokens_are_not_trained(
    model: Decoder, tokenizer: Tokenizer
) -> None:
    groups = rollouts(model, tokenizer).run(ORDERS, version=1)
    low, _, most = groups
    assert any(sum(s.trained) < s.output_tokens for s in low.samples)
    assert all(s.thinking_tokens <= 4 * SECTION.max_turns for s in low.samples)
    assert all(s.output_tokens <= 9 for s in most.samples)


def test_a_task_whose_prompt_does_not_fit_is_a_failure_of_its_data(model: Decoder, tokenizer: Tokenizer) -> None:
    source = rollouts(model, tokenizer)
    source.policy.context_length = 40
    groups = source.run(ORDERS, version=1)
    assert all(g.failed_data and not g.judged for g in groups)
    with pytest.raises(OverlandError, match="the context holds 40"):
        preflight(groups, SECTION)


def test_a_quarantined_task_is_not_run(model: Decoder, tokenizer: Tokenizer) -> None:
    source = rollouts(model, tokenizer)
    first = source.run(ORDERS, version=1)
    source.quarantine.add(first[1].task_id, "broken")
    again = source.run(ORDERS, version=1)
    assert [len(g.samples) for g in again] == [len(g.samples) if g is not first[1] else 0 for g in first]
    for one, other in zip(again[0].samples, first[0].samples, strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(
            other.logprobs, abs=1e-5
        )  # fewer rows beside it: other products, same sums
