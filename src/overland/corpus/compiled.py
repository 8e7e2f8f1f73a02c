"""The corpus's inner loops in C: `native/*.c`, one library, built on this machine at first use.

The sources know bytes and integers only, so their results are the same on every machine. The library lies in the
user's cache folder under a hash of sources, flags, compiler and processor, as the kernels room keeps its own; it is
not shared with that room because a corpus worker should not have to load torch.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overland.errors import OverlandError

SOURCES = Path(__file__).parent / "native"
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O3", "-shared", "-fPIC", "-fvisibility=hidden")
NATIVE_FLAGS = (("-march=native",), ("-mcpu=native",), ())  # the first that the compiler takes

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]


class Packed:
    """Texts as one buffer of UTF-8 and their offsets [n + 1] in it: the layout of an Arrow large_string array."""

    def __init__(self, data: Bytes, offsets: Offsets) -> None:
        self.data = np.ascontiguousarray(data, dtype=np.uint8)
        self.offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        lengths = np.diff(self.offsets)
        if len(self.offsets) < 1 or self.offsets[0] < 0 or self.offsets[-1] > len(self.data) or (lengths < 0).any():
            raise OverlandError("corpus: offsets of packed texts do not fit their buffer")
        if len(lengths) and lengths.max() >= 2**32 - 16:
            raise OverlandError(f"corpus: a text has {lengths.max()} bytes; split what is larger than 4 GB")

    @classmethod
    def of(cls, texts: Sequence[str | bytes]) -> Packed:
        """Pack texts; lone surrogates become what UTF-8 would spell for them."""
        raw = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]
        offsets = np.zeros(len(raw) + 1, dtype=np.int64)
        np.cumsum([len(piece) for piece in raw], out=offsets[1:])
        return cls(np.frombuffer(b"".join(raw), dtype=np.uint8), offsets)

    @classmethod
    def from_arrow(cls, column: object) -> Packed:
        """Pack a pyarrow string, large_string or binary array or chunked array, without copying where it is one chunk.

        Nulls count as empty texts.
        """
        import pyarrow as pa

        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):  # several chunks of over 2 GB stay apart until cast
            array = pa.concat_arrays([chunk.cast(pa.large_binary()) for chunk in array.chunks])
        assert isinstance(array, pa.Array)
        array = array.cast(pa.large_binary())
        _, offsets, data = array.buffers()
        if offsets is None or not len(array):
            return cls.of([])
        begin = array.offset
        numbers = np.frombuffer(offsets, dtype=np.int64)[begin : begin + len(array) + 1]
        return cls(np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8), numbers)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def raw(self, i: int) -> bytes:
        """The UTF-8 of text i."""
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()

    @property
    def n_bytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])


def pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """The address of an array's first element, for a C function."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def characters(utf8: bytes) -> int:
    """How many characters a UTF-8 text has."""
    if utf8.isascii():
        return len(utf8)
    if not available():
        return len(utf8.decode("utf-8", "surrogatepass"))
    count = library().overland_chars
    count.restype = ctypes.c_int64
    return int(count(ctypes.c_char_p(utf8), ctypes.c_int64(len(utf8))))


def available() -> bool:
    """Whether the library is built or can be."""
    try:
        library()
    except OverlandError:
        return False
    return True


@lru_cache
def library() -> ctypes.CDLL:
    """The library. Raises OverlandError where it cannot be built, with what to install."""
    compiler = next(
        (path for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (path := shutil.which(name))), None
    )
    if compiler is None:
        raise OverlandError("corpus: no C compiler found for the duplicate kernels; apt install gcc, or set CC")
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60).stdout
        text = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
        key = hashlib.sha256(text + repr((FLAGS, NATIVE_FLAGS, version, _processor())).encode()).hexdigest()[:20]
        target = _cache() / f"corpus-{key}.so"
        if not target.exists():
            with open(target.parent / "corpus.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not target.exists():
                    _compile(compiler, target)
        return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise OverlandError(f"corpus: the duplicate kernels cannot be built ({said[0] if said else error})") from error


def _compile(compiler: str, target: Path) -> None:
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        for last, native in enumerate(NATIVE_FLAGS, start=1):
            command = [compiler, *FLAGS, *native, *sources, "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode == 0:
                break
            if last == len(NATIVE_FLAGS):
                done.check_returncode()
        made.replace(target)


def _cache() -> Path:
    """The folder of built libraries; ours alone, because what lies in it is run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "overland" / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError(f"{folder} belongs to, or can be written by, somebody else; it must be this user's alone")
    return folder


def _processor() -> str:
    lines = {platform.machine(), platform.system()}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features", "model name")):
                lines.add(line)
    except OSError:
        pass
    return "\n".join(sorted(lines))
