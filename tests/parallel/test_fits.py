"""What cannot be laid out is refused in one line, before a mesh or a weight is made."""

from __future__ import annotations

import pytest

from overland.errors import UsageError
from overland.model import preset
from overland.model.config import GQAConfig, LayerConfig, RopeConfig
from overland.parallel.fits import check, check_tokens
from overland.parallel.layout import Layout

from .layouts import PRODUCTS
from .training import TOKENS, small_k3


@pytest.mark.parametrize(
    ("layout", "ranks", "message"),
    [
        ("pp=2", 4, "pp = 2: pipeline stages are not applied yet; valid: 1"),
        ("vp=2", 4, "vp = 2: pipeline stages are not applied yet; valid: 1"),
        ("tp=3", 4, "tp = 3 does not divide the ranks = 4; nearest valid: 2, 4, 1"),
        ("cp=8", 4, "cp = 8 does not divide the ranks = 4; nearest valid: 1, 2, 4"),
        ("tp=2,cp=4", 4, "tp * cp = 8 does not divide the ranks = 4; nearest valid: 1, 2, 4"),
        ("fsdp=4,tp=2", 4, "fsdp = 4 does not divide the data-parallel ranks = 2; nearest valid: 1, 2"),
        ("fsdp=2,ep=4", 4, "ep = 4 does not divide the ranks of a copy (fsdp * cp * tp) = 2; nearest valid: 1, 2"),
        ("ep=16", 16, "ep = 16 does not divide the experts = 8; nearest valid: 2, 4, 8"),
        ("tp=8", 8, "tp = 8 does not divide KDA's heads = 4; nearest valid: 1, 2, 4"),
    ],
)
def test_degrees_that_do_not_divide_are_refused(layout: str, ranks: int, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(Layout.parse(layout), small_k3(), ranks)
    assert str(refused.value).replace("nearest valid: 1, 2, 4", "nearest valid: 2, 4, 1") == message.replace(
        "nearest valid: 1, 2, 4", "nearest valid: 2, 4, 1"
    )


def test_widths_the_vocabulary_and_key_value_heads_have_to_divide() -> None:
    layout = Layout.parse("tp=4")
    with pytest.raises(UsageError, match=r"^tp = 4 does not divide the vocabulary = 98; nearest valid: "):
        check(layout, small_k3().model_copy(update={"vocab_size": 98}), 4)
    with pytest.raises(UsageError, match=r"^tp = 4 does not divide the feed-forward's width = 66; nearest valid: "):
        check(layout, small_k3().model_copy(update={"dense_width": 66}), 4)
    grouped = {
        "layers": (LayerConfig(mixer="gqa", feed_forward="dense"),),
        "gqa": GQAConfig(heads=4, kv_heads=2, head_dim=8),
        "rope": RopeConfig(theta=1e4),
    }
    with pytest.raises(UsageError, match=r"^tp = 4 does not divide the key-value heads = 2; nearest valid: 1, 2$"):
        check(layout, small_k3().model_copy(update=grouped), 4)


def test_images_are_refused_where_tokens_are_shared_out() -> None:
    with pytest.raises(
        UsageError, match=r"^tp \* cp = 2: images are not shared out over ranks; valid: tp = 1, cp = 1$"
    ):
        check(Layout.parse("cp=2"), preset("k3"), 2)


def test_rows_have_to_be_cut_evenly_and_longer_than_a_convolution() -> None:
    with pytest.raises(
        UsageError, match=r"^tokens = 18 of a row are not a multiple of tp \* cp = 4; nearest valid: 16, 20$"
    ):
        check_tokens(Layout.parse("tp=2,cp=2"), small_k3(), 18)
    with pytest.raises(
        UsageError, match=r"leave 2 a rank, convolutions and prediction blocks reach over 3; valid: 12 or"
    ):
        check_tokens(Layout.parse("cp=4"), small_k3(), 8)


@pytest.mark.parametrize("layout", PRODUCTS)
def test_every_product_of_degrees_fits(layout: str) -> None:
    check(Layout.parse(layout), small_k3(), 4, TOKENS)
