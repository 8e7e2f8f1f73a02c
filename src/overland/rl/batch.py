"""From groups of samples to micro-batches in which the prompt that a group shares is computed once.

Shapes: G groups, R samples (rows), P prompt tokens, S suffix tokens, N trained tokens, V vocabulary.

Every sample of a group begins with the same prompt, so the prompt goes through the model once, its cache is repeated
for the samples, and gradients flow back through the cache. The suffix pass starts at the prompt's last token, whose
output predicts the first sampled token; therefore no logits of the prompt pass are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from overland.model import Packing
from overland.rl.algorithms.base import Algorithm
from overland.rl.loss import Normalise, sample_weights
from overland.rl.samples import Group, Sample


@dataclass(frozen=True)
class Row:
    """One sample in training: its advantage and the share of the batch's loss that each of its tokens has."""

    sample: Sample
    advantage: float
    weight: float


@dataclass(frozen=True)
class Bundle:
    """Rows that begin with the same prompt."""

    prompt: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def longest(self) -> int:
        return max(_used(row.sample) - len(self.prompt) for row in self.rows)

    @property
    def tokens(self) -> int:
        """Positions that a forward pass over this bundle alone computes, padding included."""
        return len(self.prompt) + self.longest * len(self.rows)


def train_rows(
    groups: Sequence[Group], algorithm: Algorithm, normalise: Normalise = "token", constant: int = 0
) -> list[Bundle]:
    """The groups that teach something, each with its advantages and with weights over all of them together.

    Groups without an advantage and samples without a sampled token are left out before the denominators are taken.
    """
    chosen: list[tuple[Sample, float]] = []
    for group in groups:
        advantages = algorithm.advantages(group)
        chosen += [(s, advantages[s.id]) for s in group.samples if s.id in advantages and s.trained_tokens]
    weights = sample_weights([s.trained_tokens for s, _ in chosen], normalise, constant)
    rows = {s.id: Row(s, a, w) for (s, a), w in zip(chosen, weights, strict=True)}
    bundles = []
    for group in groups:
        by_prompt: dict[tuple[int, ...], list[Row]] = {}
        for sample in group.samples:
            if sample.id in rows:
                by_prompt.setdefault(sample.ids[: sample.prompt_length], []).append(rows[sample.id])
        bundles += [Bundle(prompt, tuple(same)) for prompt, same in by_prompt.items()]
    return bundles


