"""What a sequence leaves behind for its next token: one cache object per layer kind, all with the same verbs.

Rows are sequences; each row has its own length. `model(..., cache=c)` advances `c`: with gradients enabled through new
tensors (they flow back through the cache), without them partly in place. `clone` and `select` copy: they are snapshots.

Shapes: B rows, W convolution taps, C convolution channels, H heads, K/V key/value dims, S slots, R latent + shared key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class KDACache:
    """The convolution's last W-1 inputs [B, W-1, C] and the recurrent state [B, H, K, V] (fp32 at least)."""

    tail: Tensor
    state: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> KDACache:
        """The same cache with `change` applied to every tensor's rows."""
        return KDACache(change(self.tail), change(self.state))


@dataclass
class MLACache:
    """One latent per token, [B, S, R]: the normed KV latent and the shared key. Slots past a row's length are junk."""

    latents: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> MLACache:
        """The same cache with `change` applied to every tensor's rows."""
        return MLACache(change(self.latents))


@dataclass
class Cache:
    """All layers' caches of a batch, and how many tokens each row holds (`lengths` [B])."""

    layers: list[KDACache | MLACache]
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

    def select(self, rows: Sequence[int] | Tensor) -> Cache:
        """The named rows, in that order (a row may appear more than once: a fork)."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.lengths.device)
        chosen = self._map(lambda x: x.index_select(0, index))
        longest = int(chosen.lengths.max()) if chosen.rows else 0
        for layer in chosen.layers:
            if isinstance(layer, MLACache):
                layer.latents = layer.latents[:, :longest]
        return chosen

    def repeat_interleave(self, times: int) -> Cache:
        """Every row `times` times, side by side; gradients of the copies add up in the original."""
        return self._map(lambda x: x.repeat_interleave(times, dim=0))

    @staticmethod
    def cat(caches: Sequence[Cache]) -> Cache:
        """The rows of all caches in one, slots padded to the longest."""
        mla = [layer for c in caches for layer in c.layers if isinstance(layer, MLACache)]
        slots = max((layer.latents.shape[1] for layer in mla), default=0)
        layers: list[KDACache | MLACache] = []
        for parts in zip(*(c.layers for c in caches), strict=True):
            if isinstance(parts[0], KDACache):
                layers.append(KDACache(torch.cat([p.tail for p in parts]), torch.cat([p.state for p in parts])))
            else:
                padded = [torch.nn.functional.pad(p.latents, (0, 0, 0, slots - p.latents.shape[1])) for p in parts]
                layers.append(MLACache(torch.cat(padded)))
        return Cache(layers, torch.cat([c.lengths for c in caches]))
