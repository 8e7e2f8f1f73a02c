"""The same pieces on Ray Data: a cluster's workers read, judge and tokenise; this process decides and packs.

The work folder (beside the corpus) and local sources must be on storage that every node sees. Pieces go out in windows
of a few for every worker, so that nothing piles up in Ray's object store; only names of files travel back.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from overland.corpus.runners import Item, Result
from overland.corpus.section import ScaleSection
from overland.errors import UsageError


class RayData:
    """Maps windows of items as Ray Data datasets."""

    def __init__(self, ray: Any, workers: int) -> None:
        self.ray, self.workers = ray, workers

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        todo = iter(items)
        call = _Call(function)
        while window := list(itertools.islice(todo, 4 * self.workers)):
            rows = [{"at": at, "item": pickle.dumps(item)} for at, item in enumerate(window)]
            data = self.ray.data.from_items(rows, override_num_blocks=len(rows)).map(call)
            results = sorted(data.take_all(), key=lambda row: int(row["at"]))
            for row in results:
                yield pickle.loads(row["result"])


class _Call:
    """One row in, one row out; everything but the place travels pickled."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"at": row["at"], "result": pickle.dumps(self.function(pickle.loads(row["item"])))}


@contextmanager
def open_ray(scale: ScaleSection) -> Iterator[RayData]:
    """Connect to the cluster at `scale.ray_address`, or start one on this machine, and leave it as it was."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UsageError(
            "corpus.scale.runner = 'ray' needs Ray; install it with: pip install 'overland[ray]'"
        ) from error
    started = not ray.is_initialized()
    if started:
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if scale.ray_address:
            options["address"] = scale.ray_address
        elif scale.workers:
            options["num_cpus"] = scale.workers
        ray.init(**options)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        yield RayData(ray, scale.workers or max(1, int(ray.cluster_resources().get("CPU", 1))))
    finally:
        if started:
            ray.shutdown()
