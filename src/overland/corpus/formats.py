"""Files that hold many records: JSON lines, Parquet, WARC, plain or compressed, read within bounded memory.

Every reader yields `Record`s, and a `Broken` where something could not be read: a line that is no JSON, a record that
is too large (its line is skipped piece by piece, never held), an archive that ends in the middle. Nothing is lost
silently.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import zstandard

_PIECE = 1 << 20
_FEED = 1 << 10  # compressed bytes at a time
_CHARSET = re.compile(r"charset=[\"']?([\w.:-]+)", re.IGNORECASE)
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)


@dataclass(frozen=True)
class Record:
    """One record. `name` is what the file calls it (its number where it has no name); `raw` its text's bytes."""

    name: str
    raw: bytes
    page: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Broken:
    """A record, or the rest of a file, that could not be read, and why."""

    name: str
    reason: str


def decompressed(file: BinaryIO, path: str) -> BinaryIO:
    """The file's plain bytes. Reading a cut file raises one of `_DAMAGED` where it ends."""
    if path.lower().endswith(".gz"):
        return _WholeMembers(file)  # type: ignore[return-value]
    if path.lower().endswith(".zst"):
        return _WholeFrames(file)  # type: ignore[return-value]
    return file


class _WholeMembers:
    """A gzip stream that hands out all that comes before a cut, and only then says that it is one."""

    def __init__(self, file: BinaryIO) -> None:
        self.unpacked = gzip.GzipFile(fileobj=file)

    def read(self, size: int = -1) -> bytes:
        return self.unpacked.read1(size) if size >= 0 else self.unpacked.read()


class _WholeFrames:
    """A zstandard stream that knows a cut file from a finished one; any number of frames.

    Four bytes can stand for a block of 128 kB, so little is fed at a time: what comes out stays under `_FEED` / 4
    blocks, 32 MB, whatever the file holds.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.inside = file, False
        self.packed, self.plain = memoryview(b""), bytearray()
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self.plain) < size:
            if not self.packed and not self._refill():
                if self.inside and not self.plain:
                    raise EOFError("the archive ends in the middle")
                break  # what came before the cut is handed out first
            fed, self.packed = self.packed[:_FEED], self.packed[_FEED:]
            self.plain += self.decompressor.decompress(fed)
            self.inside = True
            if self.decompressor.eof:
                self.packed = memoryview(self.decompressor.unused_data + bytes(self.packed))
                self.inside = False
                self.decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        cut = len(self.plain) if size < 0 else size
        out = bytes(memoryview(self.plain)[:cut])
        del self.plain[:cut]
        return out

    def _refill(self) -> bool:
        self.packed = memoryview(self.file.read(1 << 17))
        return bool(self.packed)


def lines(stream: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """(number, line) from 1 without line ends; None stands for a line over `max_bytes`, which is skipped unheld."""
    number, pending, skipping = 1, bytearray(), False
    while piece := stream.read(_PIECE):
        if skipping and b"\n" not in piece:
            continue
        parts = piece.split(b"\n")
        for at, part in enumerate(parts):
            if not skipping:
                if len(pending) + len(part) > max_bytes:
                    skipping = True
                    pending.clear()
                else:
                    pending += part
            if at < len(parts) - 1:
                yield number, None if skipping else bytes(pending)
                number, skipping = number + 1, False
                pending.clear()
    if pending or skipping:
        yield number, None if skipping else bytes(pending)


def json_records(stream: BinaryIO, max_bytes: int, text_field: str, id_field: str) -> Iterator[Record | Broken]:
    """JSON lines. The text is `text_field`; the name is `id_field` where the record has it, else the line's number."""
    number = 0
    try:
        # A line is longer than its text: escapes can make six bytes of one, and there are the other fields.
        for number, line in lines(stream, 2 * max_bytes + 65_536):
            if line is None:
                yield Broken(str(number), f"too large: its line is over {(2 * max_bytes + 65_536) / 1e6:.1f} MB")
                continue
            if not line.strip():
                continue
            try:
                value = json.loads(line.decode())
            except UnicodeDecodeError:
                yield Broken(str(number), "encoding: the line is not UTF-8")
                continue
            except (ValueError, RecursionError):
                yield Broken(str(number), "not JSON")
                continue
            if not isinstance(value, dict) or not isinstance(value.get(text_field), str):
                yield Broken(str(number), f"no text: the record has no string '{text_field}'")
                continue
            text = value.pop(text_field)
            name = value.get(id_field)
            yield Record(
                str(name) if isinstance(name, (str, int)) else str(number),
                text.encode("utf-8", "surrogatepass"),
                fields=value,
            )
    except _DAMAGED as error:
        yield Broken(f"{number}+", f"truncated: the archive is damaged after line {number} ({type(error).__name__})")
    except OSError as error:
        yield Broken(f"{number}+", f"unreadable: the source vanished after line {number} ({error.strerror or error})")


