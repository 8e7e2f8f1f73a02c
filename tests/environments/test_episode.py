"""Records in verifiers' wire form: nothing is lost on the way, and verifiers 0.4.0 parsed the golden record.

It was read with `verifiers.v1.WireEpisode.model_validate` (verifiers 0.4.0, Python 3.11), which gave the figures in
`golden_seen.json`; where verifiers is installed `python -m tests.environments.golden` writes both files again.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overland.chat import Message, ToolCall, ToolSpec
from overland.environments import Branch, Episode, MessageNode, ModelCall, Reward, Trace
from overland.errors import BrokenFileError

from .golden import golden_episode

DATA = Path(__file__).parent / "data"

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
floats = st.floats(-20, 0).map(lambda value: round(value, 8))


@st.composite
def nodes(draw: st.DrawFn) -> list[MessageNode]:
    found = []
    for index in range(draw(st.integers(0, 5))):
        role = draw(st.sampled_from(["system", "user", "assistant", "tool"]))
        calls = tuple(ToolCall(draw(text), draw(text), draw(text)) for _ in range(draw(st.integers(0, 2))))
        message = Message(
            role,  # type: ignore[arg-type]
            draw(text),
            reasoning=draw(text) if role == "assistant" else "",
            tool_calls=calls if role == "assistant" else (),
            tool_call_id=draw(text) if role == "tool" else None,
            name=draw(st.none() | text) if role == "tool" else None,
        )
        flags = draw(st.lists(st.sampled_from([(True, False), (False, False), (False, True)]), max_size=6))
        found.append(
            MessageNode(
                message,
                parent=draw(st.none() | st.integers(0, index - 1)) if index else None,
                sampled=role == "assistant",
                token_ids=draw(st.lists(st.integers(0, 999), min_size=len(flags), max_size=len(flags))),
                mask=[drawn for drawn, _ in flags],
                logprobs=[draw(floats) for drawn, _ in flags if drawn],
                forced=[forced for _, forced in flags],
                timestamp=draw(st.floats(0, 2e9)),
            )
        )
    return found


rewards = st.builds(
    Reward, st.none() | st.floats(-1, 1), st.floats(0.1, 2), st.sampled_from(["gate", "reward", "monitor"])
)
calls = st.builds(
    ModelCall,
    node=st.none() | st.integers(0, 4),
    finish_reason=st.sampled_from([None, "stop", "length", "tool_calls"]),
    prompt_tokens=st.integers(10, 99),
    completion_tokens=st.integers(0, 99),
    reasoning_tokens=st.integers(0, 9),
    cached_tokens=st.integers(0, 10),
    policy_version=st.none() | st.integers(0, 9) | text,
)
traces = st.builds(
    Trace,
    id=text,
    nodes=nodes(),
    calls=st.lists(calls, min_size=1, max_size=3),
    tools=st.just([ToolSpec("sh", "run", {"type": "object"})]),
    dimensions=st.dictionaries(st.sampled_from(["answer", "state", "harm"]), rewards),
    metrics=st.dictionaries(st.sampled_from(["turns", "tool_calls"]), st.floats(0, 9)),
    reward=st.none() | st.floats(-1, 1),
    stop=st.sampled_from([None, "answered", "budget"]),
    effort=st.sampled_from(["low", "high", "max"]),
    model=text,
    sampling=st.just({"temperature": 1.0, "seed": 3}),
    info=st.dictionaries(st.just("note"), text),
    errors=st.lists(st.just({"type": "OSError", "message": "disk full"}), max_size=1),
    start=st.floats(0, 2e9),
    end=st.floats(0, 2e9),
)
episodes = st.builds(
    Episode,
    id=text,
    env=text,
    task=st.just({"id": "web/train/0/1/page", "domain": "web", "seed": 1}),
    traces=st.lists(traces, max_size=2),
    group=st.none() | text,
    run=st.none() | st.just({"type": "train", "id": "r", "work": {"type": "train", "step": 4}}),
    is_timeout=st.booleans(),
    errors=st.lists(st.just({"type": "OverlandError", "message": "x"}), max_size=1),
)


@given(episode=episodes)
def test_a_record_comes_back_as_it_was(episode: Episode) -> None:
    record = episode.to_record()
    assert Episode.from_record(json.loads(json.dumps(record))) == episode


def test_the_golden_record_is_still_what_is_written() -> None:
    stored = json.loads((DATA / "golden_episode.json").read_text())
    assert golden_episode().to_record() == stored
    assert Episode.from_record(stored) == golden_episode()


def test_verifiers_saw_the_same_figures() -> None:
    """What verifiers computed from the golden record against what we compute."""
    seen = json.loads((DATA / "golden_seen.json").read_text())
    trace = golden_episode().traces[0]
    assert seen["reward"] == pytest.approx(trace.reward)
    assert seen["num_turns"] == sum(node.sampled for node in trace.nodes)
    assert seen["stop_condition"] == trace.stop
    assert seen["output_tokens"] == trace.output_tokens
    ours = [{"token_ids": b.token_ids, "mask": b.mask, "logprobs": b.logprobs} for b in trace.branches]
    assert seen["branches"] == ours


def test_branches_share_their_common_nodes() -> None:
    user, first, second = Message("user", "q"), Message("assistant", "a"), Message("assistant", "b")
    trace = Trace(
        "t",
        nodes=[
            MessageNode(user, None, False, [1, 2], [False, False], [], [False, False]),
            MessageNode(first, 0, True, [3, 4], [False, True], [-0.5], [True, False]),
            MessageNode(second, 0, True, [5], [True], [-1.0], [False]),
        ],
    )
    assert trace.branches == [
        Branch([1, 2, 3, 4], [False, False, False, True], [0.0, 0.0, 0.0, -0.5], [False, False, True, False]),
        Branch([1, 2, 5], [False, False, True], [0.0, 0.0, -1.0], [False, False, False]),
    ]
    assert trace.messages == [user, second]


def test_a_record_of_verifiers_own_reads_without_our_fields() -> None:
    record = golden_episode().to_record()
    for trace in record["traces"]:
        del trace["info"], trace["tools"]
        trace["rewards"] = {"exact": {"score": 0.5, "weight": 2.0}, "style": None}
        for node in trace["nodes"]:
            node["is_content"] = [True] * len(node["token_ids"])
    episode = Episode.from_record(record)
    assert episode.reward == 1.0
    assert episode.traces[0].dimensions["style"].value is None


@pytest.mark.parametrize(
    "path, value, message",
    [
        (("id",), None, "field 'id' is missing"),
        (("task", "data"), None, "field 'data' is missing"),
        (("traces", 0, "nodes", 0, "message"), None, "field 'message' is missing"),
        (("traces", 0, "nodes", 1, "mask"), [True], "mask has 1 values"),
        (("traces", 0, "nodes", 1, "logprobs"), [], "logprobs has 0 values"),
        (("traces",), 5, "episode record"),
    ],
)
def test_a_broken_record_names_the_field(path: tuple[Any, ...], value: object, message: str) -> None:
    record = copy.deepcopy(golden_episode().to_record())
    place: Any = record
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    with pytest.raises(BrokenFileError, match=message):
        Episode.from_record(record)
