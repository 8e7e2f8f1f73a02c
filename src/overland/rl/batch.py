"""From groups of samples to micro-batches in which the prompt that a group shares is computed once.

Shapes: G groups, R samples (rows), P prompt tokens, S suffix tokens, N trained tokens, V vocabulary.

Every sample of a group begins with the same prompt. So the prompts of many groups go through the model once, and the
rows, sorted by length so that little is padding, start from their group's cache (shared.py). A row's pass starts at the
prompt's last token, whose output predicts the first sampled token: no logits of the prompts are needed.

A policy that is nearly sure writes the same episode again and again. Samples of a group that are token for token alike,
with the same advantage, are one row with the sum of their weights: the same gradient from a fraction of the positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from overland.rl.algorithms import GRPO, PPO, Advantage, Algorithm, Scored
from overland.rl.loss import sample_weights
from overland.rl.samples import Group, Sample

DEFAULT = GRPO()
AlgorithmOf = Callable[[str], Algorithm]
"""A domain's algorithm."""
Values = tuple[float, ...]
"""One number for each trained token of a sample."""


@dataclass(frozen=True)
class Row:
    """One sample in training: its advantage and the share of the batch's loss that each of its tokens has."""

    sample: Sample
    advantage: Advantage
    weight: float
    label: tuple[str, str] = ("", "")
    """Domain and effort, under which its figures are kept."""
    old_logp: Values | None = None
    """The trainer's log-probabilities before the update; None: the sampler's are taken."""
    value: Values | None = None
    """The critic's old values, and what they should have been."""
    returns: Values | None = None
    copies: int = 1
    """Samples that this row stands for."""


@dataclass(frozen=True)
class Bundle:
    """Rows that begin with the same prompt and are trained by the same algorithm."""

    prompt: tuple[int, ...]
    rows: tuple[Row, ...]
    algorithm: Algorithm = DEFAULT


def batch_advantages(
    groups: Sequence[Group], algorithm: Algorithm | AlgorithmOf, scored: Scored | None = None
) -> dict[str, Advantage]:
    """Advantage by sample id over a whole batch, every domain by its own algorithm."""
    found: dict[str, Advantage] = {}
    for own, its_groups in _by_algorithm(groups, algorithm):
        found |= own.batch_advantages(its_groups, scored or Scored())
    return found


def train_rows(
    groups: Sequence[Group],
    algorithm: Algorithm | AlgorithmOf,
    constant: int = 0,
    *,
    advantages: Mapping[str, Advantage] | None = None,
    scored: Scored | None = None,
    without: Collection[str] = (),
) -> list[Bundle]:
    """The groups that teach something, each with its advantages and with weights over all of them together.

    Groups without an advantage and samples without a sampled token are left out before the denominators are taken, and
    so are the samples named in `without`, which still count in their group's baseline. `advantages` are those of the
    batch that `groups` is a part of; None: of `groups` themselves. `constant` is the longest answer allowed, in tokens.

    Samples whose algorithms normalise alike share a denominator; several kinds weigh by their numbers of samples.
    """
    scored = scored or Scored()
    if advantages is None:
        advantages = batch_advantages(groups, algorithm, scored)
    own = algorithm if callable(algorithm) else lambda domain: algorithm
    chosen = [
        (group, s)
        for group in groups
        for s in group.samples
        if s.id in advantages and s.trained_tokens and s.id not in without
    ]
    weights: dict[str, float] = {}
    for kind in dict.fromkeys(own(group.domain).normalise for group, _ in chosen):
        part = [s for group, s in chosen if own(group.domain).normalise == kind]
        share = len(part) / len(chosen)
        counts = [s.trained_tokens for s in part]
        for s, weight in zip(part, sample_weights(counts, kind, constant), strict=True):
            weights[s.id] = weight if share == 1.0 else share * weight
    rows = {s.id: _row(group, s, advantages[s.id], weights[s.id], own(group.domain), scored) for group, s in chosen}
    bundles = []
    for group in groups:
        by_prompt: dict[tuple[int, ...], list[Row]] = {}
        for sample in group.samples:
            if sample.id in rows:
                by_prompt.setdefault(sample.ids[: sample.prompt_length], []).append(rows[sample.id])
        bundles += [Bundle(prompt, tuple(merged(same)), own(group.domain)) for prompt, same in by_prompt.items()]
    return bundles


