"""Ctrl-C that waits for the end of a step, so that what is done can be saved whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """What `deferred_interrupt` yields; `asked` turns true at the first Ctrl-C."""

    asked = False


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Note the first Ctrl-C instead of raising; a second one raises at once. Only the main thread can do this.

        with deferred_interrupt() as stop:
            for step in range(steps):
                ...
                if stop.asked:
                    save()
                    raise KeyboardInterrupt
    """
    state = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        if state.asked:
            raise KeyboardInterrupt
        state.asked = True

    signal.signal(signal.SIGINT, note)
    try:
        yield state
    finally:
        signal.signal(signal.SIGINT, before)
