"""One program in a fresh sandbox, with input, a deadline and capped output."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from overland.agent.sandbox import rlimits
from overland.agent.sandbox.base import ExecResult, Sandbox, SandboxLimits
from overland.agent.sandbox.child import DIED, Child
from overland.agent.sandbox.output import CappedOutput


async def run_once(
    sandbox: Sandbox,
    argv: Sequence[str],
    stdin: bytes,
    timeout: float | None,
    workdir: Path | None,
    limits: SandboxLimits,
) -> ExecResult:
    """Runs `argv`; standard output and standard error are kept apart. What came before a deadline is kept."""
    seconds = timeout or limits.command_seconds
    started = time.monotonic()
    out, err = CappedOutput(limits.output_bytes), CappedOutput(limits.output_bytes)
    inside = ["/bin/sh", "-c", f'{rlimits.inner(limits)}; exec "$@"', "sh", *argv]
    child = Child(sandbox.launch(inside, workdir, limits), limits, merge_stderr=False)
    note, hit = "", None

    async def drain(fd: int, output: CappedOutput) -> bool:
        while chunk := await child.read(fd):
            output.add(chunk)
            if out.total + err.total > limits.flood_bytes:
                child.kill()
                return True
        return chunk != DIED

    try:
        try:
            async with asyncio.timeout(seconds):
                _, *flooded = await asyncio.gather(
                    child.write(stdin, close=True), drain(child.stdout, out), drain(child.stderr, err)
                )
            if any(flooded):
                note, hit = f"stopped after {out.total + err.total} bytes of output", "output"
        except TimeoutError:
            note, hit = f"stopped after {seconds:g} seconds", "time"
        rc = child.returncode if hit is None else None
        if rc and child.group.kills():
            hit, note = "memory", f"out of memory: the limit is {limits.memory_bytes >> 20} MiB"
        elif rc and child.group.refusals():
            hit, note = "processes", f"too many processes: the limit is {limits.processes}"
    finally:
        await child.close()
    total = out.total + err.total
    truncated = out.truncated or err.truncated
    return ExecResult(rc, out.bytes(), err.bytes(), truncated, total, time.monotonic() - started, hit, note)
