"""Remote files whose errors are OSErrors, whatever their store's library raises: a broken one drops no build."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def os_errors() -> Iterator[None]:
    """Let only OSError and ImportError out: aiohttp's, botocore's and others' have bases of their own."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:160]
        raise OSError(f"{type(error).__name__}: {said}" if said else type(error).__name__) from error


class RemoteFile:
    """A file of fsspec, for reading."""

    def __init__(self, system: Any, path: str) -> None:
        with os_errors():
            self.file = system.open(path, "rb")

    def read(self, size: int = -1) -> bytes:
        with os_errors():
            data: bytes = self.file.read(size)
        return data

    def seek(self, place: int, whence: int = 0) -> int:
        with os_errors():
            return int(self.file.seek(place, whence))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *why: object) -> None:
        self.file.close()
