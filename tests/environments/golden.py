"""The golden episode: two branches, a forced token, a gate that failed. Run as a module to write data/ again."""

from __future__ import annotations

import json
from pathlib import Path

from overland.chat import Message, ToolCall
from overland.environments import Episode, MessageNode, ModelCall, Reward, Trace, load_environment, task_data

DATA = Path(__file__).parent / "data"


def golden_episode() -> Episode:
    task = load_environment("terminal").task("held_out", 0, 5, "read")
    call = ToolCall("sh:0", "sh", '{"cmd":"cat mira/note"}')
    asked = Message("assistant", "", reasoning="word", tool_calls=(call,))
    result = Message("tool", "word oslo", tool_call_id="sh:0", name="sh")
    answer = Message("assistant", "oslo", reasoning="= oslo")
    nodes = [
        MessageNode(Message("user", task.prompt), None, False, [1, 2, 3], [False] * 3, [], [False] * 3, 10.0),
        MessageNode(asked, 0, True, [4, 5, 6], [True, False, True], [-0.25, -0.5], [False, True, False], 11.0),
        MessageNode(result, 1, False, [7], [False], [], [False], 11.0),
        MessageNode(answer, 2, True, [8, 9], [True, True], [-0.125, -2.0], [False, False], 12.0),
        MessageNode(Message("assistant", "bern"), 2, True, [10], [True], [-1.0], [False], 12.0),
    ]
    trace = Trace(
        id="golden-0",
        nodes=nodes,
        calls=[
            ModelCall(1, "tool_calls", 3, 3, 1, 0, 2, 10.0, 11.0),
            ModelCall(3, "stop", 7, 2, 1, 6, 2, 11.0, 12.0),
            ModelCall(4, "stop", 7, 1, 0, 6, 3, 11.0, 12.0),
        ],
        tools=task.tool_specs(),
        dimensions={
            "answer": Reward(1.0),
            "state": Reward(0.0, role="gate"),
            "harm": Reward(2.0, role="monitor"),
        },
        metrics={"turns": 2.0},
        reward=-0.5,
        stop="answered",
        effort="max",
        model="nano",
        sampling={"temperature": 1.0, "top_p": 1.0, "max_tokens": 64, "seed": 3},
        start=10.0,
        end=12.0,
    )
    run = {"type": "train", "id": "quickstart", "work": {"type": "train", "step": 4, "policy": {"start": 2, "end": 3}}}
    return Episode("golden", "terminal", task_data(task), [trace], group="terminal/held_out/0/5", run=run)


def seen_by_verifiers(record: dict[str, object]) -> dict[str, object]:
    """What verifiers makes of a record. Needs verifiers 0.4."""
    import verifiers.v1 as vf  # type: ignore[import-not-found]

    episode = vf.WireEpisode.model_validate(record)
    again = vf.WireEpisode.model_validate(episode.to_record())
    assert again.traces[0].info == episode.traces[0].info == record["traces"][0]["info"]  # type: ignore[index]
    trace = episode.traces[0]
    return {
        "reward": trace.reward,
        "num_turns": trace.num_turns,
        "stop_condition": trace.stop_condition,
        "output_tokens": trace.usage.completion_tokens,
        "branches": [
            {"token_ids": b.token_ids, "mask": b.sampled_mask, "logprobs": b.logprobs} for b in trace.branches
        ],
        "answer": episode.task.data.answer,
        "group": episode.group.id,
        "policy": [episode.run.work.policy.start, episode.run.work.policy.end],
    }


if __name__ == "__main__":
    golden = golden_episode().to_record()
    (DATA / "golden_episode.json").write_text(json.dumps(golden, indent=1) + "\n")
    (DATA / "golden_seen.json").write_text(json.dumps(seen_by_verifiers(golden), indent=1) + "\n")
