"""Mixers that the contract's model does not have, and packed and padded rows, over ranks: one backward in float64.

Held against the unchanged single-device model on the whole batch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from overland.model import Decoder, Packing, initialise
from overland.model.config import DecoderConfig, GQAConfig, IndexerConfig, KDAConfig, LayerConfig, MLAConfig, RopeConfig

from .layouts import RANKS
from .ranks import on_ranks
from .training import Piece, joined, labels, lay, pieces, plain_losses, small_k3

ROWS, TOKENS = 2, 16
LAYOUTS = {"plain": ["tp=4"], "documents": ["cp=4", "tp=2,cp=2"], "lengths": ["tp=2,cp=2"]}
"""By how rows are filled."""


def grouped() -> DecoderConfig:
    """gpt-oss's attention: grouped heads with biases, sinks and windows, rotated; one embedding for both ends."""
    layers = tuple(LayerConfig(mixer="gqa", feed_forward="dense", window=window) for window in (None, 5))
    return small_k3().model_copy(
        update={
            "layers": layers,
            "gqa": GQAConfig(heads=8, kv_heads=4, head_dim=8, qk_norm=True, bias=True, output_bias=True, sinks=True),
            "rope": RopeConfig(theta=1e4),
            "mtp_layers": 0,
            "attn_res_block": None,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        }
    )


def latent() -> DecoderConfig:
    """DeepSeek's and Kimi-Linear's forms: rotated MLA without a query latent, KDA with a low-rank gate and no bound."""
    return small_k3().model_copy(
        update={
            "layers": tuple(LayerConfig(mixer=mixer, feed_forward="dense") for mixer in ("kda", "mla")),
            "kda": KDAConfig(heads=4, head_dim=8, full_rank_gate=False, lower_bound=None),
            "mla": MLAConfig(
                heads=4, q_lora_rank=None, kv_lora_rank=16, nope_dim=8, rope_dim=8, value_dim=8, bias=True
            ),
            "rope": RopeConfig(theta=1e4),
            "indexer": None,
        }
    )


def sparse() -> DecoderConfig:
    """Two prediction blocks behind sparse layers whose indexer rotates."""
    return small_k3().model_copy(
        update={
            "layers": tuple(LayerConfig(mixer=mixer, feed_forward="moe") for mixer in ("kda", "dsa")),
            "mla": MLAConfig(heads=4, q_lora_rank=16, kv_lora_rank=16, nope_dim=8, rope_dim=8, value_dim=8),
            "indexer": IndexerConfig(heads=2, head_dim=8, topk=5, rotate=True),
            "rope": RopeConfig(theta=1e4),
            "mtp_layers": 2,
        }
    )


CONFIGS = {"grouped": grouped, "latent": latent, "sparse": sparse}


def packed(kind: str) -> Packing | None:
    """Documents that end at, before and after the edges of stretches, one over several of them; or padded rows."""
    if kind == "plain":
        return None
    if kind == "lengths":
        return Packing(lengths=torch.tensor([16, 9]))
    ends = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    ends[0, [4, 5, 11]] = 1
    ends[1, 14] = 1
    return Packing(documents=ends.cumsum(1))


def once(config: DecoderConfig, packing: str, layout: str | None) -> tuple[float, dict[str, Piece]]:
    """The loss of a batch and its gradients, over all ranks where there is a layout."""
    torch.manual_seed(0)
    model = initialise(Decoder(config), "standard", 0).double()
    for parameter in model.parameters():  # nothing is zero, and all of it matters
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    parallel = None if layout is None else lay(model, layout)
    ids = torch.randint(0, config.vocab_size, (ROWS, TOKENS))
    wanted = labels(ids, 1)
    given = packed(packing)
    if given is not None and given.lengths is not None:
        wanted = wanted.masked_fill(torch.arange(1, TOKENS + 1) >= given.lengths[:, None], -100)
    stage: Any = "sparse" if config.indexer else None
    output = model(ids, packing=given, mtp=config.mtp_layers > 0, indexer_stage=stage)
    losses = plain_losses if parallel is None else parallel.losses

    def total(logits: Tensor, ahead: int) -> Tensor:
        moved = torch.cat([wanted[:, ahead:], wanted.new_full((ROWS, ahead), -100)], dim=1)
        return losses(logits, moved).sum()

    loss = total(output.logits, 0)
    for ahead, logits in enumerate(output.aux.mtp, start=1):
        loss = loss + total(logits, ahead)
    for record in output.aux.indexer:
        loss = loss + (0.0 if record.kl is None else record.kl.sum())
    for routing in output.aux.router:
        assert routing.logits is not None
        loss = loss + routing.logits.square().sum()
    loss.backward()
    value = loss.detach().clone()
    if parallel is not None:
        parallel.sum_gradients()
        dist.all_reduce(value)
    found = pieces(model, parallel, lambda parameter: parameter.grad)
    if parallel is not None:
        parallel.meshes.close()
    return float(value), found


def every_case() -> dict[tuple[str, str, str], tuple[float, dict[str, Piece]]]:
    return {
        (layout, name, packing): once(config(), packing, layout)
        for name, config in CONFIGS.items() for packing in LAYOUTS for layout in LAYOUTS[packing]
    }  # fmt: skip


@pytest.fixture(scope="module")
def ranks() -> list[Any]:
    return on_ranks(RANKS, every_case)


@pytest.mark.parametrize("packing", LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_other_mixers_and_packed_rows_give_what_one_process_gives(name: str, packing: str, ranks: list[Any]) -> None:
    loss, gradients = once(CONFIGS[name](), packing, None)
    expected = joined([gradients])
    for layout in LAYOUTS[packing]:
        assert ranks[0][layout, name, packing][0] == pytest.approx(loss, rel=1e-12)
        found = joined([rank[layout, name, packing][1] for rank in ranks])
        assert found.keys() == expected.keys()
        for key, gradient in expected.items():
            difference = float((found[key] - gradient).norm())
            assert difference <= 1e-10 * float(gradient.norm()) + 1e-11, (layout, key, difference)
