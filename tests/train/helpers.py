"""What the training tests share: the nano model, a tiny loader, toy dialogues."""

from __future__ import annotations

from typing import Any

import torch

from overland.model import Decoder, load_model
from overland.train import Dialogue, TokenBatch

torch.set_num_threads(1)


def nano(seed: int = 0) -> Decoder:
    return load_model("nano", seed=seed)


class CopyLoader:
    """Random tokens twice in a row, two documents a row; the state is the number of batches given."""

    def __init__(self, batch: int = 4, half: int = 12) -> None:
        self.batch, self.half, self.given = batch, half, 0

    def next(self) -> TokenBatch:
        generator = torch.Generator().manual_seed(1000 + self.given)
        self.given += 1
        first = torch.randint(0, 640, (self.batch, self.half), generator=generator)
        ids = torch.cat([first, first], 1)
        documents = (torch.arange(2 * self.half) >= self.half // 2).long().expand(self.batch, -1)
        return TokenBatch.of(ids, documents)

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


def toy_dialogues(count: int = 24, groups: int = 3) -> list[Dialogue]:
    """`groups` kinds with a prefix of their own, then a question of random length and a learned answer, twice."""
    generator = torch.Generator().manual_seed(0)

    def ids(n: int) -> list[int]:
        return torch.randint(0, 640, (n,), generator=generator).tolist()

    prefixes = [ids(20 + 5 * g) for g in range(groups)]
    found = []
    for number in range(count):
        tokens, mask = list(prefixes[number % groups]), [False] * len(prefixes[number % groups])
        for _ in range(2):
            question, answer = ids(2 + number % 5), ids(3 + number % 3)
            tokens += question + answer
            mask += [False] * len(question) + [True] * len(answer)
        found.append(Dialogue(tuple(tokens), tuple(mask), f"kind{number % groups}"))
    return found
