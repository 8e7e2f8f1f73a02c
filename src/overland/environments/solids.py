"""Solids by constructive geometry: made, measured, compared by volume, drawn. Lengths in millimetres, z is up.

Needs the extra `cad` (manifold3d; pillow for pictures).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from overland.errors import OverlandError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEGMENTS = 48
"""Sides of a cylinder, and of a sphere's equator. Both a target and an answer have them."""
Op = Literal["box", "cylinder", "sphere", "union", "difference", "intersection", "move", "turn"]


@dataclass(frozen=True)
class Make:
    """One construction: `op` with its numbers, from the parts named in `of`."""

    name: str
    op: Op
    numbers: Mapping[str, float] = field(default_factory=dict)
    of: tuple[str, ...] = ()


def geometry() -> Any:
    """manifold3d's solid class. Raises OverlandError where it is not installed."""
    try:
        import manifold3d
    except ImportError:
        raise OverlandError("the cad domain needs manifold3d: pip install 'overland[cad]'") from None
    return manifold3d.Manifold


def build(step: Make, parts: Mapping[str, Any]) -> Any:
    """The solid that a construction gives. Raises KeyError for a part that is not there."""
    n, solid = step.numbers, geometry()
    if step.op == "box":
        return solid.cube([n["width"], n["depth"], n["height"]]).translate([n["x"], n["y"], n["z"]])
    if step.op == "cylinder":
        return solid.cylinder(n["height"], n["radius"], n["radius"], SEGMENTS).translate([n["x"], n["y"], n["z"]])
    if step.op == "sphere":
        return solid.sphere(n["radius"], SEGMENTS).translate([n["x"], n["y"], n["z"]])
    first = parts[step.of[0]]
    if step.op == "move":
        return first.translate([n["x"], n["y"], n["z"]])
    if step.op == "turn":
        return first.rotate([n["x"], n["y"], n["z"]])
    second = parts[step.of[1]]
    return {"union": first + second, "difference": first - second, "intersection": first ^ second}[step.op]


def build_all(steps: Sequence[Make]) -> dict[str, Any]:
    """All parts of a construction, by name."""
    parts: dict[str, Any] = {}
    for step in steps:
        parts[step.name] = build(step, parts)
    return parts


def overlap(one: Any, other: Any) -> float:
    """The volume that two solids share over the volume of both together: 1 for the same solid, 0 for nothing shared."""
    shared, either = float((one ^ other).volume()), float((one + other).volume())
    return shared / either if either > 0 else 0.0


def measured(part: Any) -> dict[str, float]:
    """Volume, surface and bounding box."""
    box = part.bounding_box() if part.volume() > 0 else (0.0,) * 6
    names = ("x0", "y0", "z0", "x1", "y1", "z1")
    return {"volume": float(part.volume()), "surface": float(part.surface_area()), **dict(zip(names, box, strict=True))}


def drawn(part: Any, size: int = 256) -> bytes:
    """A PNG of the part seen from its front, right and above, lit from the upper left; white where there is nothing."""
    try:
        from PIL import Image
    except ImportError:
        raise OverlandError("pictures of solids need pillow: pip install 'overland[cad]'") from None

    mesh = part.to_mesh()
    points = np.asarray(mesh.vert_properties, dtype=np.float64)[:, :3]
    corners_FVX = points[np.asarray(mesh.tri_verts)] if len(points) else np.zeros((0, 3, 3))
    buffer = io.BytesIO()
    Image.fromarray(_shaded(corners_FVX, size)).save(buffer, "PNG")
    return buffer.getvalue()


def _shaded(corners_FVX: NDArray[np.float64], size: int) -> NDArray[np.uint8]:
    """[size, size, 3]: a depth buffer over the faces F, vertices V, axes X, in an isometric view."""
    image = np.full((size, size, 3), 255, np.uint8)
    if not len(corners_FVX):
        return image
    right = np.array([1.0, 1.0, 0.0]) / 2**0.5
    toward = np.array([1.0, -1.0, 1.0]) / 3**0.5
    up = np.cross(toward, right)
    normal_FX = np.cross(corners_FVX[:, 1] - corners_FVX[:, 0], corners_FVX[:, 2] - corners_FVX[:, 0])
    length_F = np.linalg.norm(normal_FX, axis=1)
    seen_F = (normal_FX @ toward > 1e-9) & (length_F > 0)
    view_FVX = np.stack([corners_FVX @ right, corners_FVX @ up, corners_FVX @ toward], axis=-1)
    low, high = view_FVX[..., :2].min((0, 1)), view_FVX[..., :2].max((0, 1))
    scale = 0.9 * size / max(float((high - low).max()), 1e-9)
    pixel_FVX = view_FVX.copy()
    pixel_FVX[..., :2] = (view_FVX[..., :2] - (low + high) / 2) * scale + size / 2
    light = np.array([-0.3, -0.5, 0.8])
    shade_F = 0.35 + 0.6 * np.clip(normal_FX @ light / np.maximum(length_F, 1e-12), 0, 1)
    depth = np.full((size, size), -np.inf)
    for face, shade in zip(pixel_FVX[seen_F], shade_F[seen_F], strict=True):
        _fill(image, depth, face, shade)
    return image[::-1]


def _fill(image: NDArray[np.uint8], depth: NDArray[np.float64], face: NDArray[np.float64], shade: float) -> None:
    """Draw one triangle where it is nearer than what is there."""
    (x0, y0), (x1, y1) = np.floor(face[:, :2].min(0)).astype(int), np.ceil(face[:, :2].max(0)).astype(int)
    x0, y0, x1, y1 = max(x0, 0), max(y0, 0), min(x1, image.shape[1] - 1), min(y1, image.shape[0] - 1)
    if x1 < x0 or y1 < y0:
        return
    xs, ys = np.meshgrid(np.arange(x0, x1 + 1) + 0.5, np.arange(y0, y1 + 1) + 0.5)
    (ax, ay, az), (bx, by, bz), (cx, cy, cz) = face
    whole = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
    if abs(whole) < 1e-9:
        return
    b = ((xs - ax) * (cy - ay) - (ys - ay) * (cx - ax)) / whole
    c = ((bx - ax) * (ys - ay) - (by - ay) * (xs - ax)) / whole
    far = az + b * (bz - az) + c * (cz - az)
    window = (slice(y0, y1 + 1), slice(x0, x1 + 1))
    nearer = (b >= -1e-9) & (c >= -1e-9) & (b + c <= 1 + 1e-9) & (far > depth[window])
    depth[window][nearer] = far[nearer]
    image[window][nearer] = (np.array([70, 120, 180]) * shade + 40).astype(np.uint8)
