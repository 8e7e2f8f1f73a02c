"""One probed sandbox for all tests of the room; each test gets a fresh work directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from overland.agent.sandbox import Sandbox, Workdir, choose_sandbox
from overland.errors import UsageError


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    try:
        return choose_sandbox()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def work() -> Iterator[Workdir]:
    with Workdir({"notes/a.txt": "hello\n"}) as workdir:
        yield workdir
