"""Output is capped while it is read: the head and the tail are kept, everything is counted."""

from __future__ import annotations


class CappedOutput:
    """Keeps the first and the last `limit // 2` bytes of a stream, and how many there were."""

    def __init__(self, limit: int) -> None:
        self.half = max(1, limit // 2)
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.half - len(self.head)
        if room > 0:
            self.head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self.tail += chunk[-self.half :]
            if len(self.tail) > self.half:
                del self.tail[: len(self.tail) - self.half]

    @property
    def truncated(self) -> bool:
        return self.total > len(self.head) + len(self.tail)

    def bytes(self) -> bytes:
        if not self.truncated:
            return bytes(self.head + self.tail)
        left_out = self.total - len(self.head) - len(self.tail)
        notice = f"\n[... {left_out} of {self.total} bytes left out ...]\n".encode()
        return bytes(self.head) + notice + bytes(self.tail)
