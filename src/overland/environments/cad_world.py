"""A workbench for one part: solids are made, combined, moved, measured and looked at; one is handed in."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from overland.environments.solids import Make, Op, build, build_all, drawn, measured, overlap
from overland.environments.tool_world import Refused, ToolWorld

LONGEST = 10_000.0
MOST_PARTS = 200
MOST_TRIANGLES = 200_000


class CadWorld(ToolWorld):
    """`target` is the construction that is asked for; `handed_in` the policy's part, None before there is one."""

    tools = (
        "box", "cylinder", "sphere", "union", "difference", "intersection", "move", "turn", "measure", "picture",
        "hand_in",
    )  # fmt: skip

    def __init__(self, target: Sequence[Make]) -> None:
        self.target = target
        self.parts: dict[str, Any] = {}
        self.pictures: dict[str, bytes] = {}
        """PNG files by the SHA-256 of their content, as an episode keeps its media."""
        self.handed_in: Any = None

    def open(self) -> None:
        """There is nothing on disk."""

    def close(self) -> None:
        self.parts.clear()

    def box(self, name: str, width: float, depth: float, height: float, x: float, y: float, z: float) -> str:
        """Make a box.

        Args:
            name: what to call it
            width: length along x, in millimetres
            depth: length along y
            height: length along z
            x: its corner with the smallest x
            y: and the smallest y
            z: and the smallest z
        """
        _positive(width=width, depth=depth, height=height)
        return self._make(name, "box", {"width": width, "depth": depth, "height": height, "x": x, "y": y, "z": z})

    def cylinder(self, name: str, radius: float, height: float, x: float, y: float, z: float) -> str:
        """Make an upright cylinder.

        Args:
            name: what to call it
            radius: in millimetres
            height: length along z
            x: the centre of its bottom
            y: the centre of its bottom
            z: the height of its bottom
        """
        _positive(radius=radius, height=height)
        return self._make(name, "cylinder", {"radius": radius, "height": height, "x": x, "y": y, "z": z})

    def sphere(self, name: str, radius: float, x: float, y: float, z: float) -> str:
        """Make a sphere.

        Args:
            name: what to call it
            radius: in millimetres
            x: its centre
            y: its centre
            z: its centre
        """
        _positive(radius=radius)
        return self._make(name, "sphere", {"radius": radius, "x": x, "y": y, "z": z})

    def union(self, name: str, first: str, second: str) -> str:
        """Make a part of everything that is in the first or the second.

        Args:
            name: what to call it
            first: a part
            second: another
        """
        return self._make(name, "union", {}, first, second)

    def difference(self, name: str, first: str, second: str) -> str:
        """Make a part of what is in the first and not in the second.

        Args:
            name: what to call it
            first: a part
            second: what is cut away
        """
        return self._make(name, "difference", {}, first, second)

    def intersection(self, name: str, first: str, second: str) -> str:
        """Make a part of what is in both.

        Args:
            name: what to call it
            first: a part
            second: another
        """
        return self._make(name, "intersection", {}, first, second)

    def move(self, name: str, part: str, x: float, y: float, z: float) -> str:
        """Make a moved copy.

        Args:
            name: what to call it
            part: the part to copy
            x: how far along x
            y: how far along y
            z: how far along z
        """
        return self._make(name, "move", {"x": x, "y": y, "z": z}, part)

    def turn(self, name: str, part: str, x: float, y: float, z: float) -> str:
        """Make a copy that is turned about the x axis, then y, then z, by degrees.

        Args:
            name: what to call it
            part: the part to copy
            x: degrees about x
            y: degrees about y
            z: degrees about z
        """
        return self._make(name, "turn", {"x": x, "y": y, "z": z}, part)

    def measure(self, part: str) -> str:
        """Give a part's volume, surface and bounding box.

        Args:
            part: the part
        """
        return json.dumps({name: round(value, 3) for name, value in measured(self._part(part)).items()})

    def picture(self, part: str) -> str:
        """Draw a part, seen from the front, right and above.

        Args:
            part: the part
        """
        png = drawn(self._part(part))
        name = hashlib.sha256(png).hexdigest()
        self.pictures[name] = png
        return f"media/{name} (256 x 256 pixels)"

    def hand_in(self, part: str) -> str:
        """Hand in the finished part. Only the last one counts.

        Args:
            part: the part
        """
        self.handed_in = self._part(part)
        return "handed in"

    def _part(self, name: str) -> Any:
        if name not in self.parts:
            raise Refused(f"there is no part {name!r}: {', '.join(self.parts) or 'none was made yet'}")
        return self.parts[name]

    def _make(self, name: str, op: Op, numbers: Mapping[str, float], *of: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name):
            raise Refused(f"a part cannot be named {name!r}")
        if len(self.parts) >= MOST_PARTS:
            raise Refused(f"at most {MOST_PARTS} parts")
        if not all(math.isfinite(value) and abs(value) <= LONGEST for value in numbers.values()):
            raise Refused(f"numbers are at most {LONGEST:g}")
        for part in of:
            self._part(part)
        made = build(Make(name, op, numbers, of), self.parts)
        if made.num_tri() > MOST_TRIANGLES:
            raise Refused("the part has too many faces")
        self.parts[name] = made
        return f"{name} made, volume {made.volume():.1f}"

    def overlap(self) -> float:
        """How well the part that was handed in fits the target, 0 to 1."""
        if self.handed_in is None:
            return 0.0
        return overlap(self.handed_in, build_all(self.target)[self.target[-1].name])


def _positive(**lengths: float) -> None:
    for name, value in lengths.items():
        if not value > 0:
            raise Refused(f"{name} must be above 0")
