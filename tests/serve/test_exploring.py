"""Several paths at max effort: what a vote or a verifier picks is what the client gets, and all paths are counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overland.chat import Message, Tokenizer, ToolCall
from overland.serve.choice import Answer
from overland.serve.exploring import rank, said

from .harness import MODEL, WEATHER, Served, serving

ASK: Any = [{"role": "user", "content": "Where?"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
RIGHT, SAME = Message("assistant", "In  Paris.", "a"), Message("assistant", "In Paris.", "another thought")
WRONG = Message("assistant", "In Rome.", "b")
THREE = {"explore": {"paths": 3}}


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_that_most_paths_give_is_given(served: Served, client: openai.OpenAI, stream: bool) -> None:
    served.say(WRONG, RIGHT, SAME)
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "reasoning_effort": "max", "extra_body": THREE}
    if stream:
        *chunks, usage = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        explored, used = chunks[-1].choices[0].model_extra["explored"], usage.usage
    else:
        answer = client.chat.completions.create(**asked)
        text, used = answer.choices[0].message.content, answer.usage
        explored = answer.choices[0].model_extra["explored"]
    assert " ".join(text.split()) == "In Paris."
    assert (explored["paths"], explored["agreeing"], explored["picked_by"]) == (3, 2, "vote")
    lengths = [len(served.spell(turn)) for turn in (WRONG, RIGHT, SAME)]
    assert explored["tokens"] == lengths
    assert used.completion_tokens == sum(lengths)
    assert used.completion_tokens_details.reasoning_tokens == sum(len(m.reasoning) for m in (WRONG, RIGHT, SAME))
    assert used.total_tokens == used.prompt_tokens + sum(lengths)
    assert len({generation.sampling.seed for generation in served.engine.seen}) == 3
    # the path that was picked is the one that the history goes on from
    history = [*ASK, {"role": "assistant", "content": text}, {"role": "user", "content": "Why?"}]
    client.chat.completions.create(model=MODEL, messages=history, max_tokens=1)
    first, *_, second = served.prompts()
    picked = (WRONG, RIGHT, SAME)[explored["path"]]
    assert second[len(first) :][: len(served.spell(picked))] == served.spell(picked)
    page = httpx.get(f"{served.url}/metrics").text
    assert f'overland:explored_paths_total{{model_name="{MODEL}",picked_by="vote"}} 3.0' in page
    assert f'overland:agreeing_paths_total{{model_name="{MODEL}",picked_by="vote"}} 2.0' in page
    assert f'vllm:generation_tokens_total{{model_name="{MODEL}"}} {sum(lengths) + 1}.0' in page
    assert f'vllm:time_to_first_token_seconds_count{{model_name="{MODEL}"}} 2.0' in page


def test_messages_and_responses_explore_too(served: Served, client: openai.OpenAI) -> None:
    served.say(WRONG, RIGHT, SAME, RIGHT, WRONG, SAME)
    theirs = anthropic.Anthropic(base_url=served.url, api_key="unused", max_retries=0)
    with theirs.messages.stream(model=MODEL, max_tokens=999, messages=ASK, extra_body=THREE) as stream:
        message = stream.get_final_message()
    assert " ".join(message.content[-1].text.split()) == "In Paris."
    assert message.usage.output_tokens == sum(len(served.spell(turn)) for turn in (WRONG, RIGHT, SAME))
    response = client.responses.create(model=MODEL, input="Where?", extra_body=THREE)
    assert " ".join(response.output_text.split()) == "In Paris."
    assert response.model_extra is not None
    assert response.model_extra["explored"]["agreeing"] == 2


def test_calls_agree_whatever_is_said_beside_them(served: Served, client: openai.OpenAI) -> None:
    def calling(words: str, arguments: str) -> Message:
        return Message("assistant", words, "hm", (ToolCall("", "weather", arguments),))

    served.say(calling("x", '{"city": "Rome"}'), calling("y", '{"city": "Oslo"}'), calling("z", '{"city": "Oslo"}'))
    answer = client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS, extra_body=THREE)
    assert [json.loads(call.function.arguments) for call in answer.choices[0].message.tool_calls] == [{"city": "Oslo"}]
    assert answer.choices[0].finish_reason == "tool_calls"


def test_what_cannot_be_explored_is_refused_by_name(served: Served) -> None:
    def told(**fields: Any) -> str:
        answer = httpx.post(
            f"{served.url}/v1/chat/completions",
            json={"model": MODEL, "messages": ASK, "explore": {"paths": 3}, **fields},
        )
        assert answer.status_code == 400
        return str(answer.json()["error"]["message"])

    assert told(temperature=0).startswith("explore.paths: at temperature 0")
    assert told(reasoning_effort="low").startswith("explore.paths: several paths are explored at effort max, not low")
    assert told(n=6).startswith("explore.paths: 6 choices of 3 paths; at most 16")
    assert told(explore={"paths": 0}).startswith("explore.paths: ")
    assert told(explore={"paths": 3, "pick": "verifier"}) == "explore.pick: this server has no verifier; valid: vote"
    assert not served.engine.seen


def test_a_client_that_leaves_ends_all_paths(served: Served) -> None:
    body = {"model": MODEL, "messages": ASK, "stream": True, "explore": {"paths": 3}}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body) as answer:
        next(answer.iter_bytes())
    served.wait_idle()
    assert [generation.finish_reason for generation in served.engine.seen] == ["cancelled"] * 3


class Judge(BaseHTTPRequestHandler):
    """Likes answers that say Rome; `broken` answers are no scores."""

    broken = False

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))
        scores = [float("Rome" in answer["content"]) for answer in question["answers"]]
        body = json.dumps({"scores": scores[: 1 if self.broken else None]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def judge() -> Iterator[tuple[str, type[Judge]]]:
    class Own(Judge):
        pass

    with HTTPServer(("127.0.0.1", 0), Own) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", Own
        server.shutdown()


def test_a_verifier_decides_and_the_vote_where_it_fails(tokenizer: Tokenizer, judge: tuple[str, type[Judge]]) -> None:
    url, kind = judge
    with serving(tokenizer, verifier_url=url, explore_paths=3) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)
        served.say(RIGHT, WRONG, SAME, RIGHT, WRONG, SAME)
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
        assert raw.headers["x-overland-paths"] == "3"
        choice = raw.parse().choices[0]
        assert choice.message.content == "In Rome."
        assert choice.model_extra["explored"] | {"tokens": 0} == {
            "paths": 3, "agreeing": 1, "picked_by": "verifier", "path": 1, "tokens": 0, "scores": [0, 1, 0],
        }  # fmt: skip
        kind.broken = True
        choice = client.chat.completions.create(model=MODEL, messages=ASK).choices[0]
        assert " ".join(choice.message.content.split()) == "In Paris."
        assert choice.model_extra["explored"]["picked_by"] == "vote"
        assert "overland:verifier_failures_total" in (page := httpx.get(f"{served.url}/metrics").text)
        assert f'overland:verifier_failures_total{{model_name="{MODEL}"}} 1.0' in page


answers = st.builds(
    lambda words, finish, lps: Answer(
        content=words, finish=finish, ids=[0] * len(lps), logprobs=lps, forced=[False] * len(lps)
    ),
    st.sampled_from(["a", " a", "b", "c"]),
    st.sampled_from(["stop", "length"]),
    st.lists(st.floats(-9, 0), min_size=1, max_size=3),
)


@given(st.lists(answers, min_size=1, max_size=7))
def test_a_vote_picks_from_the_largest_group_of_whole_answers(paths: list[Answer]) -> None:
    ranks = rank(paths)
    picked = paths[max(range(len(paths)), key=lambda i: ranks[i])]
    voting = [path for path in paths if path.finish != "length"] or paths
    assert any(picked is path for path in voting)
    sizes = {said(path): sum(said(other) == said(path) for other in voting) for path in voting}
    assert sizes[said(picked)] == max(sizes.values())
