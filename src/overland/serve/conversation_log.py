"""Every request and its answer, kept: asynchronous, bounded, in compressed batches.

A record is a line of JSON. A thread of its own appends what came to a spool file and makes it durable every
`flush_seconds`; a spool that is old or large enough is compressed and put into the sink. What a crash leaves in the
spool folder is put there at the next start. Serving never waits: beyond `queue_bytes` records are dropped and counted.

A record holds the conversation as chat messages, the answer last, its thinking in `reasoning_content`: what SFT reads.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import zstandard

from overland.corpus.pii import replace as replace_personal
from overland.errors import UsageError
from overland.serve.log_sink import Sink

log = logging.getLogger("overland.serve")

DAY = 86400.0
RETRY_SECONDS = 5.0


@dataclass
class Redaction:
    """What is taken out of a record before it is written anywhere.

    thinking: whether it is kept. personal: whether e-mail addresses, phones, addresses of machines and keys are
    replaced by placeholders. patterns: regular expressions whose matches become `<REDACTED>`.
    """

    thinking: bool = True
    personal: bool = True
    patterns: Sequence[str] = ()
    _compiled: list[re.Pattern[str]] = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._compiled = [re.compile(pattern) for pattern in self.patterns]
        except re.error as error:
            raise UsageError(f"serve.log_redact holds {error.pattern!r}, which is no pattern: {error}") from None

    def apply(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A record without what must not be kept."""
        clean = dict(record)
        for name in ("messages", "tools"):
            if name in clean:
                clean[name] = self._walk(clean[name])
        return clean

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {key: self._walk(one) for key, one in value.items() if self.thinking or key != "reasoning_content"}
        if isinstance(value, list | tuple):
            return [self._walk(one) for one in value]
        return value

    def _text(self, text: str) -> str:
        for pattern in self._compiled:
            text = pattern.sub("<REDACTED>", text)
        if self.personal:
            text, _ = replace_personal(text, "web")
        return text


class ConversationLog:
    """`record` takes a record and returns at once; `close` puts everything where it belongs."""

    def __init__(
        self,
        sink: Sink,
        spool: Path,
        model: str,
        *,
        redaction: Redaction | None = None,
        flush_seconds: float = 1.0,
        batch_seconds: float = 60.0,
        batch_bytes: int = 8 * 1024 * 1024,
        queue_bytes: int = 64 * 1024 * 1024,
        spool_bytes: int = 1024**3,
        retention_days: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._spool = spool
        self._model = re.sub(r"[^A-Za-z0-9_.-]", "_", model)
        self._redaction = redaction or Redaction()
        self._flush_seconds, self._batch_seconds = flush_seconds, batch_seconds
        self._batch_bytes, self._queue_bytes, self._spool_bytes = batch_bytes, queue_bytes, spool_bytes
        self._retention_days = retention_days
        self._clock = clock
        self._instance = secrets.token_hex(6)
        self._number = 0
        self._queue: deque[tuple[int, dict[str, Any]]] = deque()
        self._queued = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._open: IO[bytes] | None = None
        self._opened = 0.0
        self._retry_at = 0.0
        self._retained_at = 0.0
        self.written = self.dropped = self.failed_puts = self.batches = 0
        spool.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._work, name="overland-log", daemon=True)
        self._thread.start()

    def record(self, record: dict[str, Any]) -> bool:
        """Takes a record; False where it was dropped, because the queue is full."""
        size = _size(record)
        with self._lock:
            if self._queued + size > self._queue_bytes or self._stop.is_set():
                self.dropped += 1
                return False
            self._queue.append((size, record))
            self._queued += size
        return True

    def close(self, timeout: float = 30.0) -> None:
        """Writes and puts all that came. What the sink does not take in time stays in the spool for the next start."""
        self._stop.set()
        self._thread.join(timeout)

    # ---- the thread ----

    def _work(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(self._flush_seconds)
            try:
                self._write()
                if self._due() or stopping:
                    self._roll()
                self._ship(last=stopping)
                self._retain()
            except Exception:  # a full disk must not end the log for good
                log.exception("the conversation log failed; it goes on")

    def _write(self) -> None:
        """What is queued, to the spool file, durably."""
        with self._lock:
            records = list(self._queue)
            self._queue.clear()
            self._queued = 0
        if not records:
            return
        lines = []
        for _, record in records:
            clean = self._redaction.apply(record)
            lines.append(json.dumps(clean, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        if self._open is None:
            self._number += 1
            path = self._spool / f"{self._instance}-{self._number:06d}.jsonl"
            self._open = path.open("ab")
            fcntl.flock(self._open, fcntl.LOCK_EX)  # says that its owner lives
            self._opened = self._clock()
        self._open.write(b"".join(lines))
        self._open.flush()
        os.fsync(self._open.fileno())
        self.written += len(lines)

    def _due(self) -> bool:
        if self._open is None:
            return False
        return self._open.tell() >= self._batch_bytes or self._clock() - self._opened >= self._batch_seconds

    def _roll(self) -> None:
        """Ends the spool file: it may be put into the sink now."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _ship(self, last: bool) -> None:
        """Put ended spool files into the sink, those that a crash left behind too."""
        if not last and self._clock() < self._retry_at:
            return
        for path in sorted(self._spool.glob("*.jsonl")):
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue  # somebody, perhaps this log, still writes it
                data = file.read()
                lines = data[: data.rfind(b"\n") + 1]  # a crash may have cut the last one
                made = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                key = f"dt={made:%Y-%m-%d}/hour={made:%H}/model={self._model}/{path.stem}.jsonl.zst"
                try:
                    if lines:
                        self._sink.put(key, zstandard.ZstdCompressor(level=6).compress(lines))
                        self.batches += 1
                except Exception as error:
                    self.failed_puts += 1
                    log.warning("the conversation log's sink refused a batch (%s); trying again", type(error).__name__)
                    self._retry_at = self._clock() + RETRY_SECONDS
                    self._bound()
                    return
                path.unlink()

    def _bound(self) -> None:
        """While the sink refuses, the spool keeps at most `spool_bytes`; the oldest go first, and are counted."""
        files = sorted(self._spool.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in files)
        for path in files[:-1]:
            if total <= self._spool_bytes:
                return
            total -= path.stat().st_size
            self.dropped += path.read_bytes().count(b"\n")
            path.unlink()

    def _retain(self) -> None:
        """Once an hour: delete days older than `retention_days`."""
        now = self._clock()
        if not self._retention_days or now < self._retained_at:
            return
        self._retained_at = now + 3600
        oldest = (datetime.fromtimestamp(now, UTC) - timedelta(days=self._retention_days)).strftime("%Y-%m-%d")
        for day in self._sink.days():
            if day < oldest:
                self._sink.drop_day(day)


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a local log, in the order of their batches."""
    from overland.runs import read_jsonl_zst

    for path in sorted(folder.rglob("*.jsonl.zst")):
        yield from read_jsonl_zst(path)


def _size(value: Any) -> int:
    """About how much memory a record's texts take."""
    if isinstance(value, str):
        return len(value) + 50
    if isinstance(value, Mapping):
        return sum(_size(one) for one in value.values()) + 100
    if isinstance(value, list | tuple):
        return sum(_size(one) for one in value) + 50
    return 30