def merged(rows: Sequence[Row]) -> list[Row]:
    """Rows with a common prompt, those that are alike made one. Their scores differ by rounding alone: the first's."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.sample.ids, row.sample.trained, row.advantage), []).append(row)
    return [
        replace(same[0], weight=sum(row.weight for row in same), copies=sum(row.copies for row in same))
        for same in alike.values()
    ]


def _row(group: Group, s: Sample, advantage: Advantage, weight: float, algorithm: Algorithm, scored: Scored) -> Row:
    value = scored.value.get(s.id) if isinstance(algorithm, PPO) else None
    returns = None
    if isinstance(algorithm, PPO) and value is not None and s.reward is not None:
        returns = algorithm.returns(s.reward, value)
    return Row(s, advantage, weight, (group.domain, group.effort), scored.logp.get(s.id), value, returns)


def _by_algorithm(groups: Sequence[Group], algorithm: Algorithm | AlgorithmOf) -> list[tuple[Algorithm, list[Group]]]:
    """The groups of each algorithm, in the order in which they first occur. Equal settings are one algorithm."""
    parts: list[tuple[Algorithm, list[Group]]] = []
    for group in groups:
        own = algorithm(group.domain) if callable(algorithm) else algorithm
        for known, its_groups in parts:
            if known == own:
                its_groups.append(group)
                break
        else:
            parts.append((own, [group]))
    return parts


def by_algorithm(bundles: Sequence[Bundle]) -> list[list[Bundle]]:
    """The bundles of each algorithm, in the order in which they first occur: one micro-batch has one loss."""
    parts: list[list[Bundle]] = []
    for bundle in bundles:
        for part in parts:
            if part[0].algorithm == bundle.algorithm:
                part.append(bundle)
                break
        else:
            parts.append([bundle])
    return parts


def shares(bundles: Sequence[Bundle], world: int) -> list[list[Bundle]]:
    """The bundles dealt to `world` ranks so that all have about as many positions to compute: the longest first, each
    to the rank that has the least so far."""
    dealt: list[list[Bundle]] = [[] for _ in range(world)]
    load = [0] * world
    for bundle in sorted(bundles, key=positions, reverse=True):
        least = load.index(min(load))
        dealt[least].append(bundle)
        load[least] += positions(bundle)
    return dealt


def positions(bundle: Bundle) -> int:
    """Positions of a bundle's passes: its prompt once and its rows behind it."""
    return len(bundle.prompt) + sum(suffix_length(row.sample) for row in bundle.rows)


def chunks(bundles: Sequence[Bundle], max_tokens: int) -> list[list[Bundle]]:
    """Lists of bundles whose prompts, padded, have at most `max_tokens` positions; prompts of like length together."""
    parts: list[list[Bundle]] = []
    for bundle in sorted(bundles, key=lambda b: len(b.prompt)):
        if parts and len(bundle.prompt) * (len(parts[-1]) + 1) <= max_tokens:
            parts[-1].append(bundle)
        else:
            parts.append([bundle])
    return parts


def split(chunk: Sequence[Bundle], max_tokens: int) -> Iterator[list[tuple[int, Row]]]:
    """The rows of a chunk with their bundle's index, shortest first, in lists of at most `max_tokens` padded positions.

    A row that is longer than that stands alone; one row is never cut.
    """
    rows = [(g, row) for g, bundle in enumerate(chunk) for row in bundle.rows]
    rows.sort(key=lambda item: suffix_length(item[1].sample))
    current: list[tuple[int, Row]] = []
    for item in rows:
        if current and suffix_length(item[1].sample) * (len(current) + 1) > max_tokens:
            yield current
            current = []
        current.append(item)
    if current:
        yield current


def suffix_length(sample: Sample) -> int:
    """Positions of a row's pass: from the prompt's last token to the one before the last trained token."""
    return _used(sample) - sample.prompt_length


