"""No silent fall back to torch: where there is a C++ compiler, every native source is built, with all its functions.

A machine without a compiler runs the torch forms, which is said at every start and by `overland doctor`; there these
tests are skipped. In CI there is one.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
from pathlib import Path

import pytest

import overland
from overland import kernels
from overland.cli.machine import look
from overland.corpus import compiled as corpus_loops
from overland.kernels.compiled import SOURCES, Compiled

COMPILERS = [name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name and shutil.which(name)]
needs_a_compiler = pytest.mark.skipif(not COMPILERS, reason="no C++ compiler on this machine")
PACKAGE = Path(overland.__file__).parent


def declared() -> list[Compiled]:
    """Every `Compiled` that a module of the kernels room declares."""
    names = [module.name for module in pkgutil.iter_modules(kernels.__path__) if module.name != "kda_fla"]
    modules = [importlib.import_module(f"overland.kernels.{name}") for name in names]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Compiled)]


@needs_a_compiler
def test_every_source_is_built() -> None:
    built, state = kernels.compiled_state()
    assert built, f"{COMPILERS[0]} is here, and yet: {state}"
    corpus_loops.library()


@needs_a_compiler
def test_every_source_is_declared_and_every_declared_function_is_in_its_library() -> None:
    assert {one.name for one in declared()} == {path.stem for path in SOURCES.glob("*.cpp")}
    for one in declared():
        functions = one._load()  # raises where the library lacks one
        assert functions is not None, f"{one.name} runs in its torch form"
        assert {name for name, _ in functions} == one.signatures.keys()


def test_there_are_no_native_sources_elsewhere() -> None:
    folders = {
        path.parent.relative_to(PACKAGE).as_posix() for kind in ("*.c", "*.cpp", "*.cu") for path in PACKAGE.rglob(kind)
    }
    assert folders == {"kernels/native", "corpus/native"}


def test_doctor_says_which_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overland.agent.sandbox.probe_report", dict)
    found = look(tmp_path)
    if COMPILERS:
        assert "libraries" in found.facts["compiled"]
        assert found.facts["compiled corpus"] == "yes"
    monkeypatch.setattr("overland.kernels.compiled_state", lambda: (False, "kda not compiled: error"))
    broken = look(tmp_path)
    assert broken.facts["compiled"] == "no; the torch forms run, which are slower"
    assert "compiled kernels: kda not compiled: error" in broken.missing
