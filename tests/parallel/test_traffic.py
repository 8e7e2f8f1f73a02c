"""Tensor and context parallel send what their docstrings say, to the byte; torch's CommDebugMode counts the calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode

from overland.model.context import Context
from overland.model.dsa import DSA
from overland.model.feed_forward import FeedForward
from overland.model.gqa import GQA
from overland.model.kda import KDA
from overland.model.mla import MLA
from overland.model.rope import rotary
from overland.parallel.context import stretch_mixer
from overland.parallel.tensor import cut_module
from overland.parallel.traffic import Traffic
from overland.parallel.vocabulary import token_losses

from .layouts import RANKS
from .ranks import on_ranks
from .test_mixers import grouped
from .training import small_k3

B, D, SIZE = 2, 32, 4  # rows, model width, bytes of a number
PARTS: dict[str, Any] = {
    "kda": lambda: KDA(small_k3()),
    "mla": lambda: MLA(small_k3()),
    "dsa": lambda: DSA(small_k3()),
    "gqa": lambda: GQA(grouped()),
    "ffn": lambda: FeedForward(D, 64, small_k3().activation),
}


def sent(module: nn.Module, T: int, own: int) -> dict[str, tuple[int, int, int]]:
    """(calls, calls by CommDebugMode, bytes) of every kind of collective in one pass there and back; `own` tokens."""
    config = grouped()
    assert config.rope is not None
    table = rotary(config.rope, config.rope_dim, torch.arange(T)[None], torch.float32)
    x = torch.randn(B, own, D, requires_grad=True)
    with CommDebugMode() as debug, Traffic() as traffic:
        y = module(x) if isinstance(module, FeedForward) else module(x, Context(rotary=table), None)
        (y[0] if isinstance(y, tuple) else y).square().sum().backward()
    counted: dict[str, int] = {}
    for operation, calls in debug.get_comm_counts().items():
        kind = next(kind for word, kind in KINDS.items() if word in str(operation))
        counted[kind] = counted.get(kind, 0) + calls
    return {kind: (calls, counted.get(kind, 0), traffic.bytes[kind]) for kind, calls in traffic.calls.items()}


KINDS = {
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
}


def every_part(T: int) -> dict[str, Any]:
    """What this rank sends for each part, under tensor and under context parallel, and for the loss."""
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    world = dist.group.WORLD
    assert world is not None
    for name, part in PARTS.items():
        cut = part()
        cut_module(cut, world)
        found[f"tp {name}"] = sent(cut, T, T // RANKS)
        if name != "ffn":
            stretched = part()
            stretch_mixer(stretched, world)
            found[f"cp {name}"] = sent(stretched, T, T // RANKS)
    logits = torch.randn(B, T, 24, requires_grad=True)
    with Traffic() as traffic:
        token_losses(logits, torch.zeros(B, T, dtype=torch.long), world).sum().backward()
    found["loss"] = {kind: (calls, calls, traffic.bytes[kind]) for kind, calls in traffic.calls.items()}
    return found


@pytest.fixture(scope="module")
def found() -> dict[int, list[dict[str, Any]]]:
    return {T: on_ranks(RANKS, every_part, T) for T in (16, 32)}


@pytest.mark.parametrize("T", [16, 32])
def test_tensor_parallel_sends_its_input_and_output_once_each_way(T: int, found: dict[int, Any]) -> None:
    once = (RANKS - 1) * B * T * D * SIZE // RANKS
    for rank in found[T]:
        for name in PARTS:
            assert rank[f"tp {name}"] == {"all_gather": (2, 2, 2 * once), "reduce_scatter": (2, 2, 2 * once)}


@pytest.mark.parametrize("T", [16, 32])
def test_the_loss_sends_three_numbers_a_token_and_one_back(T: int, found: dict[int, Any]) -> None:
    once = (RANKS - 1) * B * T * SIZE // RANKS
    for rank in found[T]:
        assert rank["loss"] == {"all_reduce": (2, 2, 2 * 3 * once), "all_gather": (1, 1, once)}


@pytest.mark.parametrize("T", [16, 32])
def test_context_parallel_sends_latents_keys_and_values(T: int, found: dict[int, Any]) -> None:
    config, wide = small_k3(), grouped().gqa
    assert config.mla is not None
    assert config.indexer is not None
    assert wide is not None
    latent = config.mla.kv_lora_rank + config.mla.rope_dim
    for rank in found[T]:
        for name, width in (("mla", latent), ("gqa", 2 * wide.kv_heads * wide.head_dim)):
            once = (RANKS - 1) * B * T * width * SIZE // RANKS
            assert rank[f"cp {name}"] == {"all_gather": (1, 1, once), "reduce_scatter": (1, 1, once)}
        keys = latent + config.indexer.head_dim
        once = (RANKS - 1) * B * T * keys * SIZE // RANKS
        assert rank["cp dsa"]["all_gather"] == (2, 2, once)  # the keys carry no gradient here: no loss reads them
        assert rank["cp dsa"]["reduce_scatter"] == (1, 1, (RANKS - 1) * B * T * latent * SIZE // RANKS)


def test_kda_sends_the_same_for_any_length(found: dict[int, Any]) -> None:
    kda = small_k3().kda
    assert kda is not None
    state = (RANKS - 1) * 2 * B * kda.heads * kda.head_dim**2 * SIZE
    tail = B * (kda.taps - 1) * 3 * kda.heads * kda.head_dim * SIZE
    for T in found:
        for place, rank in enumerate(found[T]):
            ends = (place < RANKS - 1) + (place > 0)  # to the next rank, and its gradient to the one before
            assert rank["cp kda"] == {
                "all_gather": (1, 1, state),
                "reduce_scatter": (1, 1, state),
                "all_to_all": (2, 2, ends * tail),
            }
