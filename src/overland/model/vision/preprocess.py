"""From a picture to patches: within a budget of patches, padded to whole squares, scaled to about -1..1.

    scale = min(1, sqrt(most_patches / (floor(w/p) floor(h/p))), most_per_side p / w, most_per_side p / h)

The picture is resized (bicubic), padded with black on the right and below, and cut row by row. It is never enlarged.
Pillow is imported where it is used: `pip install 'overland[vision]'`.
Shapes: N patches, p pixels a patch side. Source: reference/architecture.md §10.1.
"""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from overland.errors import BrokenFileError, UsageError
from overland.model.config import VisionConfig
from overland.model.vision.images import Images

if TYPE_CHECKING:
    from PIL.Image import Image

CONFIG = "preprocessor_config.json"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
BACKGROUNDS = {"black": 0, "gray": 128, "white": 255}


@dataclass(frozen=True)
class Preprocessing:
    """Sides in pixels or patches; `background` is what shows through a transparent picture (None: alpha is dropped)."""

    patch: int = 14
    merge: tuple[int, int] = (2, 2)
    most_patches: int = 65536
    most_per_side: int = 512
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    background: str | None = None

    @classmethod
    def from_dict(cls, fields: dict[str, Any], source: str = CONFIG) -> Preprocessing:
        """The released `media_proc_cfg`. Raises UsageError naming a field that is wrong."""
        found = fields.get("media_proc_cfg", fields)
        if not isinstance(found, dict):
            raise UsageError(f"{source}: media_proc_cfg is a {type(found).__name__}; valid: an object")
        merge = found.get("merge_kernel_size", [2, 2])
        merge = [merge, merge] if isinstance(merge, int) else merge
        mean, std = found.get("image_mean", list(cls.mean)), found.get("image_std", list(cls.std))
        if not (_numbers(merge, 2, int) and min(merge) > 0 and _numbers(mean, 3) and _numbers(std, 3) and all(std)):
            raise UsageError(
                f"{source}: merge_kernel_size = {merge}, image_mean = {mean}, image_std = {std}; "
                "valid: two sides, three means, three deviations that are not zero"
            )
        behind = found.get("transparent_bg_config") or None
        background = behind.get("pattern", "black") if isinstance(behind, dict) else behind
        if background is not None and background not in BACKGROUNDS:
            valid = ", ".join(BACKGROUNDS)
            raise UsageError(f"{source}: transparent_bg_config.pattern = {background!r}; valid: {valid}")
        return cls(
            patch=_positive(found, "patch_size", 14, source),
            merge=(merge[0], merge[1]),
            most_patches=_positive(found, "in_patch_limit", 65536, source),
            most_per_side=_positive(found, "patch_limit_on_one_side", 512, source),
            mean=(mean[0], mean[1], mean[2]),
            std=(std[0], std[1], std[2]),
            background=background,
        )

    def to_dict(self) -> dict[str, Any]:
        """The content of a preprocessor_config.json as released; `from_dict` of it gives this back."""
        same = self.merge[0] == self.merge[1]
        found: dict[str, Any] = {
            "patch_size": self.patch,
            "merge_kernel_size": self.merge[0] if same else list(self.merge),  # a number is what most readers expect
            "in_patch_limit": self.most_patches,
            "patch_limit_on_one_side": self.most_per_side,
            "fixed_output_tokens": None,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        if self.background is not None:
            found["transparent_bg_config"] = {"pattern": self.background}
        return {"media_proc_cfg": found}

    @classmethod
    def of_folder(cls, directory: str | os.PathLike[str], vision: VisionConfig | None = None) -> Preprocessing:
        """What a model folder's preprocessor_config.json says; where there is none, K3's budget and `vision`'s patches.

        Raises UsageError or BrokenFileError naming what is wrong, and where it does not fit `vision`.
        """
        file = Path(directory) / CONFIG
        if not file.is_file():
            return cls() if vision is None else cls(patch=vision.patch, merge=vision.merge)
        try:
            fields = json.loads(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise BrokenFileError(f"{file}: cannot be read: not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise BrokenFileError(f"{file}: holds a {type(fields).__name__}, not an object")
        how = cls.from_dict(fields, str(file))
        if vision is not None and (how.patch, how.merge) != (vision.patch, vision.merge):
            raise UsageError(
                f"{file}: patch_size = {how.patch}, merge_kernel_size = {list(how.merge)}; "
                f"valid: {vision.patch}, {list(vision.merge)}, as in config.json"
            )
        return how

    def sizes(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """(width, height) in pixels after resizing, and after padding. Raises UsageError for a side without pixels."""
        if width < 1 or height < 1:
            raise UsageError(f"image: {width} x {height} pixels; valid: one or more a side")
        side = self.most_per_side * self.patch
        whole = max(1, width // self.patch) * max(1, height // self.patch)
        scale = min(1.0, math.sqrt(self.most_patches / whole), side / width, side / height)
        resized = (min(max(1, int(width * scale)), side), min(max(1, int(height * scale)), side))
        columns, rows = self.merge[1] * self.patch, self.merge[0] * self.patch
        return resized, (-(-resized[0] // columns) * columns, -(-resized[1] // rows) * rows)


def open_image(data: bytes, most_bytes: int = 20_000_000, most_pixels: int = 7168 * 7168) -> Image:
    """Decode a PNG, JPEG, WebP or GIF (its first frame), its size checked before any pixel is decoded.

    Raises UsageError for what is too large, or no picture.
    """
    if len(data) > most_bytes:
        raise UsageError(f"image: {len(data):,} bytes; valid: up to {most_bytes:,}")
    pil = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pil.DecompressionBombWarning)  # the limit below is the stricter one
            image = pil.open(io.BytesIO(data), formats=FORMATS)
            width, height = image.size
            if (pixels := width * height) > most_pixels:
                raise UsageError(f"image: {width} x {height} pixels are {pixels:,}; valid: up to {most_pixels:,}")
            if width < 1 or height < 1:
                raise UsageError(f"image: {width} x {height} pixels; valid: one or more a side")
            image.load()
    except pil.DecompressionBombError:
        raise UsageError(f"image: more pixels than can be decoded safely; valid: up to {most_pixels:,}") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:  # what Pillow's decoders raise for broken data
        what = str(error).split(" <")[0] or type(error).__name__
        raise UsageError(f"image: cannot be decoded ({what}); valid: {', '.join(FORMATS)}") from None
    return image


def preprocess(image: Image, how: Preprocessing) -> Images:
    """A picture of any size and mode as patches, fp32. Raises UsageError for a side without pixels."""
    import numpy as np

    resized, padded = how.sizes(*image.size)
    pil = _pillow()
    picture = _opaque(image, how.background).resize(resized, pil.Resampling.BICUBIC)
    if padded != resized:
        canvas = pil.new("RGB", padded)
        canvas.paste(picture)
        picture = canvas
    pixels = torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255)
    scaled = (pixels - torch.tensor(how.mean)) / torch.tensor(how.std)
    p, (w, h) = how.patch, (padded[0] // how.patch, padded[1] // how.patch)
    patches = scaled.view(h, p, w, p, 3).permute(0, 2, 4, 1, 3).reshape(h * w, 3, p, p)
    return Images(patches, ((1, h, w),))


def _opaque(image: Image, background: str | None) -> Image:
    transparent = "A" in image.getbands() or "transparency" in image.info
    if background is None or not transparent:
        return image.convert("RGB")
    import numpy as np

    rgba = np.asarray(image.convert("RGBA"), dtype=np.float32)
    alpha = rgba[..., 3:] / 255
    mixed = alpha * rgba[..., :3] + (1 - alpha) * BACKGROUNDS[background]
    return _pillow().fromarray(mixed.astype(np.uint8))


def _numbers(value: Any, count: int, kind: type = float) -> bool:
    kinds = (int,) if kind is int else (int, float)
    return isinstance(value, list) and len(value) == count and all(type(number) in kinds for number in value)


def _positive(fields: dict[str, Any], name: str, otherwise: int, source: str) -> int:
    value = fields.get(name, otherwise)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{source}: {name} = {value!r}; valid: a positive integer")
    return value


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("images need Pillow, which is not installed: pip install 'overland[vision]'") from None
    return Image
