"""CAD tasks: build a part from its description by constructive geometry; scored by the volume shared with the target.

The width of a plate belongs to one split, so no held-out part is a training part.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from overland.environments.cad_world import CadWorld
from overland.environments.names import draw_names
from overland.environments.reward import Finished, Reward, Role
from overland.environments.solids import Make, Op, build_all, overlap
from overland.environments.spoken import SpokenTask, plan
from overland.environments.task import Step
from overland.environments.taskset import Taskset
from overland.environments.world import World

FEATURES = (0, 1, 2, 3, 5, 14)
"""By level: what is added to or cut out of the plate."""
FULL = 0.9998
"""The overlap that counts as the same part; leaving out the smallest feature stays below it."""

ASKED: Mapping[str, tuple[str, ...]] = {
    "train": (
        "Build the part {name} and hand it in, then say done. Lengths are in millimetres. {text}",
        "We need {name}, all in millimetres. {text} Hand it in when it is finished and answer done.",
    ),
    "held_out": ("Please model {name}. {text} Units are millimetres; your last word after handing in is done.",),
}


@dataclass(frozen=True)
class CadTask(SpokenTask):
    """`target` is the whole construction; its last part is what is asked for, its first the plate."""

    target: tuple[Make, ...] = field(kw_only=True)

    check_roles: ClassVar[Mapping[str, Role]] = {"overlap": "reward", "fit": "monitor"}

    def world(self) -> CadWorld:
        return CadWorld(self.target)

    def checks(self, finished: Finished, world: World) -> Mapping[str, Reward]:
        """overlap: 1 for the same part, else up to a half for coming nearer to it than the bare plate; fit: the plain
        overlap."""
        assert isinstance(world, CadWorld)
        fit = world.overlap()
        value = 1.0
        if fit < FULL:
            parts = build_all(self.target)
            bare = overlap(parts[self.target[0].name], parts[self.target[-1].name])
            value = 0.5 * max(0.0, fit - bare) / (1 - bare) if bare < 1 else 0.0
        return {"overlap": Reward(value), "fit": Reward(fit, role="monitor")}


class Cad(Taskset):
    """Tools to make, combine, move, measure, draw and hand in; see the module."""

    name = "cad"
    kinds: ClassVar[dict[int, tuple[str, ...]]] = {
        0: ("box", "cylinder", "sphere"),
        **dict.fromkeys(range(1, 6), ("plate",)),
    }
    least_calls: ClassVar[tuple[int, ...]] = (2, 4, 6, 9, 14, 32)

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> CadTask:
        (name,) = draw_names(rng, split, 1)
        size = rng.choice([n for n in range(80, 241) if (n % 4 == 0) == (split == "held_out")])
        if level == 0:
            text, steps = _single(rng, kind, size)
        else:
            text, steps = _plate(rng, size, FEATURES[level], moved=level >= 3)
        calls = [Step(plan(f"make {step.name}", "go on", "hand it in"), _arguments(step), step.op) for step in steps]
        last = steps[-1].name
        if level >= 4:
            calls.append(Step(plan("measure it", "hand it in"), {"part": last}, "measure"))
        calls.append(Step(plan("hand it in"), {"part": last}, "hand_in"))
        prompt = rng.choice(ASKED[split]).format(name=name, text=text)
        return CadTask(
            self.name, kind, split, level, seed, prompt, "done", tuple(calls), outcome="checks",
            closing="it is handed in", target=tuple(steps),
        )  # fmt: skip


def _arguments(step: Make) -> dict[str, Any]:
    keys = ("part",) if step.op in ("move", "turn") else ("first", "second")
    return {"name": step.name, **step.numbers, **dict(zip(keys, step.of, strict=False))}


def _single(rng: random.Random, kind: str, size: int) -> tuple[str, list[Make]]:
    x, y, z = (float(rng.randint(-50, 50)) for _ in range(3))
    if kind == "box":
        depth, height = rng.randint(10, 90), rng.randint(10, 90)
        text = f"It is a box, {size} along x, {depth} along y and {height} along z, with its lowest corner at"
        numbers: dict[str, float] = {"width": size, "depth": depth, "height": height}
    elif kind == "cylinder":
        height = rng.randint(10, 90)
        text = f"It is an upright cylinder with radius {size} and height {height}; the centre of its bottom is at"
        numbers = {"radius": size, "height": height}
    else:
        text, numbers = f"It is a sphere with radius {size}, its centre at", {"radius": size}
    place = f"({x:g}, {y:g}, {z:g})"
    return f"{text} {place}.", [Make("part", kind, {**numbers, "x": x, "y": y, "z": z})]  # type: ignore[arg-type]


def _plate(rng: random.Random, width: int, features: int, *, moved: bool) -> tuple[str, list[Make]]:
    """A plate on the floor with features in fields of a 4 by 4 grid, which therefore never meet."""
    depth, height = rng.choice([80, 100, 120]), rng.randint(10, 20)
    steps = [Make("plate", "box", {"width": width, "depth": depth, "height": height, "x": 0, "y": 0, "z": 0})]
    said = [f"A plate lies with its lowest corner at the origin: {width} along x, {depth} along y, {height} along z."]
    here = "plate"
    for number, at in enumerate(rng.sample(range(16), features), 1):
        x, y = width * (at % 4 + 0.5) / 4, depth * (at // 4 + 0.5) / 4
        words, tool, op = _feature(rng, x, y, height, number)
        said.append(words)
        here_next = f"step{number}"
        steps += [tool, Make(here_next, op, {}, (here, tool.name))]
        here = here_next
    if moved:
        x, y, z = (float(rng.choice([-30, -10, 15, 40])) for _ in range(3))
        said.append(f"At the end the whole is moved by ({x:g}, {y:g}, {z:g}).")
        steps.append(Make("moved", "move", {"x": x, "y": y, "z": z}, (here,)))
    return " ".join(said), steps


def _feature(rng: random.Random, x: float, y: float, height: int, number: int) -> tuple[str, Make, Op]:
    radius = rng.randint(5, 8)
    name, where = f"tool{number}", f"at x {x:g}, y {y:g}"
    kind = rng.choice(["hole", "pin", "pocket", "block", "dome", "dent"])
    if kind == "hole":
        numbers = {"radius": radius, "height": height + 2.0, "x": x, "y": y, "z": -1.0}
        return (
            f"A round hole with radius {radius} goes through it {where}.",
            Make(name, "cylinder", numbers),
            "difference",
        )
    if kind == "pin":
        tall = rng.randint(6, 30)
        numbers = {"radius": radius, "height": height + tall, "x": x, "y": y, "z": 0}
        words = f"A round pin with radius {radius} stands on it {where}, {tall} high above the plate."
        return words, Make(name, "cylinder", numbers), "union"
    if kind in ("pocket", "block"):
        side, tall = rng.randint(9, 15), rng.randint(4, 9)
        cut = kind == "pocket"
        numbers = {
            "width": side, "depth": side, "height": tall + 1.0, "x": x - side / 2, "y": y - side / 2,
            "z": height - tall if cut else height - 1,
        }  # fmt: skip
        words = (
            f"A square pocket with sides of {side} is cut {tall} deep into its top, centred {where}."
            if cut
            else f"A square block with sides of {side} stands on it, {tall} high, centred {where}."
        )
        return words, Make(name, "box", numbers), "difference" if cut else "union"
    numbers = {"radius": radius, "x": x, "y": y, "z": height}
    words = (
        f"A half sphere with radius {radius} sits on its top, centred {where}."
        if kind == "dome"
        else f"A half sphere with radius {radius} is cut out of its top, centred {where}."
    )
    return words, Make(name, "sphere", numbers), "union" if kind == "dome" else "difference"
