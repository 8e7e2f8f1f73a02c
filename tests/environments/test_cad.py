"""Solids against trimesh, which measures and compares them by means of its own; the score of near misses."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest

from overland.chat import Message
from overland.environments import Attempt, combine, judge, load_environment, score
from overland.environments.cad import FULL
from overland.environments.cad_world import CadWorld
from overland.environments.solids import Make, build_all, drawn, measured, overlap

BOX = Make("a", "box", {"width": 10, "depth": 20, "height": 30, "x": -1, "y": -2, "z": -3})
BALL = Make("b", "sphere", {"radius": 8, "x": 4, "y": 8, "z": 12})


def test_volumes_surfaces_and_insides_are_what_trimesh_finds() -> None:
    trimesh = pytest.importorskip("trimesh", reason="trimesh is not installed")
    rng = np.random.default_rng(0)
    points = rng.uniform((-5, -7, -4), (14, 19, 28), (40_000, 3))
    for op in ("union", "difference", "intersection"):
        parts = build_all(
            [BOX, BALL, Make("c", op, {}, ("a", "b")), Make("d", "turn", {"x": 30, "y": 0, "z": 40}, ("c",))]
        )
        for name in ("c", "d"):
            mesh = parts[name].to_mesh()
            other = trimesh.Trimesh(np.asarray(mesh.vert_properties)[:, :3], np.asarray(mesh.tri_verts), process=True)
            assert other.is_watertight
            assert other.volume == pytest.approx(parts[name].volume(), rel=1e-5)
            assert other.area == pytest.approx(parts[name].surface_area(), rel=1e-5)
            assert other.bounds.ravel() == pytest.approx([*measured(parts[name]).values()][2:], abs=1e-4)
        # The share of random points that both hold, against the share of volumes.
        box_holds = np.all((points >= (-1, -2, -3)) & (points <= (9, 18, 27)), axis=1)
        ball_holds = np.linalg.norm(points - (4, 8, 12), axis=1) < 8
        shared, either = (box_holds & ball_holds).sum(), (box_holds | ball_holds).sum()
        assert overlap(parts["a"], parts["b"]) == pytest.approx(shared / either, abs=0.015)


@pytest.mark.parametrize("seed", range(2))
def test_every_feature_counts(seed: int) -> None:
    task = load_environment("cad").task("train", 4, seed)
    whole = build_all(task.target)[task.target[-1].name]  # type: ignore[attr-defined]
    assert overlap(whole, whole) > FULL
    for number in range(2, len(task.target) - 1, 2):  # type: ignore[attr-defined]
        steps = list(task.target)  # type: ignore[attr-defined]
        left_out = steps[number]
        steps[number] = Make(left_out.name, "move", {"x": 0, "y": 0, "z": 0}, left_out.of[:1])
        assert overlap(build_all(steps)[steps[-1].name], whole) < FULL


def test_coming_nearer_is_worth_up_to_a_half_and_a_bare_plate_nothing() -> None:
    task = load_environment("cad").task("held_out", 2, 1)
    done = Attempt([*task.messages(), Message("assistant", "done")])
    values = []
    for calls, part in ((1, "plate"), (3, "step1"), (5, "step2")):
        with task.world() as world:
            for step in task.steps[:calls]:
                world.use_now(step.tool, step.args)
            assert world.use_now("hand_in", {"part": part}) == "handed in"
            values.append(combine(score(task, done, world)))
    assert values[0] == 0.0
    assert 0.0 < (values[1] or 0) < 0.5
    assert values[2] == 1.0


async def test_a_part_is_refused_in_words() -> None:
    task = load_environment("cad").task("train", 0, 0, "box")
    async with task.open_world() as world:
        sphere = {"name": "s", "radius": 5, "x": 0, "y": 0, "z": 0}
        for tool, args, said in (
            ("sphere", {**sphere, "radius": 0}, "radius must be above 0"),
            ("sphere", {**sphere, "radius": 1e9}, "numbers are at most"),
            ("sphere", {**sphere, "name": "../x"}, "cannot be named"),
            ("union", {"name": "u", "first": "s", "second": "t"}, "there is no part 's'"),
            ("hand_in", {"part": "none"}, "none was made yet"),
            ("sphere", {"name": "s"}, "is a required property"),
        ):
            assert said in await world.use(tool, args)
        assert combine(await judge(task, Attempt([*task.messages(), Message("assistant", "done")]), world)) == 0.0
        await world.use("sphere", sphere)
        await world.use("difference", {"name": "nothing", "first": "s", "second": "s"})
        await world.use("hand_in", {"part": "nothing"})
        assert world.overlap() == 0.0  # type: ignore[attr-defined]


def test_a_picture_shows_the_part() -> None:
    from PIL import Image

    with load_environment("cad").task("train", 3, 0).world() as world:
        assert isinstance(world, CadWorld)
        world.use_now("box", {"name": "b", "width": 9, "depth": 9, "height": 9, "x": 0, "y": 0, "z": 0})
        said = world.use_now("picture", {"part": "b"})
        (png,) = world.pictures.values()
        assert said.startswith(f"media/{next(iter(world.pictures))}")
    image = np.asarray(Image.open(io.BytesIO(png)))
    assert image.shape == (256, 256, 3)
    covered = (image != 255).any(-1)
    # A cube from a corner is a regular hexagon, 0.9 of the picture high: three rhombs in three shades.
    high = 0.9 * 256
    assert covered.sum() == pytest.approx(high * high * 3**0.5 / 2 * (3 / 4), rel=0.02)
    assert len(np.unique(image[covered], axis=0)) == 3
    empty = build_all([BOX, Make("n", "difference", {}, ("a", "a"))])["n"]
    assert (np.asarray(Image.open(io.BytesIO(drawn(empty)))) == 255).all()


def test_held_out_parts_have_widths_of_their_own() -> None:
    def sizes(split: str) -> set[float]:
        tasks = [load_environment("cad").task(split, seed % 6, seed) for seed in range(60)]
        firsts = [task.target[0].numbers for task in tasks]  # type: ignore[attr-defined]
        return {n.get("width", n.get("radius", 0.0)) for n in firsts}

    assert not sizes("train") & sizes("held_out")


def test_a_wrong_target_is_refused_by_admission() -> None:
    from overland.environments import faults

    task = load_environment("cad").task("train", 1, 0)
    other = load_environment("cad").task("train", 1, 1)
    swapped = dataclasses.replace(task, target=other.target)  # type: ignore[attr-defined]
    assert any("probe oracle" in fault for fault in faults(swapped))
