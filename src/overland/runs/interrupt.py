"""Ctrl-C that waits for the end of a step, so that what is done can be saved whole."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


WAITS = "\nstopping at the end of this step. Ctrl-C once more stops at once and loses the step.\n"


class Interrupt:
    """What `deferred_interrupt` yields; `asked` turns true at the first Ctrl-C."""

    asked = False


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Note the first Ctrl-C, and say so, instead of raising; a second one raises at once. Only in the main thread.

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
        os.write(2, WAITS.encode())  # not print: the signal may have come in the middle of one

    signal.signal(signal.SIGINT, note)
    try:
        yield state
    finally:
        signal.signal(signal.SIGINT, before)