def parquet_records(
    file: BinaryIO, groups: tuple[int, int] | None, text_field: str, id_field: str, wanted: tuple[str, ...]
) -> Iterator[Record | Broken]:
    """Rows of a Parquet file (of its row groups [start, end)), read a few hundred at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        if text_field not in names:
            yield Broken("+", f"no text: the file has no column '{text_field}'")
            return
        start, end = groups or (0, table.num_row_groups)
        number = sum(table.metadata.row_group(group).num_rows for group in range(start))
        columns = [name for name in dict.fromkeys((text_field, id_field, *wanted)) if name in names]
        for batch in table.iter_batches(256, row_groups=list(range(start, end)), columns=columns):
            texts = batch.column(text_field)
            if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
                texts = texts.cast(
                    pa.large_binary()
                )  # the bytes as they are: reading decodes them, and judges if it cannot
            for raw, row in zip(texts.to_pylist(), batch.drop_columns([text_field]).to_pylist(), strict=True):
                number += 1
                name = row.get(id_field)
                if not isinstance(raw, bytes):
                    yield Broken(str(number), f"no text: the row has no '{text_field}'")
                    continue
                yield Record(str(name) if isinstance(name, (str, int)) else str(number), raw, fields=row)
    except UnicodeDecodeError:
        yield Broken(f"{number}+", "encoding: a row is not UTF-8; the rest of its row group is left out")
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Broken(
            f"{number}+", f"truncated: cannot be read after row {number} ({' '.join(str(error).split())[:120]})"
        )


class _Tail:
    """A stream that remembers its last four bytes and the error that ended it, so that a cut archive is told apart."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.last = stream, b""
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            piece = self.stream.read(size)
        except (*_DAMAGED, OSError) as error:
            self.error = error
            return b""
        self.last = (self.last + piece[-4:])[-4:]
        return piece


def warc_records(file: BinaryIO, path: str, max_bytes: int) -> Iterator[Record | Broken]:
    """The text/html and text/plain responses of a WARC file, by their record ids."""
    try:
        from warcio.archiveiterator import ArchiveIterator
        from warcio.exceptions import ArchiveLoadFailed
    except ImportError:
        yield Broken("+", "unreadable: WARC needs warcio; pip install 'overland[corpus]'")
        return
    stream = _Tail(decompressed(file, path))
    count, cut = 0, False
    try:
        for record in ArchiveIterator(stream, arc2warc=False):
            if record.rec_type not in ("response", "resource", "conversion"):
                continue
            count += 1
            headers = record.rec_headers
            name = (headers.get_header("WARC-Record-ID") or str(count)).removeprefix("<urn:uuid:").removesuffix(">")
            http = record.http_headers
            kind = (http.get_header("Content-Type") if http else headers.get_header("Content-Type")) or ""
            status = http.get_statuscode() if http else "200"
            media, _, parameters = kind.partition(";")
            media = media.strip().lower()
            if media not in ("text/html", "application/xhtml+xml", "text/plain"):
                yield Broken(name, f"not text: {media or 'no content type'}")
            elif status != "200":
                yield Broken(name, f"not a page: HTTP status {status}")
            else:
                raw = record.content_stream().read(max_bytes + 1)
                if len(raw) > max_bytes:
                    yield Broken(name, f"too large: over {max_bytes} bytes")
                elif record.raw_stream.limit > 0 or stream.error:
                    cut = True
                    yield Broken(name, f"truncated: the archive ends {record.raw_stream.limit} bytes before its end")
                else:
                    url = headers.get_header("WARC-Target-URI") or ""
                    charset = _CHARSET.search(parameters)
                    yield Record(
                        name,
                        _transcoded(raw, charset[1] if charset else None),
                        page=media != "text/plain",
                        fields={"url": url},
                    )
    except (ArchiveLoadFailed, ValueError, EOFError, OSError, AttributeError, TypeError, LookupError) as error:
        # warcio takes for granted what a header has that is cut in the middle.
        stream.error = stream.error or error
    if isinstance(stream.error, OSError) and not isinstance(stream.error, gzip.BadGzipFile):
        yield Broken(f"{count}+", f"unreadable: the source vanished after record {count} ({stream.error})")
    elif not cut and (stream.error is not None or stream.last != b"\r\n\r\n"):
        yield Broken(f"{count}+", f"truncated: the archive is damaged after record {count}")


def _transcoded(raw: bytes, charset: str | None) -> bytes:
    """A page's bytes as UTF-8 where its header names another encoding that fits; else as they are."""
    if charset and charset.lower() not in ("utf-8", "utf8"):
        try:
            return raw.decode(charset).encode()
        except (UnicodeError, LookupError):
            return raw
    return raw
