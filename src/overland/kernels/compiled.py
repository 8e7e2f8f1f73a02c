"""The compiled kernels: C++ sources in `native/`, one shared library each, built on this machine at first use.

A source knows pointers and sizes, not torch: it compiles in seconds with any C++17 compiler, nothing is built when the
package is installed, and the machine's own vector instructions can be used. A library lies in the user's cache folder
under a hash of its sources, the flags, the compiler and the processor, so a changed source or another machine never
meets an old build. Without a compiler the torch forms run, and `overland doctor` says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overland.kernels.choice import kernel_choice

SOURCES = Path(__file__).parent / "native"
# Nothing of -ffast-math that changes results: NaN and infinity keep their meaning, sums keep their order.
FLAGS = (
    *("-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-Wno-psabi"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)
NATIVE_FLAGS = (("-march=native",), ("-mcpu=native",), ())  # the first that the compiler takes
_KINDS = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "d": ctypes.c_double}
_SUFFIX = {torch.float32: "_f32", torch.float64: "_f64", torch.bfloat16: "_bf16", torch.float16: "_f16"}
PLAIN = (Tensor, torch.nn.Parameter)  # subclasses hold no plain memory of their own
_log = logging.getLogger("overland.kernels")


class Compiled:
    """The functions of one source, `native/NAME.cpp`.

    `signatures` gives every function's arguments, one letter each: p a tensor's data (or None), i an integer, d a
    float; all return nothing. The source exports each once per dtype, as NAME_f32 and NAME_f64 (`BOTH` in
    native/common.h) unless `dtypes` says otherwise; the first floating tensor of a call decides which runs.
    """

    def __init__(
        self, name: str, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64), **signatures: str
    ) -> None:
        self.name, self.dtypes = name, dtypes
        self.signatures = {key: text.replace(" ", "") for key, text in signatures.items()}
        self._functions: dict[tuple[str, torch.dtype], Callable[..., None]] | None = None

    def runs(self, *tensors: Tensor | None) -> bool:
        """Whether these tensors (of one dtype, on the CPU) go to the compiled form: asked for, known, and built.

        Subclasses (a sharded DTensor, a fake tensor while tracing) hold no plain memory of their own and never do.
        """
        dtype = None
        for x in tensors:
            if x is not None:
                if type(x) not in PLAIN or x.dtype not in self.dtypes or not x.is_cpu or dtype not in (None, x.dtype):
                    return False
                dtype = x.dtype
        return kernel_choice() == "fast" and self._load() is not None

    def __call__(
        self, function: str, *args: Tensor | Sequence[Tensor | None] | ctypes.Array[Any] | float | None
    ) -> None:
        """Run `function`. Tensors must be contiguous; what is written to must not overlap what is read.

        A sequence of tensors (or None) becomes an array of pointers; one that was made of addresses is taken as it is.
        """
        functions = self._load()
        assert functions is not None
        dtype = None
        raw: list[Any] = []
        for x in args:
            if isinstance(x, Tensor):
                assert x.is_contiguous(), f"{function}: argument {len(raw)} is not contiguous"
                if dtype is None and x.is_floating_point():
                    dtype = x.dtype
                raw.append(x.data_ptr())
            elif isinstance(x, list | tuple):
                assert all(each is None or each.is_contiguous() for each in x), (
                    f"{function}: argument {len(raw)}: strided"
                )
                raw.append((ctypes.c_void_p * len(x))(*[None if each is None else each.data_ptr() for each in x]))
            else:
                raw.append(x)
        assert dtype is not None
        functions[function, dtype](*raw)

    def function(self, name: str, dtype: torch.dtype | None) -> Callable[..., None]:
        """The bare function: it takes addresses and numbers, and nothing is looked at. For what is called often."""
        functions = self._load()
        assert functions is not None
        assert dtype is not None
        return functions[name, dtype]

    def _load(self) -> dict[tuple[str, torch.dtype], Callable[..., None]] | None:
        if self._functions is None:
            library = _library(self.name)
            if library is None:
                return None
            found = {}
            for key, kinds in self.signatures.items():
                for dtype in self.dtypes:
                    function = getattr(library, key + _SUFFIX[dtype])
                    function.argtypes, function.restype = [_KINDS[kind] for kind in kinds], None
                    found[key, dtype] = function
            self._functions = found
        return self._functions


def compiled_state() -> tuple[bool, str]:
    """Whether every source is built (building what is not), and a line about it: where they lie, or what failed."""
    names = sorted(path.stem for path in SOURCES.glob("*.cpp"))
    failed = [name for name in names if _library(name) is None]
    if failed:
        return False, f"{', '.join(failed)} not compiled: {_built(failed[0])[1]}"
    return True, f"{len(names)} libraries, {' '.join(_vectors())}, in {_cache()}"


@lru_cache
def _library(name: str) -> ctypes.CDLL | None:
    path, problem = _built(name)
    if path is not None:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            problem = str(error)
    _log.warning("kernel %s runs in its torch form, slower: %s", name, problem)
    return None


@lru_cache
def _built(name: str) -> tuple[Path | None, str]:
    """The library of one source, compiled where the cache has none yet; or None and what is wrong."""
    compiler, version = _compiler()
    if compiler is None:
        return None, "no C++ compiler found (apt install g++, or set CXX)"
    source = SOURCES / f"{name}.cpp"
    text = b"".join(_texts(source).values())
    key = hashlib.sha256(text + repr((FLAGS, NATIVE_FLAGS, version, _processor())).encode()).hexdigest()[:20]
    try:
        folder = _cache()
        target = folder / f"{name}-{key}.so"
        if not target.exists():
            with _locked(folder / f"{name}.lock"):
                if not target.exists():
                    _compile(compiler, source, target)
        return target, ""
    except OSError as error:
        return None, str(error)
    except subprocess.SubprocessError as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return None, f"{compiler} failed: {lines[0] if lines else 'no message'}"


def _texts(source: Path, into: dict[Path, bytes] | None = None) -> dict[Path, bytes]:
    """What a source is made of: itself and the headers beside it that it includes, each once."""
    texts = {} if into is None else into
    texts[source] = source.read_bytes()
    for name in re.findall(rb'^#include "(.+)"', texts[source], re.MULTILINE):
        if (header := source.parent / name.decode()) not in texts:
            _texts(header, texts)
    return texts


def _compile(compiler: str, source: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        for last, native in enumerate(NATIVE_FLAGS, start=1):
            command = [compiler, *FLAGS, *native, str(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode == 0:
                break
            if last == len(NATIVE_FLAGS):
                done.check_returncode()
        made.replace(target)


def _cache() -> Path:
    """The folder of built libraries; ours alone, because what lies in it is run."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "overland" / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError(f"{folder} belongs to, or can be written by, somebody else; it must be this user's alone")
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the others wait, and then find the work done."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@lru_cache
def _compiler() -> tuple[str | None, str]:
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        path = shutil.which(name)
        if path:
            try:
                done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True)
            except (OSError, subprocess.SubprocessError):
                continue
            return path, done.stdout.partition("\n")[0]
    return None, ""


@lru_cache
def _processor() -> str:
    """What decides which instructions may be used: architecture, model and feature flags."""
    lines = {platform.machine(), platform.system()}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features", "model name")):
                lines.add(line)
    return "\n".join(sorted(lines))


def _vectors() -> list[str]:
    known = ("avx512f", "avx2", "neon", "asimd")
    return [name for name in known if f" {name} " in f" {_processor()} ".replace("\n", " ")][:1] or ["plain"]
