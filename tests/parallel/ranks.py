"""Gloo ranks for tests: processes of a forkserver that has torch loaded, so that four of them start in a moment."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

DEADLINE = 600.0  # for one collective
PATIENCE = 1500.0  # for all that the ranks are asked
PRELOAD = [
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "overland.model",
    "overland.parallel.parallelize",
    "overland.train.balance_quantile",
    "overland.transform.activation_checkpointing",
]


def on_ranks(world: int, run: Callable[..., Any], *args: Any) -> list[Any]:
    """What `run(*args)` returns on each of `world` ranks of a fresh group. Raises with the first rank's trace."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answers: Any = context.Queue()
    asked = pickle.dumps((run, args))  # bytes here too: a tensor would be a shared file, and there may be 256 of them
    processes = [context.Process(target=_rank, args=(rank, world, port, answers, asked)) for rank in range(world)]
    for process in processes:
        process.start()
    try:
        found = [answers.get(timeout=PATIENCE) for _ in range(world)]
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
    for _, error, _ in found:
        if error:
            raise AssertionError(error)
    return [pickle.loads(value) for _, _, value in sorted(found, key=lambda answer: answer[0])]


def _rank(rank: int, world: int, port: int, answers: Any, asked: bytes) -> None:
    torch.set_num_threads(1)
    try:
        run, args = pickle.loads(asked)
        store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0, timeout=timedelta(seconds=DEADLINE))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        answers.put((rank, "", pickle.dumps(run(*args))))  # bytes: a tensor would be shared with a process that ends
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answers.put((rank, f"rank {rank}: {traceback.format_exc()}", b""))
