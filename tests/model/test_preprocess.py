"""From a picture to patches: bit for bit what mlx-vlm's K3 image processor makes (data/k3_vision), and bad pictures."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny import with_vision

from model.k3_vision import FOLDER, PATCHES
from overland.errors import BrokenFileError, UsageError
from overland.model import DecoderConfig
from overland.model.vision.preprocess import Preprocessing, open_image, preprocess

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (pip install 'overland[vision]')")


def png(width: int, height: int, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (width, height)).save(out, "PNG")
    return out.getvalue()


def test_patches_are_mlx_vlms() -> None:
    inputs, expected = load_file(FOLDER / "inputs.safetensors"), load_file(FOLDER / "expected.safetensors")
    how = Preprocessing.of_folder(FOLDER)
    assert how == PATCHES
    pictures = [name for name in inputs if name.startswith("picture.")]
    assert len(pictures) == 6
    for name in pictures:
        found = preprocess(Image.fromarray(inputs[name].numpy()), how)
        assert [list(found.grids[0])] == expected[f"grid.{name}"].tolist(), name
        assert torch.equal(found.patches, expected[f"patches.{name}"]), name


@given(width=st.integers(1, 200_000), height=st.integers(1, 200_000))
def test_any_size_fits_the_budget_and_is_never_enlarged(width: int, height: int) -> None:
    how = Preprocessing()
    (w, h), (columns, rows) = how.sizes(width, height)
    assert 1 <= w <= min(width, 7168)
    assert 1 <= h <= min(height, 7168)
    assert columns % 28 == rows % 28 == 0
    assert 0 <= columns - w < 28
    assert 0 <= rows - h < 28
    # The scale is taken from whole patches, the sides are cut afterwards: a part of a patch a side may stay too many.
    spare = (width / 14) / max(1, width // 14) * (height / 14) / max(1, height // 14)
    assert max(1, w // 14) * max(1, h // 14) <= max(1.0, spare) * 65536


def test_k3s_own_numbers() -> None:
    how = Preprocessing()
    assert how.sizes(640, 480) == ((640, 480), (644, 504))
    assert how.sizes(7168, 7168) == ((3584, 3584), (3584, 3584))
    assert how.sizes(1, 1) == ((1, 1), (28, 28))
    assert how.sizes(71_680, 15) == ((7168, 1), (7168, 28))


def test_a_folder_may_say_otherwise(tmp_path: Path) -> None:
    assert Preprocessing.of_folder(tmp_path) == Preprocessing()
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"media_proc_cfg": {
        "patch_size": 14, "in_patch_limit": 4096, "patch_limit_on_one_side": 128, "merge_kernel_size": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.5, 0.5], "transparent_bg_config": {"pattern": "gray"},
    }}))  # fmt: skip
    wanted = Preprocessing(most_patches=4096, most_per_side=128, std=(0.25, 0.5, 0.5), background="gray")
    assert Preprocessing.of_folder(tmp_path) == wanted
    for fields, named in (
        ({"patch_size": 0}, r"preprocessor_config\.json: patch_size = 0; valid: a positive"),
        ({"in_patch_limit": "many"}, "in_patch_limit = 'many'"),
        ({"image_std": [0.5, 0, 0.5]}, r"image_std = \[0.5, 0, 0.5\]"),
        ({"image_mean": 0.5}, "image_mean = 0.5, .*; valid: two sides, three means"),
        ({"merge_kernel_size": 2.5}, "merge_kernel_size = 2.5, .*; valid: two sides"),
        ({"merge_kernel_size": [2, 0]}, r"merge_kernel_size = \[2, 0\], .*; valid: two sides"),
        ({"transparent_bg_config": "pink"}, "pattern = 'pink'; valid: black, gray, white"),
        ({"transparent_bg_config": {"pattern": "pink"}}, "pattern = 'pink'; valid: black, gray, white"),
    ):
        file.write_text(json.dumps(fields))
        with pytest.raises(UsageError, match=named):
            Preprocessing.of_folder(tmp_path)
    vision = DecoderConfig.from_dict(with_vision()).vision
    file.write_text("{}")
    with pytest.raises(UsageError, match=r"patch_size = 14, merge_kernel_size = \[2, 2\]; valid: 2, \[2, 2\], as in"):
        Preprocessing.of_folder(tmp_path, vision)
    file.unlink()
    assert Preprocessing.of_folder(tmp_path, vision) == Preprocessing(patch=2)
    file.write_text("{")
    with pytest.raises(BrokenFileError, match="not JSON"):
        Preprocessing.of_folder(tmp_path)


def test_what_a_transparent_picture_shows() -> None:
    clear = Image.new("RGBA", (2, 2), (200, 100, 0, 0))
    for background, value in (("black", -1.0), ("white", 1.0)):
        found = preprocess(clear, Preprocessing(patch=2, merge=(1, 1), background=background))
        assert (found.patches == value).all()
    kept = preprocess(clear, Preprocessing(patch=2, merge=(1, 1))).patches
    assert torch.allclose(kept[0, :, 0, 0] * 127.5 + 127.5, torch.tensor([200.0, 100.0, 0.0]))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16", "CMYK"])
def test_every_mode_of_picture_is_taken(mode: str) -> None:
    found = preprocess(Image.new(mode, (30, 20)), Preprocessing())
    assert found.patches.shape == (2 * 4, 3, 14, 14)
    assert found.patches.isfinite().all()


def bomb() -> bytes:
    """A PNG header that declares 60,000 x 60,000 pixels, and a few bytes of them."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "data, named",
    [
        (b"", "cannot be decoded .*valid: PNG, JPEG, WEBP, GIF"),
        (b"GIF89a", "cannot be decoded"),
        (png(64, 64)[:-40], "cannot be decoded"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "cannot be decoded"),
        (bomb(), r"pixels"),
        (png(100, 100), r"100 x 100 pixels are 10,000; valid: up to 5,000"),
        (bytes(3000), r"3,000 bytes; valid: up to 2,000"),
    ],
)
def test_a_bad_picture_is_named_before_it_is_decoded(data: bytes, named: str) -> None:
    with pytest.raises(UsageError, match=f"^image: .*{named}") as caught:
        open_image(data, most_bytes=2000, most_pixels=5000)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_a_side_without_pixels_is_named(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match=f"image: {size[0]} x {size[1]} pixels; valid: one or more a side"):
        preprocess(Image.new("RGB", size), Preprocessing())


@given(st.binary(max_size=300))
def test_bytes_are_a_picture_or_refused(data: bytes) -> None:
    head = png(3, 3)[:40]
    for candidate in (data, head + data):
        try:
            image = open_image(candidate)
        except UsageError:
            continue
        assert preprocess(image, Preprocessing()).patches.isfinite().all()
