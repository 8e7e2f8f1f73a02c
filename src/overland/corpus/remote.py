"""Remote files whose errors are OSErrors, whatever their store's library raises: a broken one drops no build."""

from __future__ import annotations

import errno
import importlib.util
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

_REQUEST = 1 << 20  # bytes that obstore fetches at once: of one state of the object
_TRIES = 3  # of one read
# Protocols of buckets, and the library that fsspec itself would ask for.
_BUCKETS = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "adlfs"),
}


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it.

    Buckets are read by obstore (extra `store`, settings from the environment) unless fsspec's own library for them is
    installed. Raises ImportError where there is neither.
    """
    import fsspec

    protocol = url.split("://", 1)[0]
    own = _BUCKETS.get(protocol)
    if own is None or importlib.util.find_spec(own):
        system, path = fsspec.core.url_to_fs(url)
        return system, str(path)
    if not importlib.util.find_spec("obstore"):
        raise ImportError(f"{protocol}:// needs obstore: pip install 'overland[store]'; or {own}")
    from obstore.fsspec import FsspecStore

    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    make: Any = FsspecStore  # its overloads know protocols as literals only
    system = make(
        protocol,
        client_options={"timeout": "60s", "allow_http": endpoint.startswith("http://")},
        # A short break is waited out; a store that is gone costs each file seconds, not minutes.
        retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=60)},
        skip_instance_cache=True,  # the environment may say something else than it did
    )
    return system, url.split("://", 1)[1].rstrip("/")


@contextmanager
def os_errors() -> Iterator[None]:
    """Let only OSError and ImportError out: aiohttp's, botocore's and others' have bases of their own."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "not found", *error.args[:1]) from error
    except (OSError, ImportError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:160]
        raise OSError(f"{type(error).__name__}: {said}" if said else type(error).__name__) from error


class RemoteFile:
    """A file of fsspec, for reading. A read that fails is tried again from its place, over a new connection.

    One that takes several requests and is another at its end than at its beginning is an OSError there.
    """

    def __init__(self, system: Any, path: str) -> None:
        self.system, self.path, self.place, self.broken = system, path, 0, False
        self.before: dict[str, Any] = {}
        self.known: dict[str, Any] = {}
        with os_errors():
            if type(system).__module__ == "obstore.fsspec":  # what is missing is found out here, quietly
                self.before = system.info(path)
                self.known = {"size": self.before["size"]}
            self.file = system.open(path, "rb", **self.known)

    def read(self, size: int = -1) -> bytes:
        for attempt in range(1, _TRIES + 1):
            try:
                with os_errors():
                    data: bytes = self.file.read(size)
                self.place += len(data)
                return data
            except OSError as error:
                gone = isinstance(error, FileNotFoundError)
                if gone or attempt == _TRIES or not self._open_again(attempt):
                    self.broken = True
                    raise
        raise AssertionError

    def _open_again(self, attempt: int) -> bool:
        time.sleep(0.2 * attempt)
        try:
            self.file = self.system.open(self.path, "rb", **self.known)
            self.file.seek(self.place)
        except Exception:  # of whatever kind its library has; the read's own error is the one to tell
            return False
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        with os_errors():
            self.place = int(self.file.seek(place, whence))
        return self.place

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, kind: object, *why: object) -> None:
        self.file.close()
        if kind is None and not self.broken and self.before.get("size", 0) > _REQUEST:
            with os_errors():
                now = self.system.info(self.path).get("e_tag")
            if now != self.before.get("e_tag"):
                raise OSError("it was replaced while it was read")
