"""Independent forms that the kernels are held against, loaded where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def fla_naive(operation: str, name: str) -> Callable[..., Any]:
    """fla-core's plain form of an operation. Read by path, because the package itself imports triton."""
    pytest.importorskip("einops", reason="fla-core's naive forms need einops")
    package = importlib.util.find_spec("fla")
    if package is None or not package.submodule_search_locations:
        pytest.skip("fla-core is not installed (pip install --no-deps fla-core einops)")
    file = Path(package.submodule_search_locations[0]) / "ops" / operation / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_naive_{operation}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
