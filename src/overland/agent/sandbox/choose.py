"""Which sandbox this machine has: the first backend that withstands every probe, or an error that says what to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from overland.agent.sandbox.base import Sandbox
from overland.agent.sandbox.bwrap import Bwrap
from overland.agent.sandbox.nsjail import Nsjail
from overland.agent.sandbox.probe import ProbeResult, probe
from overland.agent.sandbox.process import Process
from overland.agent.sandbox.userns import Userns
from overland.errors import OverlandError, UsageError

BACKENDS: dict[str, Callable[[], Sandbox]] = {"bwrap": Bwrap, "nsjail": Nsjail, "userns": Userns}
"""In order of preference: quickest first, and one with a syscall filter before one without."""

_lock = threading.Lock()
_results: dict[str, tuple[Sandbox | None, list[ProbeResult]]] = {}


def _probed(name: str) -> tuple[Sandbox | None, list[ProbeResult]]:
    """The backend and its probe results, once per process."""
    with _lock:
        if name not in _results:
            try:
                backend = BACKENDS[name]()
            except OverlandError as error:
                _results[name] = (None, [ProbeResult("available", False, str(error))])
            else:
                _results[name] = (backend, _run(backend))
        return _results[name]


def _run(backend: Sandbox) -> list[ProbeResult]:
    """Probes on an event loop of their own, so that it can be asked for from inside one."""
    results: list[ProbeResult] = []

    def work() -> None:
        results.extend(asyncio.run(probe(backend)))

    thread = threading.Thread(target=work, name="overland-sandbox-probe")
    thread.start()
    thread.join()
    return results or [ProbeResult("starts", False, "the probe did not finish")]


def choose_sandbox(no_sandbox: bool = False) -> Sandbox:
    """The best backend that passed every probe; with `no_sandbox` the unprotected one, loudly.

    Raises UsageError that says what was tried and how to get a sandbox where there is none.
    """
    if no_sandbox:
        return Process()
    tried = []
    for name in BACKENDS:
        if backend := working_backend(name):
            return backend
        failed = [result for result in _probed(name)[1] if not result.held]
        tried.append(f"{name} ({'; '.join(f'{result.name}: {result.detail}' for result in failed)})")
    raise UsageError(
        f"no sandbox works on this machine. Tried: {', '.join(tried)}. Install bubblewrap (apt install bubblewrap, "
        "dnf install bubblewrap), allow unprivileged user namespaces, or pass --no-sandbox to run the model's commands "
        "unprotected"
    )


def working_backend(name: str) -> Sandbox | None:
    """The named backend if it is here and withstood every probe."""
    backend, results = _probed(name)
    return backend if backend is not None and all(result.held for result in results) else None


def probe_report() -> dict[str, list[ProbeResult]]:
    """Every backend's probe results, for `overland doctor`."""
    return {name: _probed(name)[1] for name in BACKENDS}
