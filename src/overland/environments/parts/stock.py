"""A storehouse: moves are [thing, number], negative where something leaves."""

from typing import Any


def level(moves: list[list[Any]]) -> dict[str, int]:
    """What is there after all moves; things of which nothing is left do not appear.

    Raises ValueError where more would leave than is there.
    """
    found: dict[str, int] = {}
    for thing, count in moves:
        have = found.get(thing, 0) + count
        if have < 0:
            raise ValueError(f"not enough of {thing}")
        found[thing] = have
    return {thing: count for thing, count in found.items() if count}


def missing(moves: list[list[Any]], wanted: dict[str, int]) -> dict[str, int]:
    """What has to be ordered so that at least `wanted` is there; nothing for things of which there is enough."""
    have = level(moves)
    return {thing: count - have.get(thing, 0) for thing, count in wanted.items() if count > have.get(thing, 0)}


def busiest(moves: list[list[Any]]) -> list[str]:
    """Things by how much was moved in either direction, most first; equal ones in the order of the alphabet."""
    moved: dict[str, int] = {}
    for thing, count in moves:
        moved[thing] = moved.get(thing, 0) + abs(count)
    return sorted(moved, key=lambda thing: (-moved[thing], thing))
