"""Where the pieces of a build run: in this process, in worker processes, on a Ray cluster. One function, same results.

A runner maps a picklable function over items and yields the results in the items' order. It takes few items ahead of
the results, so that memory stays bounded and a caller may stop asking.
"""

from __future__ import annotations

import collections
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

from overland.corpus.section import ScaleSection
from overland.errors import OverlandError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Runner(Protocol):
    """`workers`: how many items are worked on at the same time."""

    workers: int

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """function(item) for each item, in order, lazily."""
        ...


class Here:
    """One after the other in this process."""

    workers = 1

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        return map(function, items)


class Processes:
    """Worker processes, started afresh: no thread or lock of this process is copied into them."""

    def __init__(self, pool: ProcessPoolExecutor, workers: int) -> None:
        self.pool, self.workers = pool, workers

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        waiting: collections.deque[Future[Result]] = collections.deque()
        todo = iter(items)
        try:
            while True:
                # One in hand for each worker and one to follow.
                while len(waiting) < 2 * self.workers and (item := next(todo, _END)) is not _END:
                    waiting.append(self.pool.submit(function, item))
                if not waiting:
                    return
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise OverlandError(
                "corpus: a worker process died (killed, or out of memory); lower corpus.scale.memory_megabytes or "
                "workers and run the same command again: what was finished is kept"
            ) from error
        finally:
            for future in waiting:
                future.cancel()


_END: Any = object()
_OBJECTS = 200_000  # between two searches for cycles: documents are many objects, none of which holds itself


@contextmanager
def few_collections() -> Iterator[None]:
    """Let the garbage collector look for cycles more seldom."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _start_worker() -> None:
    """Workers leave Ctrl-C to the process that started them, and take one thread each."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(_OBJECTS)
    os.environ.update(TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


@contextmanager
def open_runner(scale: ScaleSection) -> Iterator[Runner]:
    """The runner that a recipe asks for. Raises UsageError where Ray is asked for and not installed."""
    if scale.runner == "ray":
        from overland.corpus.runner_ray import open_ray

        with open_ray(scale) as runner:
            yield runner
    elif scale.runner == "processes":
        workers = scale.workers or len(os.sched_getaffinity(0))
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker)
        try:
            yield Processes(pool, workers)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    else:
        yield Here()
