"""Arguments for every function of the parts, drawn by a generator. All values are JSON's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

LETTERS = "abcde"
_WORDS = ("red", "Blue", "green", "old", "New", "tea", "a1", "Sun", "moon", "it")


def _text(rng: random.Random) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(rng.randint(0, 9)))


def _title(rng: random.Random) -> str:
    return "".join(rng.choice([*_WORDS, "  ", "--", "!", "7", " ", "."]) for _ in range(rng.randint(1, 8)))


def _spans(rng: random.Random) -> list[list[int]]:
    return [[a, a + rng.randint(-1, 6)] for a in (rng.randint(0, 18) for _ in range(rng.randint(0, 6)))]


def _needs(rng: random.Random) -> dict[str, list[str]]:
    names = rng.sample("klmnopqrs", 6)
    needs = {name: rng.sample(names[:at], min(at, rng.randint(0, 2))) for at, name in enumerate(names) if at}
    if rng.random() < 0.15:
        needs[names[0]] = [names[-1]]  # perhaps a circle
    keys = list(needs)
    rng.shuffle(keys)
    return {key: needs[key] for key in keys}


def _line(rng: random.Random) -> str:
    space = rng.choice(["", " "])
    return f"{rng.choice(['x', 'y', 'z'])}{space},{space}{rng.choice(['1', '-4', '12', 'n', '', '7', '30'])}"


def _table(rng: random.Random) -> str:
    lines = [_line(rng) for _ in range(rng.randint(0, 7))]
    lines += rng.choice([[], [" "], ["", "y,5"]])
    return "\n".join(["name, count", *lines])


def _grid(rng: random.Random) -> list[str]:
    width = rng.randint(3, 6)
    return ["".join(rng.choice("...#.") for _ in range(width)) for _ in range(rng.randint(3, 5))]


def _place(rng: random.Random, grid: list[str]) -> list[int]:
    return [rng.randrange(len(grid)), rng.randrange(len(grid[0]))]


def _runs(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) * rng.choice([1, 2, 3, 12]) for _ in range(rng.randint(0, 5)))


def _code(rng: random.Random) -> str:
    good = "".join(f"{rng.choice([1, 2, 3, 12])}{rng.choice(LETTERS)}" for _ in range(rng.randint(0, 4)))
    return rng.choice([good, good, good, good + "4", "b" + good])


def _year(rng: random.Random) -> int:
    return rng.choice([1900, 2000, 2023, 2024, 2100, 1996, 1999])


def _day(rng: random.Random) -> list[int]:
    return [_year(rng), rng.randint(1, 12), rng.randint(1, 28)]


def _version(rng: random.Random) -> str:
    parts = [str(rng.choice([0, 1, 2, 9, 10])) for _ in range(rng.randint(1, 3))]
    return rng.choice(["", "", "v"]) + ".".join(parts)


def _rule(rng: random.Random) -> str:
    parts = [rng.choice(["==", ">=", "<"]) + _version(rng).lstrip("v") for _ in range(rng.randint(1, 2))]
    return rng.choice([",", ", "]).join(parts)


def _moves(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = []
    have: dict[str, int] = {}
    for _ in range(rng.randint(1, 8)):
        thing = rng.choice(["nail", "bolt", "rod"])
        count = -rng.randint(1, have[thing]) if have.get(thing, 0) > 0 and rng.random() < 0.5 else rng.randint(1, 6)
        have[thing] = have.get(thing, 0) + count
        found.append([thing, count])
    if rng.random() < 0.1:
        found.append(["nail", -99])
    return found


def _steps(rng: random.Random) -> list[Any]:
    grid = _grid(rng)
    return [grid, _place(rng, grid), _place(rng, grid)]


def _around(rng: random.Random) -> list[Any]:
    grid = _grid(rng)
    return [grid, *_place(rng, grid)]


def _gaps(rng: random.Random) -> list[Any]:
    start = rng.randint(0, 6)
    return [_spans(rng), start, start + rng.randint(0, 16)]


ARGUMENTS: dict[tuple[str, str], Callable[[random.Random], list[Any]]] = {
    ("money", "split"): lambda rng: [rng.randint(0, 200), rng.choice([0, 1, 3, 4, 7, 7])],
    ("money", "taxed"): lambda rng: [rng.randint(0, 999), rng.choice([0, 5, 7, 19, 50])],
    ("money", "change"): lambda rng: [rng.randint(0, 24), rng.sample([2, 3, 4, 5, 9, 10], 3)],
    ("words", "slug"): lambda rng: [_title(rng)],
    ("words", "initials"): lambda rng: [_text(rng)],
    ("words", "wrapped"): lambda rng: [_text(rng), rng.randint(3, 14)],
    ("words", "shared"): lambda rng: [_text(rng), _text(rng)],
    ("spans", "merged"): lambda rng: [_spans(rng)],
    ("spans", "covered"): lambda rng: [_spans(rng)],
    ("spans", "gaps"): _gaps,
    ("order", "sequence"): lambda rng: [_needs(rng)],
    ("order", "earliest"): lambda rng: [_needs(rng), {name: rng.randint(2, 9) for name in rng.sample("klmnopqrs", 5)}],
    ("order", "users"): lambda rng: [_needs(rng), rng.choice("klmnopqrs")],
    ("table", "rows"): lambda rng: [_table(rng)],
    ("table", "totals"): lambda rng: [_table(rng), "name", "count"],
    ("table", "top"): lambda rng: [_table(rng), "name", "count", rng.randint(1, 3)],
    ("grid", "around"): _around,
    ("grid", "steps"): _steps,
    ("grid", "rooms"): lambda rng: [_grid(rng)],
    ("codec", "packed"): lambda rng: [_runs(rng)],
    ("codec", "unpacked"): lambda rng: [_code(rng)],
    ("codec", "check_digit"): lambda rng: ["".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9)))],
    ("days", "leap"): lambda rng: [_year(rng)],
    ("days", "length"): lambda rng: [_year(rng), rng.choice([0, 2, 2, 3, 4, 12, 13])],
    ("days", "number"): lambda rng: [_day(rng)],
    ("days", "later"): lambda rng: [_day(rng), rng.choice([0, 3, 40, 400])],
    ("releases", "parsed"): lambda rng: [rng.choice([_version(rng), _version(rng), "1.x", "", "vv1", ".1", "1.-2"])],
    ("releases", "newest"): lambda rng: [[_version(rng) for _ in range(rng.randint(0, 4))]],
    ("releases", "fits"): lambda rng: [_version(rng), _rule(rng)],
    ("stock", "level"): lambda rng: [_moves(rng)],
    ("stock", "missing"): lambda rng: [_moves(rng), {thing: rng.randint(0, 9) for thing in ("nail", "rod")}],
    ("stock", "busiest"): lambda rng: [_moves(rng)],
}
