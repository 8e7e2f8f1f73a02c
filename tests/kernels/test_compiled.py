"""Building the compiled kernels: once for all processes, not without a compiler, not in a folder open to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from overland import kernels
from overland.kernels.compiled import Compiled

SHOW = """
import torch
from overland import kernels
from overland.kernels.compiled import Compiled
print(kernels.compiled_state()[0])
print(kernels.situ_glu(torch.linspace(-3, 3, 21), torch.linspace(5, -5, 21), 4.0, 25.0).sum().item())
"""


def run(tmp_path: Path, **environment: str) -> subprocess.Popen[str]:
    """A fresh process whose cache is under `tmp_path`."""
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **environment,
    }
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SHOW], env=environment, stdout=pipe, stderr=pipe, text=True)


def test_two_processes_build_each_library_once(tmp_path: Path) -> None:
    if not kernels.compiled_state()[0]:
        pytest.skip(f"nothing can be built here: {kernels.compiled_state()[1]}")
    first, second = run(tmp_path), run(tmp_path)
    outputs = [process.communicate(timeout=300)[0].split() for process in (first, second)]
    assert outputs[0] == outputs[1]
    assert outputs[0][0] == "True"
    names = [path.name.partition("-")[0] for path in (tmp_path / "overland" / "kernels").glob("*.so")]
    assert "situ" in names
    assert len(names) == len(set(names))


def test_without_a_compiler_the_torch_forms_run_and_say_so(tmp_path: Path) -> None:
    out, errors = run(tmp_path, PATH=str(tmp_path), CXX="no-such-compiler").communicate(timeout=300)
    built, value = out.split()
    assert built == "False"
    assert "no C++ compiler found" in errors
    x = torch.linspace(-3, 3, 21), torch.linspace(5, -5, 21)
    assert float(value) == pytest.approx(kernels.situ_glu_reference(*x, 4.0, 25.0).sum().item(), abs=1e-4)


def test_a_cache_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "overland" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    out, errors = run(tmp_path).communicate(timeout=300)
    assert out.split()[0] == "False"
    assert "must be this user's alone" in errors


def test_tensor_subclasses_keep_to_the_torch_forms() -> None:
    class Sharded(torch.Tensor):
        pass

    x = torch.linspace(-3, 3, 21)
    wrapped = x.as_subclass(Sharded)
    assert isinstance(kernels.situ_glu(wrapped, wrapped, 4.0, 25.0), Sharded)
    native = Compiled("situ", situ_forward="ppp iii dd")
    assert not native.runs(x, wrapped)
    assert native.runs(x) == kernels.compiled_state()[0]
