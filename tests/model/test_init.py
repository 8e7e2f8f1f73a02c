"""The `induction` initialiser makes a tiny model copy and recall within seconds; the `standard` one does not.

The budgets are the measured ones, some fifty and thirty steps, with room for another seed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from overland.errors import UsageError
from overland.model import Decoder, initialise, preset
from overland.model.kda import KDA

Batch = tuple[Tensor, Tensor]  # ids [B, T] and which of them are scored [B, T]


def copying(n: int, gen: torch.Generator) -> Batch:
    """24 random tokens, a separator, the same tokens."""
    x = torch.randint(4, 640, (n, 24), generator=gen)
    ids = torch.cat([torch.zeros(n, 1, dtype=torch.long), x, torch.ones(n, 1, dtype=torch.long), x], 1)
    scored = torch.zeros_like(ids, dtype=torch.bool)
    scored[:, 26:] = True
    return ids, scored


def recall(n: int, gen: torch.Generator) -> Batch:
    """Eight pairs of key and value, a separator, the pairs in another order: the values are asked for."""
    keys = torch.stack([torch.randperm(62, generator=gen)[:8] + 4 for _ in range(n)])
    values = torch.stack([torch.randperm(60, generator=gen)[:8] + 66 for _ in range(n)])
    order = torch.stack([torch.randperm(8, generator=gen) for _ in range(n)])
    told = torch.stack([keys, values], -1).flatten(1)
    asked = torch.stack([keys.gather(1, order), values.gather(1, order)], -1).flatten(1)
    ids = torch.cat([torch.zeros(n, 1, dtype=torch.long), told, torch.ones(n, 1, dtype=torch.long), asked], 1)
    scored = torch.zeros_like(ids, dtype=torch.bool)
    scored[:, 19::2] = True
    return ids, scored


def accuracy_after(steps: int, name: str, task: Callable[[int, torch.Generator], Batch], seed: int = 0) -> float:
    """Share of scored tokens predicted right in fresh batches, after at most `steps` AdamW steps, fewer once solved."""
    model = initialise(Decoder(preset("nano")), name, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.01)
    gen = torch.Generator().manual_seed(seed)
    recent: list[float] = []
    for step in range(steps + 3):
        ids, scored = task(16, gen)
        where = scored.roll(-1, dims=1)  # the position before a scored token predicts it
        logits, wanted = model(ids, where=where).logits, ids[scored]
        recent = [*recent[-2:], (logits.argmax(-1) == wanted).float().mean().item()]
        if step >= steps or min(recent) > 0.97:
            break
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 10)
        optimiser.zero_grad()
        F.cross_entropy(logits, wanted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return sum(recent) / len(recent)


@pytest.mark.slow
@pytest.mark.parametrize("task, steps", [(copying, 75), (recall, 35)])
def test_induction_solves_what_standard_does_not_begin_to(
    task: Callable[[int, torch.Generator], Batch], steps: int
) -> None:
    assert accuracy_after(steps, "induction", task) > 0.95
    assert accuracy_after(steps, "standard", task) < 0.2


@pytest.mark.parametrize("name", ["standard", "induction"])
def test_every_parameter_comes_from_the_seed_alone(name: str) -> None:
    first = initialise(Decoder(preset("nano")), name, seed=3)
    torch.manual_seed(99)
    again, other = (initialise(Decoder(preset("nano")), name, seed=s) for s in (3, 4))
    for (key, value), same, different in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.isfinite(value).all(), key
        assert torch.equal(value, same), key
        if value.std() > 0:
            assert not torch.equal(value, different), key


def test_induction_starts_every_memory_near_its_solution() -> None:
    model = initialise(Decoder(preset("nano")), "induction")
    for kda in (m for m in model.modules() if isinstance(m, KDA)):
        assert F.cosine_similarity(kda.q_proj.weight.flatten(), kda.k_proj.weight.flatten(), dim=0) > 0.99
        undone = kda.o_proj.weight @ kda.v_proj.weight
        assert (undone - 0.3 * torch.eye(128)).abs().max() < 0.05
        queries, keys = (3 - conv.weight[::32, 0].argmax(-1) for conv in (kda.q_conv1d, kda.k_conv1d))
        assert queries.tolist() == [0, 1, 1, 0]
        assert keys.tolist() == [1, 2, 2, 1]
        decay = -5 * torch.sigmoid(kda.dt_bias)
        assert decay.min() > -5 * 0.1
        assert decay.max() < -5 * 0.0009
    assert F.cosine_similarity(model.lm_head.weight, model.model.embed_tokens.weight).min() > 0.999


def test_an_unknown_initialiser_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'xavier' is not an initialiser; valid: standard, induction"):
        initialise(Decoder(preset("nano")), "xavier")
