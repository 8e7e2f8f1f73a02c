"""Where finished batches of the conversation log go: a folder, or a bucket with an S3 interface.

Both keep whole objects under keys like `dt=2026-12-01/hour=09/model=NAME/INSTANCE-000001.jsonl.zst`. A folder needs
nothing; a bucket needs obstore (the extra `store`), which reads its keys from the environment (AWS_ACCESS_KEY_ID ...).
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from overland.errors import UsageError
from overland.runs import atomic_write


class Sink(Protocol):
    """Whole objects by key. `put` is done when the object is durable."""

    def put(self, key: str, data: bytes) -> None: ...

    def days(self) -> list[str]:
        """The days (2026-12-01) that anything is kept of."""
        ...

    def drop_day(self, day: str) -> int:
        """Delete a day's objects; how many there were."""
        ...


class FolderSink:
    """A folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, data: bytes) -> None:
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, data)

    def days(self) -> list[str]:
        return sorted(path.name.removeprefix("dt=") for path in self._folder.glob("dt=*") if path.is_dir())

    def drop_day(self, day: str) -> int:
        folder = self._folder / f"dt={day}"
        files = [path for path in folder.rglob("*") if path.is_file()]
        for path in files:
            path.unlink()
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir()
        folder.rmdir()
        return len(files)


class BucketSink:
    """A bucket behind an S3 interface: s3://BUCKET/PREFIX, with `endpoint` where it is not Amazon's."""

    def __init__(self, url: str, endpoint: str = "") -> None:
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError:
            raise UsageError(f"serve.log_to = {url!r} needs obstore: pip install 'overland[store]'") from None
        parts = urlsplit(url)
        if not parts.netloc:
            raise UsageError(f"serve.log_to = {url!r} names no bucket; valid: s3://BUCKET/PREFIX")
        options: dict[str, Any] = {"region": os.environ.get("AWS_REGION", "us-east-1")}
        client: Any = {"timeout": "30s"}
        retry: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}  # the log tries again by itself
        if endpoint:
            options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
            client["allow_http"] = endpoint.startswith("http://")
        self._obstore = obstore
        self._store = S3Store(
            parts.netloc, prefix=parts.path.strip("/") or None, client_options=client, retry_config=retry, **options
        )

    def put(self, key: str, data: bytes) -> None:
        self._obstore.put(self._store, key, data, use_multipart=False)

    def days(self) -> list[str]:
        found = self._obstore.list_with_delimiter(self._store)["common_prefixes"]
        return sorted(str(one).strip("/").removeprefix("dt=") for one in found if str(one).startswith("dt="))

    def drop_day(self, day: str) -> int:
        paths = [one["path"] for batch in self._obstore.list(self._store, prefix=f"dt={day}") for one in batch]
        if paths:
            self._obstore.delete(self._store, paths)
        return len(paths)


def open_sink(target: str, endpoint: str = "") -> Sink:
    """The sink that `serve.log_to` names. Raises UsageError."""
    if target.startswith("s3://"):
        return BucketSink(target, endpoint)
    if "://" in target:
        raise UsageError(f"serve.log_to = {target!r}; valid: a folder, or s3://BUCKET/PREFIX")
    return FolderSink(Path(target))