def _used(sample: Sample) -> int:
    """Length up to the last trained token: what comes after it changes nothing."""
    return max(i for i, trained in enumerate(sample.trained) if trained) + 1


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of one forward and backward pass. `*_N` are the trained tokens of all rows, flat."""

    prompts: tuple[tuple[int, ...], ...]
    """The whole prompts of the chunk."""
    owner: tuple[int, ...]
    """For every row the index of its prompt."""
    suffix_RS: Tensor
    suffix_lengths: tuple[int, ...]
    row_N: Tensor
    position_N: Tensor
    target_N: Tensor
    sampler_logp_N: Tensor
    advantage_N: Tensor
    weight_N: Tensor
    copies_N: Tensor
    """Samples that the token's row stands for, for the figures; `weight_N` holds it already."""
    keys: tuple[str, ...]
    """Sample ids of the rows."""
    labels: tuple[tuple[str, str], ...] = ()
    """Domain and effort of the rows."""
    algorithm: Algorithm = DEFAULT
    old_logp_N: Tensor | None = None
    value_N: Tensor | None = None
    return_N: Tensor | None = None


def collate(
    chunk: Sequence[Bundle], rows: Sequence[tuple[int, Row]], pad: int = 0, device: torch.device | str = "cpu"
) -> MicroBatch:
    """Right-padded tensors of some rows of a chunk."""
    suffixes: list[tuple[int, ...]] = []
    where: list[tuple[int, int]] = []
    target: list[int] = []
    flat: list[tuple[float, ...]] = []
    for _, row in rows:
        sample, start, end = row.sample, row.sample.prompt_length - 1, _used(row.sample)
        each = iter(row.advantage if isinstance(row.advantage, tuple) else (row.advantage,) * sample.trained_tokens)
        for i in range(start + 1, end):
            if sample.trained[i]:
                where.append((len(suffixes), i - 1 - start))
                target.append(sample.ids[i])
                flat.append((sample.logprobs[i], next(each), row.weight, row.copies))
        suffixes.append(sample.ids[start : end - 1])

    def given(values: Sequence[Values | None]) -> Tensor | None:
        if not values or any(v is None for v in values):
            return None
        return torch.tensor([x for v in values for x in v or ()], dtype=torch.float32, device=device)

    values_N4 = torch.tensor(flat, dtype=torch.float32, device=device).reshape(-1, 4)
    where_N2 = torch.tensor(where, dtype=torch.long, device=device).reshape(-1, 2)
    return MicroBatch(
        prompts=tuple(bundle.prompt for bundle in chunk),
        owner=tuple(g for g, _ in rows),
        suffix_RS=padded(suffixes, pad, device),
        suffix_lengths=tuple(map(len, suffixes)),
        row_N=where_N2[:, 0],
        position_N=where_N2[:, 1],
        target_N=torch.tensor(target, dtype=torch.long, device=device),
        sampler_logp_N=values_N4[:, 0],
        advantage_N=values_N4[:, 1],
        weight_N=values_N4[:, 2],
        copies_N=values_N4[:, 3],
        keys=tuple(row.sample.id for _, row in rows),
        labels=tuple(row.label for _, row in rows),
        algorithm=chunk[0].algorithm,
        old_logp_N=given([row.old_logp for _, row in rows]),
        value_N=given([row.value for _, row in rows]),
        return_N=given([row.returns for _, row in rows]),
    )


def padded(rows: Sequence[Sequence[int]], pad: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Rows of ids as one tensor, filled up on the right."""
    width = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], dtype=torch.long, device=device)


def batch_figures(bundles: Sequence[Bundle]) -> Mapping[str, float]:
    """Figures of a batch for the metrics: samples and how many of them differ, trained tokens, positions that are
    computed and how many they would be without sharing prompts and like samples."""
    rows = [row for bundle in bundles for row in bundle.rows]
    shared = sum(map(positions, bundles))
    return {
        "rows": float(sum(r.copies for r in rows)),
        "distinct_rows": float(len(rows)),
        "trained_tokens": float(sum(r.copies * r.sample.trained_tokens for r in rows)),
        "positions": float(shared),
        "positions_unshared": float(sum(r.copies * _used(r.sample) for r in rows)),
    }