def split(bundles: Iterable[Bundle], max_tokens: int) -> Iterator[list[Bundle]]:
    """Lists of bundles of at most `max_tokens` positions, padding included; bundles of like length stand together.

    A bundle that is too large alone is cut (its prompt is then computed once per part); one row is never cut.
    """
    pieces: list[Bundle] = []
    for bundle in bundles:
        fit = max(1, (max_tokens - len(bundle.prompt)) // bundle.longest)
        pieces += [Bundle(bundle.prompt, bundle.rows[i : i + fit]) for i in range(0, len(bundle.rows), fit)]
    pieces.sort(key=lambda b: (b.longest, len(b.prompt)))
    current: list[Bundle] = []
    for piece in pieces:
        together = [*current, piece]
        if current and _positions(together) > max_tokens:
            yield current
            together = [piece]
        current = together
    if current:
        yield current


def _positions(bundles: Sequence[Bundle]) -> int:
    prompts = max(len(b.prompt) for b in bundles) * len(bundles)
    return prompts + max(b.longest for b in bundles) * sum(len(b.rows) for b in bundles)


def _used(sample: Sample) -> int:
    """Length up to the last trained token: what comes after it changes nothing."""
    return max(i for i, trained in enumerate(sample.trained) if trained) + 1


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of one forward and backward pass. `*_N` are the trained tokens of all rows, flat."""

    prefix_GP: Tensor
    prefix_lengths: tuple[int, ...]
    repeats: tuple[int, ...]
    suffix_RS: Tensor
    suffix_lengths: tuple[int, ...]
    row_N: Tensor
    position_N: Tensor
    target_N: Tensor
    sampler_logp_N: Tensor
    advantage_N: Tensor
    weight_N: Tensor
    keys: tuple[str, ...]
    """Sample ids of the rows."""

    @property
    def tokens(self) -> int:
        """Real positions computed, padding not counted."""
        return sum(self.prefix_lengths) + sum(self.suffix_lengths)


def collate(bundles: Sequence[Bundle], pad: int = 0, device: torch.device | str = "cpu") -> MicroBatch:
    """Right-padded tensors of some bundles."""
    prefixes = [bundle.prompt[:-1] for bundle in bundles]
    suffixes: list[tuple[int, ...]] = []
    keys: list[str] = []
    where: list[tuple[int, int]] = []
    target: list[int] = []
    flat: list[tuple[float, float, float]] = []
    for bundle in bundles:
        start = len(bundle.prompt) - 1
        for row in bundle.rows:
            sample, end = row.sample, _used(row.sample)
            for i in range(start + 1, end):
                if sample.trained[i]:
                    where.append((len(suffixes), i - 1 - start))
                    target.append(sample.ids[i])
                    flat.append((sample.logprobs[i], row.advantage, row.weight))
            suffixes.append(sample.ids[start : end - 1])
            keys.append(sample.id)
    values_N3 = torch.tensor(flat, dtype=torch.float32, device=device).reshape(-1, 3)
    where_N2 = torch.tensor(where, dtype=torch.long, device=device).reshape(-1, 2)
    return MicroBatch(
        prefix_GP=_pad(prefixes, pad, device),
        prefix_lengths=tuple(map(len, prefixes)),
        repeats=tuple(len(bundle.rows) for bundle in bundles),
        suffix_RS=_pad(suffixes, pad, device),
        suffix_lengths=tuple(map(len, suffixes)),
        row_N=where_N2[:, 0],
        position_N=where_N2[:, 1],
        target_N=torch.tensor(target, dtype=torch.long, device=device),
        sampler_logp_N=values_N3[:, 0],
        advantage_N=values_N3[:, 1],
        weight_N=values_N3[:, 2],
        keys=tuple(keys),
    )


def _pad(rows: Sequence[Sequence[int]], pad: int, device: torch.device | str) -> Tensor:
    width = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], dtype=torch.long, device=device)


class Forward(Protocol):
    """How logits [N, V] of the trained positions of a micro-batch are computed."""

    def __call__(self, model: Any, batch: MicroBatch) -> Tensor: ...


def shared_forward(model: Any, batch: MicroBatch) -> Tensor:
    """Prompts once, then every sample from its group's cache; gradients flow through the cache into the prompt.

    Needs the decoder's `new_cache` and `Packing`. A micro-batch in which some prompt is a single token has nothing to
    share and is computed whole.
    """
    if min(batch.prefix_lengths) == 0:
        return full_forward(model, batch)
    device = batch.prefix_GP.device
    cache = model.new_cache(len(batch.prefix_lengths))
    lengths_G = torch.tensor(batch.prefix_lengths, device=device)
    model(batch.prefix_GP, packing=Packing(lengths=lengths_G), cache=cache, last_only=True)
    cache = cache.select([group for group, count in enumerate(batch.repeats) for _ in range(count)])
    lengths_R = torch.tensor(batch.suffix_lengths, device=device)
    logits_RSV = model(batch.suffix_RS, packing=Packing(lengths=lengths_R), cache=cache).logits
    picked: Tensor = logits_RSV[batch.row_N, batch.position_N]
    return picked


def full_forward(model: Any, batch: MicroBatch) -> Tensor:
    """Every sample whole, right-padded: for causal models without a differentiable cache, and the reference form."""
    owner = [g for g, count in enumerate(batch.repeats) for _ in range(count)]
    rows, shift = [], []
    for r, g in enumerate(owner):
        prefix = batch.prefix_GP[g, : batch.prefix_lengths[g]].tolist()
        rows.append(prefix + batch.suffix_RS[r, : batch.suffix_lengths[r]].tolist())
        shift.append(len(prefix))
    ids_RT = _pad(rows, 0, batch.suffix_RS.device)
    output = model(ids_RT)
    logits_RTV = output if isinstance(output, Tensor) else output.logits
    shift_R = torch.tensor(shift, device=ids_RT.device)
    picked: Tensor = logits_RTV[batch.row_N, batch.position_N + shift_R[batch.row_N]]
    return picked


def forward_of(model: Any) -> Forward:
    """`shared_forward` for a model that has a cache, else `full_forward`."""
    return shared_forward if hasattr(model, "new_cache") else full_forward


def batch_figures(bundles: Sequence[Bundle]) -> Mapping[str, float]:
    """Figures of a batch for the metrics: rows, trained tokens, positions with the prompts shared and without."""
    rows = [row for bundle in bundles for row in bundle.rows]
    shared = sum(len(b.prompt) for b in bundles) + sum(_used(r.sample) - r.sample.prompt_length for r in rows)
    return {
        "rows": float(len(rows)),
        "trained_tokens": float(sum(r.sample.trained_tokens for r in rows)),
        "positions": float(shared),
        "positions_unshared": float(sum(_used(r.sample) for r in rows)),
    }
