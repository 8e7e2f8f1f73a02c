"""Data-parallel ranks: every rank runs the same loop on its share of the batch, and sums meet before the step.

One process is world 1 and nothing is communicated. On a laptop `in_ranks` starts the other ranks beside the caller,
which is rank 0; under torchrun the ranks exist already. Only rank 0 writes the run folder.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from overland.errors import OverlandError

T = TypeVar("T")

DEADLINE = timedelta(minutes=10)  # longest wait for another rank; a stage never goes so long without a sum
_lost = threading.Event()  # set in rank 0 once another rank has died


class Ranks:
    """This process's place among `world` ranks, and the few collectives that a data-parallel loop needs."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world

    @classmethod
    def current(cls) -> Ranks:
        """The ranks of the initialised process group, or a single one. Raises RuntimeError where one was lost."""
        if dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        if _lost.is_set():  # a single rank would go on alone, with other sums
            raise RuntimeError("a rank was lost")
        return cls()

    @property
    def writes(self) -> bool:
        """Whether this rank writes files and shows progress."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Every world-th item, from this rank's own on."""
        return items[self.rank :: self.world]

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place, the same bits on every rank."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum(self, *values: float) -> list[float]:
        """The sums over ranks of some numbers (float64)."""
        return self.sum_(torch.tensor(values, dtype=torch.float64)).tolist()

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up `.grad` over ranks in one message; a missing gradient counts as zero."""
        if self.world == 1:
            return
        with_grad = [p for p in parameters if p.requires_grad]
        for p in with_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.reshape(-1) for p in with_grad if p.grad is not None])
        dist.all_reduce(flat)
        for p, part in zip(with_grad, flat.split([p.numel() for p in with_grad]), strict=True):
            assert p.grad is not None
            p.grad.copy_(part.view_as(p.grad))

    def any(self, flag: bool) -> bool:
        """Whether any rank says yes: how the ranks agree to stop at the same step."""
        return bool(self.sum(float(flag))[0])

    def check_in(self) -> None:
        """Wait for every rank: what rank 0 wrote is there for all afterwards."""
        if self.world > 1:
            dist.barrier()

    def gather(self, own: T) -> list[T]:
        """Every rank's object, in rank order, on every rank."""
        if self.world == 1:
            return [own]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, own)
        return found

    def check_equal(self, model: nn.Module) -> None:
        """Raise OverlandError where the ranks' weights are not the same bits."""
        total = torch.stack([p.detach().double().sum() for p in model.parameters()]).sum().item()
        found = self.gather(total)
        if any(other != total for other in found):
            raise OverlandError(f"the ranks' weights differ ({found}); this is a bug, or memory at fault: start again")


def in_ranks(world: int, run: Callable[..., T], *args: Any) -> T:
    """Call `run(ranks, *args)` on `world` ranks at once and return rank 0's result, which is this process.

    `run` and `args` are pickled for the others. Where another rank fails, this one is interrupted with an OverlandError
    that carries its message; where this one ends, by whatever way, the others end too.
    """
    if world == 1 or dist.is_initialized():
        return run(Ranks.current(), *args)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    # The store lives in this process, so the others' connection breaks when it goes.
    store = dist.TCPStore("127.0.0.1", port, world, is_master=True, wait_for_workers=False, timeout=DEADLINE)
    words = [context.Pipe(duplex=False) for _ in range(1, world)]  # what each of the others says when it fails
    others = [
        context.Process(target=_other_rank, args=(rank, world, port, os.getpid(), says, run, args), daemon=True)
        for rank, (_, says) in enumerate(words, 1)
    ]
    for process in others:
        process.start()
    watch, ended = _Watch(others), False
    try:
        dist.init_process_group("gloo", store=store, rank=0, world_size=world, timeout=DEADLINE)
        result = run(Ranks.current(), *args)
        ended = True
        return result
    except (RuntimeError, ValueError) as error:  # what torch raises for a broken group, and for one that is gone
        reason = _reason(others, [heard for heard, _ in words])
        if reason is None:
            raise
        raise OverlandError(reason) from error
    finally:
        watch.stop()
        if not ended:
            for process in others:
                process.terminate()  # it closes its sandboxes
        if dist.is_initialized():
            dist.destroy_process_group()
        for process in others:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        _lost.clear()


def _reason(others: Sequence[Any], words: Sequence[Any]) -> str | None:
    """What another rank died of; None where all are well and the error is this rank's own."""
    multiprocessing.connection.wait([process.sentinel for process in others], timeout=2)  # a broken pipe comes first
    for heard in words:
        if heard.poll():
            return f"another rank failed: {heard.recv()}"
    for rank, process in enumerate(others, 1):
        if process.exitcode not in (None, 0):
            how = f"was killed ({signal.Signals(-process.exitcode).name})" if process.exitcode < 0 else "ended"
            return (
                f"rank {rank} {how}; where nobody did that, memory ran out. What was finished is kept: run again with "
                "--resume."
            )
    return None


def _other_rank(
    rank: int, world: int, port: int, parent: int, says: Any, run: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides when to stop, and says so in the loop
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # rank 0 ended; what is open is closed on the way out
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (rank 0 speaks for all)
    try:
        store = dist.TCPStore("127.0.0.1", port, world, is_master=False, timeout=DEADLINE)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=DEADLINE)
        run(Ranks.current(), *args)
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        says.send(str(error) if isinstance(error, OverlandError) else f"{type(error).__name__}: {error}")
        os._exit(1)


def _die_with(parent: int) -> None:
    """End this process when its parent is gone: after kill -9 nobody else would."""
    pause = threading.Event()
    while not pause.wait(1.0):
        if os.getppid() != parent:
            os._exit(1)


class _Watch:
    """Breaks rank 0's wait when another rank has died: a killed process must not hang the rest until the deadline."""

    def __init__(self, others: Sequence[Any]) -> None:
        self._others, self._stopped = others, threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _look(self) -> None:
        while not self._stopped.wait(0.5):
            if any(p.exitcode not in (None, 0) for p in self._others):
                _lost.set()
                if dist.is_initialized():
                    dist.distributed_c10d._abort_process_group()
                return
