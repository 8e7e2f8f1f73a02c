"""Peak memory of this process: grows with what is held, falls only where it is measured anew."""

from __future__ import annotations

import sys

import pytest

from overland.runs import peak_bytes, restart_peak


def test_the_peak_stays_after_memory_was_given_back() -> None:
    restart_peak()
    before = peak_bytes()
    held = bytearray(96 << 20)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])  # touched, so that it is resident
    del held
    assert peak_bytes() - before > 64 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can measure anew")
def test_measured_anew_the_peak_is_what_is_held_now() -> None:
    held = bytearray(96 << 20)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    high = peak_bytes()
    del held
    restart_peak()
    assert high - peak_bytes() > 64 << 20
