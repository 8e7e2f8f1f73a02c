"""What a sequence leaves behind for its next token: one cache object per layer kind, all with the same verbs.

Rows are sequences; each row has its own length. `model(..., cache=c)` advances `c`: with gradients enabled through new
tensors (they flow back through the cache), without them partly in place. `clone` and `select` copy: they are snapshots.

Shapes: B rows, W convolution taps, C convolution channels, H heads, G key-value heads, K/V key/value dims, S slots (one
a token; those past a row's length are junk), R latent + shared key, I indexer dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

SPARE_SLOTS = 64  # how many tokens a decoding cache grows by at a time

Self = TypeVar("Self", bound="LayerCache")


@dataclass
class LayerCache:
    """One layer's tensors, rows first. `slotted` says whether they hold one slot a token or a state of fixed size."""

    slotted: ClassVar[bool]

    def map(self: Self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same cache with `change` applied to every tensor's rows."""
        return replace(self, **{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of the fields."""
        return [getattr(self, f.name) for f in fields(self)]


@dataclass
class KDACache(LayerCache):
    """The convolution's last W-1 inputs [B, W-1, C] and the recurrent state [B, H, K, V] (fp32 at least)."""

    slotted: ClassVar[bool] = False
    tail: Tensor
    state: Tensor


@dataclass
class MLACache(LayerCache):
    """One latent per token, [B, S, R]: the normed KV latent and the shared key, already rotated where keys rotate."""

    slotted: ClassVar[bool] = True
    latents: Tensor


@dataclass
class DSACache(LayerCache):
    """MLA's latents [B, S, R] and the indexer's keys [B, S, I]."""

    slotted: ClassVar[bool] = True
    latents: Tensor
    keys: Tensor


@dataclass
class GQACache(LayerCache):
    """Rotated keys and values of every key-value head, [B, S, G, K] each."""

    slotted: ClassVar[bool] = True
    keys: Tensor
    values: Tensor


@dataclass
class Cache:
    """All layers' caches of a batch, and how many tokens each row holds (`lengths` [B])."""

    layers: list[LayerCache]
    lengths: Tensor

    @property
    def rows(self) -> int:
        """How many sequences the cache holds."""
        return self.lengths.shape[0]

    def _map(self, change: Callable[[Tensor], Tensor]) -> Cache:
        return Cache([layer.map(change) for layer in self.layers], change(self.lengths))

    def clone(self) -> Cache:
        """A snapshot that later forwards do not touch."""
        return self._map(lambda x: x.clone())

    def restore(self, snapshot: Cache) -> None:
        """Go back to `snapshot` (of this cache), which stays what it is."""
        copy = snapshot.clone()
        self.layers, self.lengths = copy.layers, copy.lengths

    def select(self, rows: Sequence[int] | Tensor) -> Cache:
        """The named rows, in that order (a row may appear more than once: a fork)."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.lengths.device)
        chosen = self._map(lambda x: x.index_select(0, index))
        longest = int(chosen.lengths.max()) if chosen.rows else 0
        chosen.layers = [layer.map(lambda x: x[:, :longest]) if layer.slotted else layer for layer in chosen.layers]
        return chosen

    def repeat_interleave(self, times: int) -> Cache:
        """Every row `times` times, side by side; gradients of the copies add up in the original."""
        return self._map(lambda x: x.repeat_interleave(times, dim=0))

    def trim(self, lengths: Sequence[int] | Tensor) -> Cache:
        """A copy that holds only the first lengths[b] tokens of each row.

        Raises ValueError where a row would grow, or where a KDA layer is in the way: its state has no earlier tokens
        to go back to, so keep a `clone` from there.
        """
        wanted = torch.as_tensor(lengths, dtype=torch.long, device=self.lengths.device)
        if wanted.shape != self.lengths.shape or bool((wanted > self.lengths).any()) or bool((wanted < 0).any()):
            raise ValueError(f"trim to {wanted.tolist()}: the rows hold {self.lengths.tolist()} tokens")
        if not torch.equal(wanted, self.lengths) and not all(layer.slotted for layer in self.layers):
            raise ValueError("a KDA state cannot be cut back to an earlier token; keep a clone() from there")
        longest = int(wanted.max()) if self.rows else 0
        layers = [layer.map(lambda x: x[:, :longest].clone() if layer.slotted else x.clone()) for layer in self.layers]  # noqa: B023
        return Cache(layers, wanted.clone())

    @staticmethod
    def cat(caches: Sequence[Cache]) -> Cache:
        """The rows of all caches in one, slots padded to the longest."""
        slots = max(
            (x.shape[1] for c in caches for part in c.layers if part.slotted for x in part.tensors()), default=0
        )
        layers: list[LayerCache] = []
        for parts in zip(*(c.layers for c in caches), strict=True):
            padded = [part.map(lambda x: _to_slots(x, slots)) if part.slotted else part for part in parts]
            joined = [torch.cat(same) for same in zip(*(part.tensors() for part in padded), strict=True)]
            layers.append(type(parts[0])(*joined))
        return Cache(layers, torch.cat([c.lengths for c in caches]))


def append(old_BSx: Tensor, new_BTx: Tensor, lengths_B: Tensor) -> Tensor:
    """`new` written behind each row's `lengths_B` slots; what lies past a row's new length is junk, masked when read.

    Without gradients there are spare slots and the write is in place, so that decoding copies nothing; with them a new
    tensor is made.
    """
    T, longest = new_BTx.shape[1], int(lengths_B.max())
    at = lengths_B[:, None] + torch.arange(T, device=new_BTx.device)
    at = at.view(*at.shape, *[1] * (new_BTx.ndim - 2)).expand_as(new_BTx)
    if torch.is_grad_enabled():
        if longest == int(lengths_B.min()):
            return torch.cat([old_BSx[:, :longest], new_BTx], dim=1)
        return _to_slots(old_BSx[:, :longest], longest + T).scatter(1, at, new_BTx)
    return with_room(old_BSx, lengths_B, T).scatter_(1, at, new_BTx)


def with_room(old_BSx: Tensor, lengths_B: Tensor, tokens: int) -> Tensor:
    """The same slots, where there is room for so many tokens behind each row's; or a copy with spare ones."""
    longest = int(lengths_B.max())
    if longest + tokens <= old_BSx.shape[1]:
        return old_BSx
    return _to_slots(old_BSx[:, :longest], longest + tokens + SPARE_SLOTS)


def _to_slots(x_BSx: Tensor, slots: int) -> Tensor:
    return F.pad(x_BSx, (*[0, 0] * (x_BSx.ndim - 2), 0, slots - x_BSx.shape[1]))
