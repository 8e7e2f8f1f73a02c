"""Two views of one world of ranks: dense weights lie on (copies, shards, tp), experts on (copies, efsdp, ep).

    ranks                     0  1  2  3  4  5  6  7
    dense, fsdp=2, tp=2       copy 0: (0 1) (2 3)        copy 1: (4 5) (6 7)
    sparse, ep=4              efsdp x ep: (0 1 2 3)                  (4 5 6 7)

Ranks are numbered (copy, fsdp, cp, tp), the last fastest. A dense weight is cut over `tp` where the plan says so, cut
over `shards` = fsdp * cp, and repeated over `copies`; an expert weight is cut by expert over `ep` and along its dim 1
over `efsdp`, with efsdp * ep = fsdp * cp * tp. The ranks of one (copy, fsdp) hold the same rows of the batch and
share out their tokens: first over `cp`, then over `tp`. Gradients are summed, never averaged: a loss that is divided
by the global number of tokens then gives on any layout what it gives on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from overland.parallel.layout import Layout


@dataclass(frozen=True)
class Meshes:
    """The two views, and the ranks that share out tokens.

    `dense` has axes (copies, shards, tp), `sparse` (copies, efsdp, ep), `rows` (data, cp, tp), `sequence` (data,
    tokens) with tokens = cp * tp, `copy` (copies, ranks).
    """

    dense: DeviceMesh
    sparse: DeviceMesh
    rows: DeviceMesh
    sequence: DeviceMesh
    copy: DeviceMesh

    @property
    def ep(self) -> int:
        return self.sparse["ep"].size()

    @property
    def tp_group(self) -> dist.ProcessGroup:
        """The ranks that share out heads, widths and the vocabulary."""
        return self.rows["tp"].get_group()

    @property
    def cp_group(self) -> dist.ProcessGroup:
        """The ranks that share out the tokens of the same rows, in order."""
        return self.rows["cp"].get_group()

    @property
    def token_group(self) -> dist.ProcessGroup:
        """The ranks over which the residual stream of the same rows is cut, in the order of its tokens."""
        return self.sequence["tokens"].get_group()

    @property
    def expert_group(self) -> dist.ProcessGroup:
        """The ranks that share out one copy of the experts."""
        return self.sparse["ep"].get_group()

    @property
    def copy_group(self) -> dist.ProcessGroup:
        """All ranks of one copy of the model."""
        return self.copy["ranks"].get_group()

    @property
    def data(self) -> tuple[int, int]:
        """(index, count) of this rank's share of the batch's rows."""
        return self.rows.get_local_rank("data"), self.rows["data"].size()

    def close(self) -> None:
        """Give the groups of ranks back; nothing that lies on them can communicate afterwards. All ranks call it."""
        meshes = (self.dense, self.sparse, self.rows, self.sequence, self.copy)
        groups = {id(group): group for mesh in meshes for group in mesh.get_all_groups()}
        for group in groups.values():
            if group is not dist.group.WORLD:  # an axis as long as the world has no group of its own
                dist.destroy_process_group(group)


def build_meshes(layout: Layout, device: str = "cpu") -> Meshes:
    """The meshes of a layout in the initialised world; without `fsdp` weights are shared out over all of dp.

    `fits.check` says beforehand whether a layout can be.
    """
    world = dist.get_world_size()
    shards, copies = layout.shards(world), layout.copies(world)
    inside, data = shards * layout.tp, layout.dp(world)
    shape = (copies, inside // layout.ep, layout.ep)
    return Meshes(
        init_device_mesh(device, (copies, shards, layout.tp), mesh_dim_names=("copies", "shards", "tp")),
        init_device_mesh(device, shape, mesh_dim_names=("copies", "efsdp", "ep")),
        init_device_mesh(device, (data, layout.cp, layout.tp), mesh_dim_names=("data", "cp", "tp")),
        init_device_mesh(device, (data, layout.cp * layout.tp), mesh_dim_names=("data", "tokens")),
        init_device_mesh(device, (copies, inside), mesh_dim_names=("copies", "ranks")),
    )
