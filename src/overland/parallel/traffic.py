"""What a piece of a program sends: calls and bytes of every kind of collective, as this rank sees them.

    with Traffic() as traffic:
        loss.backward()
    traffic.calls["all_gather"], traffic.bytes["all_gather"]

Bytes are those that the cheapest way must send from a rank of R, for a whole tensor of b bytes: (R - 1) / R b for an
all-gather and a reduce-scatter, twice that for an all-reduce; an all-to-all sends what is for others. A collective on a
group of one sends nothing and is not counted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode


class Traffic(TorchDispatchMode):
    """Counts while it is entered; `calls` and `bytes` are keyed by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count(func.name().split("::")[1].split(".")[0], args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "_allgather_base_":
            self._add("all_gather", _size(args[0]), args[2])
        elif name == "_reduce_scatter_base_":
            self._add("reduce_scatter", _size(args[1]), args[2])
        elif name == "allreduce_":
            self._add("all_reduce", 2 * sum(map(_size, args[0])), args[1])
        elif name == "alltoall_base_":
            self._exchange(args[1], args[4] or None, args[2])
        elif name == "all_to_all_single":
            self._exchange(args[0], args[2], args[3])

    def _add(self, kind: str, whole: int, group: Any) -> None:
        ranks = _group(group).size()
        if ranks > 1:
            self.calls[kind] += 1
            self.bytes[kind] += whole * (ranks - 1) // ranks

    def _exchange(self, sent: Tensor, splits: list[int] | None, group: Any) -> None:
        found = _group(group)
        if found.size() > 1:
            rows = splits[found.rank()] if splits else sent.shape[0] // found.size()
            stays = rows * (sent.numel() // sent.shape[0]) if sent.shape[0] else 0
            self.calls["all_to_all"] += 1
            self.bytes["all_to_all"] += (sent.numel() - stays) * sent.element_size()


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _group(group: Any) -> dist.ProcessGroup:
    if isinstance(group, str):
        return distributed_c10d._resolve_process_group(cast(Any, group))
    return dist.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
