"""Two views of one world of ranks: dense weights lie on (copies, fsdp), experts on (copies, efsdp, ep).

    ranks                0  1  2  3  4  5  6  7
    dense, fsdp=4        copy 0: 0 1 2 3            copy 1: 4 5 6 7
    sparse, ep=2         efsdp x ep: (0 1) (2 3)                (4 5) (6 7)

A dense weight is cut over `fsdp` and repeated over `copies`; an expert weight is cut by expert over `ep` and along its
dim 1 over `efsdp`. Gradients are summed, never averaged: a loss that is divided by the global number of tokens then
gives on any layout what it gives on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from overland.errors import UsageError
from overland.parallel.layout import Layout, refuse

APPLIED = ("fsdp", "ep")
"""Degrees that `parallelize` applies; the others are planned for and refused."""


@dataclass(frozen=True)
class Meshes:
    """The two views. `dense` has axes (copies, fsdp), `sparse` (copies, efsdp, ep)."""

    dense: DeviceMesh
    sparse: DeviceMesh

    @property
    def ep(self) -> int:
        return self.sparse["ep"].size()

    @property
    def expert_group(self) -> dist.ProcessGroup:
        """The ranks that share out one copy of the experts."""
        return self.sparse["ep"].get_group()


def build_meshes(layout: Layout, experts: int, device: str = "cpu") -> Meshes:
    """The meshes of a layout in the initialised world; `fsdp=0` shards over all ranks.

    The experts of a copy lie on the same ranks as its dense weights. Raises UsageError for what cannot be.
    """
    world = dist.get_world_size()
    for name in ("tp", "pp", "cp"):
        if getattr(layout, name) != 1:
            raise UsageError(
                f"{name} = {getattr(layout, name)}: only {' and '.join(APPLIED)} are applied so far; valid: 1"
            )
    fsdp = layout.fsdp or world
    if world % fsdp:
        raise refuse("fsdp", fsdp, "the ranks", world)
    if fsdp % layout.ep:
        raise refuse("ep", layout.ep, "the ranks of a copy (fsdp)", fsdp)
    if experts % layout.ep:
        raise refuse("ep", layout.ep, "the experts", experts)
    copies = world // fsdp
    dense = init_device_mesh(device, (copies, fsdp), mesh_dim_names=("copies", "fsdp"))
    shape = (copies, fsdp // layout.ep, layout.ep)
    return Meshes(dense, init_device_mesh(device, shape, mesh_dim_names=("copies", "efsdp", "ep")))
