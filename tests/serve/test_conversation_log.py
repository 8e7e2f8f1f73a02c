"""The conversation log: nothing that was taken is lost, nothing that must not be kept is, and serving never waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from overland.chat import Message, Tokenizer
from overland.errors import UsageError
from overland.serve.conversation_log import ConversationLog, Redaction, read_log
from overland.serve.log_sink import FolderSink, open_sink

from .harness import CALL_TURN, MODEL, WEATHER, serving


def record(number: int, text: str = "Hi") -> dict[str, Any]:
    return {"id": number, "messages": [{"role": "user", "content": text}]}


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    assert true()


def test_every_answer_is_logged_whole_with_thinking_and_calls(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    with serving(tokenizer, log_to=str(tmp_path / "log")) as one:
        one.say(CALL_TURN)
        ask = {"model": MODEL, "messages": [{"role": "user", "content": "Weather?"}], "tools": tools}
        answer = httpx.post(f"{one.url}/v1/chat/completions", json=ask)
    (kept,) = read_log(tmp_path / "log")
    said = Message.from_openai(kept["messages"][-1])
    assert (said.content, said.reasoning) == (CALL_TURN.content, CALL_TURN.reasoning)
    assert [call.parsed() for call in said.tool_calls] == [call.parsed() for call in CALL_TURN.tool_calls]
    assert kept["messages"][0] == {"role": "user", "content": "Weather?"}
    assert kept["tools"][0]["function"]["name"] == "weather"
    assert kept["id"] == answer.headers["request-id"]
    assert not list((tmp_path / "log.spool").iterdir())


def test_what_must_not_be_kept_is_never_written(tmp_path: Path) -> None:
    redaction = Redaction(thinking=False, personal=True, patterns=(r"project \w+",))
    log = ConversationLog(
        FolderSink(tmp_path / "log"), tmp_path / "spool", "m", redaction=redaction, flush_seconds=0.01
    )
    secret = {
        "role": "assistant",
        "content": "Mail jo@example.org of project Falcon.",
        "reasoning_content": "hm",
        "tool_calls": [{"function": {"name": "f", "arguments": '{"to": "jo@example.org"}'}}],
    }
    log.record({"id": 1, "messages": [secret]})
    log.close()
    (kept,) = read_log(tmp_path / "log")
    text = json.dumps(kept)
    assert "jo@" not in text
    assert "Falcon" not in text
    assert "reasoning_content" not in text
    assert "<REDACTED>" in text
    with pytest.raises(UsageError, match="log_redact"):
        Redaction(patterns=("((",))


class Failing(FolderSink):
    """Refuses the first batches."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__(folder)
        self.times = times

    def put(self, key: str, data: bytes) -> None:
        if self.times > 0:
            self.times -= 1
            raise OSError("no room")
        super().put(key, data)


def test_a_sink_that_refuses_loses_nothing(tmp_path: Path) -> None:
    sink = Failing(tmp_path / "log", times=2)
    log = ConversationLog(sink, tmp_path / "spool", "m", flush_seconds=0.01, batch_seconds=0.01)
    for number in range(50):
        assert log.record(record(number))
    until(lambda: log.written == 50)
    log.close()
    left = ConversationLog(FolderSink(tmp_path / "log"), tmp_path / "spool", "m")  # the next start takes the rest
    left.close()
    assert sorted(one["id"] for one in read_log(tmp_path / "log")) == list(range(50))


def test_a_full_queue_drops_and_counts_and_never_blocks(tmp_path: Path) -> None:
    log = ConversationLog(FolderSink(tmp_path / "log"), tmp_path / "spool", "m", flush_seconds=60, queue_bytes=2000)
    taken = [log.record(record(number, "x" * 100)) for number in range(50)]
    assert 0 < sum(taken) < 50
    log.close()
    assert log.dropped == 50 - sum(taken)
    assert len(list(read_log(tmp_path / "log"))) == sum(taken)


def test_days_beyond_retention_are_deleted(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "log")
    for day in ("2026-01-01", "2026-02-10", "2026-02-11"):
        sink.put(f"dt={day}/hour=00/model=m/a.jsonl.zst", b"")
    now = 1770768000.0  # 2026-02-11
    log = ConversationLog(sink, tmp_path / "spool", "m", flush_seconds=0.01, retention_days=1, clock=lambda: now)
    until(lambda: sink.days() == ["2026-02-10", "2026-02-11"])
    log.close()


CHILD = """
    import sys, time
    from pathlib import Path
    from overland.serve.conversation_log import ConversationLog
    from overland.serve.log_sink import FolderSink
    folder = Path(sys.argv[1])
    log = ConversationLog(FolderSink(folder / "log"), folder / "spool", "m", flush_seconds=0.05, batch_seconds=1000)
    for number in range(10**9):
        log.record({"id": number, "messages": []})
        if log.written:
            print(log.written, flush=True)
        time.sleep(0.002)
"""


def test_a_kill_loses_no_more_than_what_was_not_yet_flushed(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert child.stdout is not None
    durable = 0
    while durable < 40:
        durable = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    ConversationLog(FolderSink(tmp_path / "log"), tmp_path / "spool", "m").close()
    kept = [one["id"] for one in read_log(tmp_path / "log")]
    assert len(kept) >= durable
    assert kept == list(range(len(kept)))


def test_places_that_are_none_are_refused() -> None:
    for target in ("ftp://somewhere", "s3://"):
        with pytest.raises(UsageError, match="log_to"):
            open_sink(target)
