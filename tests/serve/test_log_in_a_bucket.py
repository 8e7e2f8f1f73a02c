"""The conversation log in a bucket, held against a real object store with an S3 interface: OpenStack Swift."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import zstandard

from overland.chat import Tokenizer
from overland.serve.conversation_log import ConversationLog
from overland.serve.log_sink import BucketSink, open_sink

from .harness import ANSWER_TURN, MODEL, serving
from .swift import KEYS, installed, swift


def contents(sink: BucketSink) -> dict[str, list[dict[str, object]]]:
    store, obstore = sink._store, sink._obstore
    paths = [one["path"] for batch in obstore.list(store) for one in batch]
    return {
        path: [json.loads(line) for line in zstandard.decompress(bytes(obstore.get(store, path).bytes())).splitlines()]
        for path in paths
    }


def test_conversations_reach_the_bucket_and_old_days_leave_it(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed():
        pytest.skip("OpenStack Swift is not installed (tests/serve/swift.py says how); the folder sink was tested")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with swift(tmp_path / "swift", "logs") as endpoint:
        settings = {"log_to": "s3://logs/served", "log_endpoint": endpoint, "log_spool": str(tmp_path / "spool")}
        with serving(tokenizer, **settings) as one:
            ask = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
            for _ in range(3):
                one.say(ANSWER_TURN)
                assert httpx.post(f"{one.url}/v1/chat/completions", json=ask).status_code == 200
        sink = open_sink("s3://logs/served", endpoint)
        assert isinstance(sink, BucketSink)
        kept = [record for records in contents(sink).values() for record in records]
        assert [record["messages"][-1]["content"] for record in kept] == [ANSWER_TURN.content] * 3  # type: ignore[index]
        assert not list((tmp_path / "spool").iterdir())

        sink.put("dt=2020-01-01/hour=00/model=m/old.jsonl.zst", b"old")
        ConversationLog(sink, tmp_path / "spool", "m", retention_days=30).close()
        assert "2020-01-01" not in sink.days()
        assert sink.days()

    log = ConversationLog(sink, tmp_path / "spool", "m", flush_seconds=0.01)  # the store is gone
    log.record({"id": 1, "messages": []})
    log.close(timeout=90)
    assert log.failed_puts
    assert len(list((tmp_path / "spool").glob("*.jsonl"))) == 1  # it waits for the next start
