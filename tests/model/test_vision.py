"""The vision tower and projector, and how images enter the decoder.

References: Transformers' Kimi-K2.5 tower (the same rotation, positions, attention and merging), run live in fp64 with
K3's norms, interpolation and missing biases put in; mlx-vlm's Kimi K3, whose features, logits, loss and gradients of
data/k3_vision are kept there (tests/peers holds the file against the program again).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny import MEDIA, VISION, drawn, random_ids, tiny, with_vision
from torch import Tensor, nn

from model.k3_vision import FOLDER, differences
from model.widened import widened
from overland.errors import UsageError
from overland.model import Decoder
from overland.model.vision import Images, token_counts
from overland.model.vision.images import Grid

GRIDS = ((1, 4, 6), (1, 2, 2), (3, 6, 4), (1, 6, 10), (2, 2, 8))


def pictures(grids: tuple[Grid, ...] = GRIDS, seed: int = 0, dtype: torch.dtype = torch.float64) -> Images:
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn(sum(t * h * w for t, h, w in grids), 3, 2, 2, generator=generator, dtype=dtype)
    return Images(patches, grids)


def prompt(images: Images, seed: int = 0) -> Tensor:
    """[1, T]: some text before every image and behind the last."""
    ids: list[int] = []
    for number, count in enumerate(token_counts(images.grids, (2, 2))):
        ids += [*random_ids(3, seed=seed + number, vocab=MEDIA).tolist(), *[MEDIA] * count]
    return torch.tensor([[*ids, 1, 2, 3]])


def transformers_tower(model: Decoder) -> nn.Module:
    """Kimi-K2.5's tower with K3's norms, interpolation and no biases, and our weights."""
    modeling = pytest.importorskip("transformers.models.kimi_k25.modeling_kimi_k25", reason="transformers too old")
    vision = model.config.vision
    assert vision is not None
    tower = modeling.Kimi_K25VisionModel(modeling.Kimi_K25VisionConfig(
        patch_size=vision.patch, pos_emb_height=vision.grid_height, pos_emb_width=vision.grid_width,
        pos_emb_time=vision.frames, num_attention_heads=vision.heads, num_hidden_layers=vision.layers,
        hidden_size=vision.width, intermediate_size=vision.mlp_width, merge_kernel_size=vision.merge,
        attn_implementation="eager",
    ))  # fmt: skip
    tower.patch_embed.pos_emb.interpolation_mode = "bilinear"
    for module in list(tower.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, nn.RMSNorm(vision.width, eps=vision.norm_eps))
    with torch.no_grad():
        for name, value in tower.named_parameters():
            if name.endswith("bias"):
                value.zero_()
        ours = model.vision_tower
        assert ours is not None
        tower.patch_embed.proj.weight.copy_(ours.patch_embed.proj.weight)
        tower.patch_embed.pos_emb.position_embeddings.copy_(ours.patch_embed.pos_emb.weight)
        tower.final_layernorm.weight.copy_(ours.encoder.final_layernorm.weight)
        for theirs, block in zip(tower.layers, ours.encoder.blocks, strict=True):
            for name, part in zip("qkv", block.wqkv.weight.chunk(3), strict=True):
                if name != "v":  # their pairs are (i, i + K/2), ours (2i, 2i + 1)
                    part = part.unflatten(0, (vision.heads, -1, 2)).transpose(1, 2).flatten(0, 2)
                getattr(theirs.attn, f"{name}_proj").weight.copy_(part)
            theirs.attn.proj.weight.copy_(block.wo.weight)
            theirs.mlp.fc1.weight.copy_(block.mlp.fc0.weight)
            theirs.mlp.fc2.weight.copy_(block.mlp.fc1.weight)
            theirs.norm1.weight.copy_(block.norm0.weight)
            theirs.norm2.weight.copy_(block.norm1.weight)
    return tower.to(torch.float64)


SQUARE = {"init_pos_emb_height": 4, "vt_hidden_size": 16}  # their positions are square, heads as wide as the tower


def test_the_tower_is_transformers_tower_in_fp64() -> None:
    model, images = drawn(with_vision(**SQUARE)), pictures()
    assert model.vision_tower is not None
    with widened():
        theirs = transformers_tower(model)
        wanted = theirs(images.patches, torch.tensor(GRIDS)).pooler_output
        wanted.sin().sum().backward()
    found = model.vision_tower(images)
    found.sin().sum().backward()
    assert (found - wanted).abs().max() < 1e-9
    tower = model.vision_tower
    pairs: list[tuple[Any, Any]] = [
        (tower.patch_embed.proj.weight, theirs.patch_embed.proj.weight),
        (tower.patch_embed.pos_emb.weight, theirs.patch_embed.pos_emb.position_embeddings),
        (tower.encoder.final_layernorm.weight, theirs.final_layernorm.weight),
    ]
    for block, other in zip(tower.encoder.blocks, theirs.layers, strict=True):
        pairs += [(block.norm0.weight, other.norm1.weight), (block.norm1.weight, other.norm2.weight)]
        pairs += [(block.wo.weight, other.attn.proj.weight), (block.mlp.fc0.weight, other.mlp.fc1.weight)]
        value = block.wqkv.weight.grad.chunk(3)[2]
        assert (value - other.attn.v_proj.weight.grad).abs().max() < 1e-9
        for name, part in zip("qk", block.wqkv.weight.grad.chunk(3)[:2], strict=True):
            part = part.unflatten(0, (2, -1, 2)).transpose(1, 2).flatten(0, 2)
            assert (part - getattr(other.attn, f"{name}_proj").weight.grad).abs().max() < 1e-9
    for ours, other in pairs:
        assert ours.grad.abs().max() > 0
        assert (ours.grad - other.grad).abs().max() < 1e-9


def test_k3_with_images_is_mlx_vlms() -> None:
    """Released layout on disk, features, logits, loss and gradients: fp32, the bounds of correct implementations."""
    found = differences(load_file(FOLDER / "expected.safetensors"))
    assert found.pop("features") < 1e-5
    assert found.pop("logits") < 1e-4
    assert found.pop("loss") < 1e-4
    assert len(found) == 18
    assert max(found.values()) < 1e-3, max(found, key=lambda name: found[name])


def test_images_stand_at_their_places_and_nowhere_else() -> None:
    model, images = drawn(with_vision({"max_position_embeddings": 256})), pictures()
    ids = prompt(images)
    rows = model.embed_images(images)
    embedded = model.embed(ids, images)[0]
    assert torch.equal(embedded[ids[0] == MEDIA], rows)
    assert torch.equal(embedded[ids[0] != MEDIA], model.embed(ids)[0][ids[0] != MEDIA])
    whole = model(ids, images=images).logits
    assert torch.equal(model(ids, images=rows).logits, whole)
    assert not torch.allclose(model(ids).logits, whole)
    alone = torch.cat([model.embed_images(Images(x, (grid,))) for x, grid in zip(
        images.patches.split([t * h * w for t, h, w in GRIDS]), GRIDS, strict=True)])  # fmt: skip
    assert (rows - alone).abs().max() < 1e-12  # no image sees another


def test_a_prompt_with_images_may_run_in_pieces_and_rows() -> None:
    """Chunks that cut an image in two, two rows of different images, and what is decoded behind them."""
    model, images = drawn(with_vision({"max_position_embeddings": 256})), pictures()
    ids, rows = prompt(images), model.embed_images(images)
    whole = model(ids, images=images).logits
    cache, done, parts = model.new_cache(1), 0, []
    for piece in ids.split([5, 7, 20, ids.shape[1] - 33, 1], dim=1):
        used = int((piece == MEDIA).sum())
        parts.append(model(piece, images=rows[done : done + used], cache=cache).logits)
        done += used
    assert (torch.cat(parts, dim=1) - whole).abs().max() < 1e-9
    first, second = pictures(((1, 4, 6),), seed=1), pictures(((1, 6, 4),), seed=2)
    both = torch.cat([prompt(first), prompt(second, seed=7)])
    together = model(both, images=Images.join([first, second])).logits
    for row, image in enumerate((first, second)):
        assert (together[row] - model(both[row : row + 1], images=image).logits[0]).abs().max() < 1e-9


def test_blocks_that_predict_ahead_see_the_images_too() -> None:
    model = drawn(with_vision({"num_nextn_predict_layers": 1, "max_position_embeddings": 256}))
    ids, rows = prompt(pictures()), model.embed_images(pictures())
    ahead = model(ids, images=rows, mtp=True).aux.mtp[0]
    changed = model(ids, images=torch.cat([rows[:-1], rows[-1:] + 1]), mtp=True).aux.mtp[0]
    last = int((ids[0] == MEDIA).nonzero()[-1])
    assert torch.equal(ahead[:, : last - 1], changed[:, : last - 1])
    assert not torch.allclose(ahead[:, last - 1], changed[:, last - 1])  # the block reads one token further on


def test_half_precision_is_near_and_finite() -> None:
    model, images = drawn(with_vision(), torch.float32), pictures(dtype=torch.float32)
    exact = model.embed_images(images)
    rough = model.to(torch.bfloat16).embed_images(images)
    assert rough.dtype == torch.bfloat16
    assert ((rough.float() - exact).norm() / exact.norm()) < 0.05


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda i: Images(i.patches[:0], ((1, 0, 4),)), r"images\[0\] has a grid of 0 x 4 patches; valid: positive"),
        (lambda i: Images(i.patches, ((1, 4, 6), (1, 3, 4))), r"images\[1\] has a grid of 3 x 4 .* multiples of 2 x 2"),
        (lambda i: Images(i.patches, ((4, 4, 6),)), r"images\[0\] has 4 frames; valid: 1 to 3"),
        (
            lambda i: Images(i.patches, ((1, 4, 6),)),
            r"patches of shape .* ask for \[24, 3, 2, 2\]",
        ),
        (lambda i: Images(i.patches.flatten(2), i.grids), "patches of shape"),
        (lambda i: Images((i.patches * 9).to(torch.uint8), i.grids), "patches of type torch.uint8; valid: floating"),
        (lambda i: Images(i.patches, ()), "holds no image"),
        (lambda i: pictures(((1, 4, 6),)), r"media_token_id = 30 \d+ times, the images have 6 positions"),
    ],
)
def test_images_that_do_not_fit_are_named(make: Callable[[Images], Images], named: str) -> None:
    model, images = drawn(with_vision({"max_position_embeddings": 256})), pictures()
    with pytest.raises(UsageError, match=named) as caught:
        model(prompt(images), images=make(images))
    assert "\n" not in str(caught.value)


def test_a_model_without_a_tower_takes_no_images() -> None:
    with pytest.raises(UsageError, match=r"this model \(kimi_k3\) has no vision part; valid: images=None"):
        tiny()(random_ids(1, 4), images=pictures())
    with pytest.raises(UsageError, match="has no vision part"):
        tiny()(random_ids(1, 4), images=torch.ones(1, 16))


def test_positions_of_a_grid_of_the_learned_size_are_the_learned_ones() -> None:
    model = drawn(with_vision())
    assert model.vision_tower is not None
    positions = model.vision_tower.patch_embed.pos_emb
    assert torch.equal(positions(((1, 5, 4),)), positions.weight.flatten(0, 1))
    stretched = positions(((1, 10, 4),)).view(10, 4, -1)
    assert (stretched[2:8:2] - (0.75 * positions.weight[1:4] + 0.25 * positions.weight[:3])).abs().max() < 1e-12
    assert VISION["init_pos_emb_height"] == 5
    F.cross_entropy(model(prompt(pictures(GRIDS[:1])), images=pictures(GRIDS[:1])).logits[0], random_ids(12)).backward()
    assert positions.weight.grad is not None
