"""The house plan's floors: a room imports from lower floors only, and the lower rooms stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import overland

PACKAGE = Path(overland.__file__).parent
FLOORS = {
    **dict.fromkeys(("config", "kernels", "chat", "licences", "runs"), 0),
    **dict.fromkeys(("corpus", "model"), 1),
    **dict.fromkeys(("transform", "parallel"), 2),
    **dict.fromkeys(("engine", "train"), 3),
    **dict.fromkeys(("agent", "serve"), 4),
    "environments": 5,
    "evaluate": 6,
    "rl": 7,
    "studio": 8,
    "pipeline": 9,
    "cli": 10,
    "__main__": 11,  # starts the command line
}
OWN_NAMES = {"errors", "__version__"}  # below every floor
LIGHT = ("overland.chat", "overland.config", "overland.runs", "overland.licences")


def imported(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, full name) of everything under `overland` that `source`, the text of `module`, imports at any depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")[: (None if is_package else -1)]
                parts = parts[: len(parts) - (node.level - 1)]
                base = ".".join([*parts, base]) if base else ".".join(parts)
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            first = node.args[0] if node.args else None
            if called not in ("import_module", "__import__") or not isinstance(first, ast.Constant):
                continue
            names = [str(first.value)]
        else:
            continue
        for name in names:
            if name == "overland" or name.startswith("overland."):
                yield node.lineno, name


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports of `module` that its floor does not allow."""
    own = module.split(".")[1]
    found = []
    for line, name in imported(source, module, is_package):
        room = ([*name.split("."), ""])[1]
        # `from overland import Engine` is an import of the engine
        room = overland._PUBLIC.get(room, f"overland.{room}").split(".")[1]
        if room == own or room in OWN_NAMES:
            continue
        if room not in FLOORS:
            found.append(f"{module}:{line} imports {name}, which is not a room")
        elif FLOORS[room] >= FLOORS.get(own, -1):
            found.append(f"{module}:{line} (floor {FLOORS.get(own)}) imports {name} (floor {FLOORS[room]})")
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_rooms_import_from_lower_floors_only() -> None:
    found = []
    for module, path in modules():
        if module != "overland":
            found += violations(path.read_text("utf-8"), module, path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_every_folder_is_a_room_with_a_floor() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= FLOORS.keys()


@pytest.mark.parametrize(
    "source",
    [
        "from overland.engine import Engine",
        "def f():\n    from overland.serve.app import App",
        "import overland.train.step",
        "from overland import train",
        "from overland import Engine",
        "from ..engine import Engine",
        "from importlib import import_module\nimport_module('overland.rl')",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from overland.corpus import Loader",
        "import overland.nowhere",
    ],
)
def test_an_import_from_the_same_or_a_higher_floor_is_found(source: str) -> None:
    assert violations(source, "overland.model.decoder")


def test_imports_from_below_and_from_the_own_room_are_fine() -> None:
    source = "from overland import kernels\nfrom overland.errors import UsageError\n"
    assert not violations(source + "from .cache import Cache\nfrom . import cache", "overland.model.decoder")


def _python(code: str) -> str:
    path = {"PYTHONPATH": str(PACKAGE.parent), "PATH": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], env=path, check=True, capture_output=True, text=True).stdout


def test_importing_the_package_is_quick_and_loads_no_torch() -> None:
    code = (
        "import sys, time\nstart = time.process_time()\nimport overland\nspent = time.process_time() - start\n"
        "assert 'torch' not in sys.modules\nprint(spent)"
    )
    assert min(float(_python(code)) for _ in range(2)) < 0.3


@pytest.mark.parametrize("room", LIGHT)
def test_the_light_rooms_load_no_torch(room: str) -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        f"room = importlib.import_module({room!r})\n"
        "for module in pkgutil.walk_packages(room.__path__, room.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
        "print('torch' in sys.modules)"
    )
    assert _python(code).strip() == "False"
