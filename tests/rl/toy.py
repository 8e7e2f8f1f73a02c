"""A toy that needs no environment: reverse a few letters in one turn, by a character transformer of 40,000 parameters.

The shape of rl.md's reference curve (reverse 8 of 12 letters, 340,000 parameters), cut down to seconds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from overland.rl.curriculum import Order
from overland.rl.samples import Group, Sample

LETTERS, START, STOP, LENGTH = 8, 8, 9, 4
VOCABULARY = LETTERS + 2


class TinyTransformer(nn.Module):
    """A causal character transformer: [B, T] -> [B, T, V]."""

    def __init__(self, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Embedding(2 * LENGTH + 2, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids_BT: Tensor) -> Tensor:
        T = ids_BT.shape[1]
        mask = torch.triu(torch.full((T, T), float("-inf")), diagonal=1)
        x = self.embed(ids_BT) + self.place(torch.arange(T))
        y: Tensor = self.head(self.body(x, mask=mask, is_causal=True))
        return y


def prompt_of(seed: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return (*(draw.randrange(LETTERS) for _ in range(LENGTH)), START)


def answer_of(prompt: Sequence[int]) -> tuple[int, ...]:
    return (*reversed(prompt[:LENGTH]), STOP)


@torch.no_grad()
def sample(model: nn.Module, prompts_RP: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Answers [R, LENGTH + 1] at temperature 1 and their log-probabilities."""
    ids, logps = prompts_RP, []
    for _ in range(LENGTH + 1):
        logp_RV = model(ids)[:, -1].log_softmax(-1)
        next_R1 = torch.multinomial(logp_RV.exp(), 1, generator=generator)
        logps.append(logp_RV.gather(1, next_R1))
        ids = torch.cat([ids, next_R1], dim=1)
    return ids[:, prompts_RP.shape[1] :], torch.cat(logps, dim=1)


def warm_up(model: nn.Module, until: float, seed: int = 0) -> float:
    """SFT until `until` of fresh prompts are reversed exactly; returns the accuracy."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accuracy = 0.0
    for step in range(400):
        prompts = [prompt_of(1_000_000 + 64 * step + i) for i in range(64)]
        ids = torch.tensor([(*p, *answer_of(p)) for p in prompts])
        logits = model(ids[:, :-1])[:, LENGTH:]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, LENGTH + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = evaluate(model)
        if accuracy >= until:
            break
    return accuracy


def evaluate(model: nn.Module, count: int = 512) -> float:
    """Share of fresh prompts that are reversed exactly at temperature 1."""
    prompts = [prompt_of(9_000_000 + i) for i in range(count)]
    answers, _ = sample(model, torch.tensor(prompts), torch.Generator().manual_seed(1))
    wanted = torch.tensor([answer_of(p) for p in prompts])
    return float((answers == wanted).all(-1).float().mean())


class ToyRollouts:
    """Groups of one-turn samples. `shuffled` deals each group's rewards out at random: the control."""

    def __init__(self, model: nn.Module, group_size: int, shuffled: bool = False) -> None:
        self.model, self.group_size, self.shuffled = model, group_size, shuffled
        self.levels = {"reverse": (0,)}
        self.versions: list[int] = []

    def set_weights(self, model: nn.Module, version: int) -> None:
        self.model = model
        self.versions.append(version)

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        prompts = [prompt_of(order.seed) for order in orders]
        generator = torch.Generator().manual_seed(version * 7919 + len(orders))
        rows = torch.tensor(prompts).repeat_interleave(self.group_size, dim=0)
        answers, logps = sample(self.model, rows, generator)
        return [
            self._group(order, prompt, answers[i:][: self.group_size], logps[i:][: self.group_size], version)
            for order, prompt, i in zip(orders, prompts, range(0, len(rows), self.group_size), strict=True)
        ]

    def _group(self, order: Order, prompt: tuple[int, ...], answers: Tensor, logps: Tensor, version: int) -> Group:
        success = [tuple(a) == answer_of(prompt) for a in answers.tolist()]
        rewards = [float(s) for s in success]
        if self.shuffled:
            random.Random(f"{order.seed}/{version}").shuffle(rewards)
        samples = [
            make_sample(f"{order.seed}/{version}/{i}", prompt, a, p, rewards[i], success[i])
            for i, (a, p) in enumerate(zip(answers.tolist(), logps.tolist(), strict=True))
        ]
        return Group(order.domain, order.level, order.effort, str(order.seed), tuple(samples))


def make_sample(
    id: str,
    prompt: Sequence[int],
    answer: Sequence[int],
    logps: Sequence[float],
    reward: float | None,
    success: bool = False,
) -> Sample:
    """A one-turn sample."""
    fields: dict[str, Any] = {
        "ids": (*prompt, *answer),
        "prompt_length": len(prompt),
        "trained": (*[False] * len(prompt), *[True] * len(answer)),
        "logprobs": (*[0.0] * len(prompt), *logps),
    }
    return Sample(id=id, reward=reward, success=success, output_tokens=len(answer), **fields)
