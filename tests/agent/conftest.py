"""Every sandbox that works on this machine, for all tests of the room; each test gets a fresh work directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from overland.agent.sandbox import Sandbox, Workdir
from overland.agent.sandbox.choose import BACKENDS, _probed, working_backend


@pytest.fixture(scope="session", params=list(BACKENDS))
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Every backend that works here: they owe the same."""
    backend = working_backend(request.param)
    if backend is None:
        failed = [result for result in _probed(request.param)[1] if not result.held]
        pytest.skip(f"{request.param}: {failed}")
    return backend


@pytest.fixture
def work() -> Iterator[Workdir]:
    with Workdir({"notes/a.txt": "hello\n"}) as workdir:
        yield workdir
