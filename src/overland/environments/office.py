"""Office tasks: workbooks and documents to read and to produce, led by memos; checked by opening the files again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from overland.environments.names import draw_names
from overland.environments.office_world import Block, Cell, ExpectedOffice
from overland.environments.spoken import SpokenTask, plan
from overland.environments.task import Step
from overland.environments.taskset import Taskset

MEMOS: Mapping[int, int] = {2: 1, 3: 1, 4: 4, 5: 10}
"""How many memos a task of a level has; the easier ones have none."""
SORTS = ("correct", "total", "extract")

ASKED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "train": {
        "lookup": (
            "What is the amount of {item} in sheet {sheet} of {book}? The table is in {cells}.",
            "Look into {book}, sheet {sheet}, {cells}: which amount does {item} have? Answer with the number.",
        ),
        "total": (
            "Put the sum of the amounts in {cells} of sheet {sheet} of {book} into {place}. Then say done.",
            "{book}, sheet {sheet}: {place} has to hold the total of the amounts in {cells}. Answer done.",
        ),
        "memo": (
            "Do what the memo {memo} asks, and what memos it leads to ask. Say done at the end.",
            "There is work in {memo}. If it names another memo, go on with that. Answer done after the last one.",
        ),
    },
    "held_out": {
        "lookup": ("Somebody needs the amount for {item}; {book} has it, sheet {sheet}, {cells}. Just the figure.",),
        "total": ("Sheet {sheet} in {book} lacks a total: {place}, for the amounts of {cells}. Reply with done.",),
        "memo": ("Please work through the memos, {memo} being the first. Reply done once none is left.",),
    },
}


@dataclass(frozen=True)
class OfficeTask(SpokenTask):
    """The files at first, and what is new or different at the end."""

    books: dict[str, dict[str, list[list[Cell]]]] = field(kw_only=True)
    documents: dict[str, list[Block]] = field(kw_only=True)
    expected: dict[str, Any] = field(kw_only=True)

    def world(self) -> ExpectedOffice:
        return ExpectedOffice(self.books, self.documents, self.expected)


class Office(Taskset):
    """Tools for cells and documents; see the module."""

    name = "office"
    kinds: ClassVar[dict[int, tuple[str, ...]]] = {
        0: ("lookup",),
        1: ("total",),
        2: SORTS,
        3: SORTS,
        4: ("memos",),
        5: ("memos",),
    }

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> OfficeTask:
        if level in MEMOS:
            return _memos(rng, split, level, seed, kind)
        book, sheet, *items = draw_names(rng, split, rng.randint(6, 9))
        path, table = f"books/{book}.xlsx", _table(rng, items)
        cells = f"A1:B{len(table)}"
        place = f"B{len(table) + 1}"
        item, amount = rng.choice(table[1:])
        prompt = rng.choice(ASKED[split][kind]).format(book=path, sheet=sheet, cells=cells, item=item, place=place)
        steps = [Step(plan("read the table"), {"path": path, "sheet": sheet, "cells": cells}, "read_cells")]
        expected: dict[str, Any] = {}
        if kind == "total":
            write = {"path": path, "sheet": sheet, "start": place, "rows": [[f"=SUM(B2:B{len(table)})"]]}
            steps.append(Step(plan("write the total"), write, "write_cells"))
            expected[path] = {sheet: {**_places(table), place: _sum(table)}}
        return OfficeTask(
            self.name, kind, split, level, seed, prompt, "done" if expected else str(amount), tuple(steps),
            outcome="state" if expected else "answer", closing="the total is there" if expected else "the amount",
            books={path: {sheet: table}}, documents={}, expected=expected,
        )  # fmt: skip


def _table(rng: random.Random, items: list[str]) -> list[list[Cell]]:
    amounts = rng.sample(range(100, 1000), len(items))
    rows: list[list[Cell]] = [["item", "amount"]]
    for item, amount in zip(items, amounts, strict=True):
        rows.append([item, amount])
    return rows


def _places(table: list[list[Cell]]) -> dict[str, Cell]:
    return {f"{'AB'[c]}{r}": value for r, row in enumerate(table, 1) for c, value in enumerate(row)}


def _sum(table: list[list[Cell]]) -> int:
    return sum(int(row[1] or 0) for row in table[1:])


def _memos(rng: random.Random, split: str, level: int, seed: int, kind: str) -> OfficeTask:
    count = MEMOS[level]
    sorts = [kind] if kind in SORTS else [SORTS[at % len(SORTS)] for at in range(count)]
    rng.shuffle(sorts)
    names = draw_names(rng, split, 2 * count + 8)
    owners, sheets, items = names[:count], names[count : 2 * count], names[2 * count :]
    books: dict[str, Any] = {}
    documents: dict[str, list[Block]] = {}
    expected: dict[str, Any] = {}
    steps: list[Step] = []
    if level >= 4:
        steps.append(Step(plan("see which files there are", "the memos"), {}, "ls"))
    for at, (sort, owner, sheet) in enumerate(zip(sorts, owners, sheets, strict=True)):
        book, memo = f"books/{owner}.xlsx", f"memos/{owner}.docx"
        table = _table(rng, rng.sample(items, rng.randint(4, 7)))
        other = _table(rng, rng.sample(items, 3))
        # A second sheet that looks alike: a memo does not say which one has the table with the item it names.
        books[book] = {sheet: table} if level == 2 else {"old": other, sheet: table}
        said, work, change = _work(rng, sort, owner, sheet, table)
        where = f"sheet {sheet} of {book}" if level == 2 else f"the newer sheet of {book} (not the one called old)"
        after = f"The next memo is memos/{owners[at + 1]}.docx." if at + 1 < count else "There is no other memo."
        documents[memo] = [("Heading 1", f"Memo for {owner}"), ("Normal", f"In {where}: {said}"), ("Normal", after)]
        steps.append(Step(plan(f"read {memo}", "do what it says"), {"path": memo}, "read_document"))
        if level > 2:
            steps.append(Step(plan(f"see the sheets of {book}", "read", "write"), {"path": book}, "sheets"))
        read = {"path": book, "sheet": sheet, "cells": f"A1:B{len(table)}"}
        steps += [Step(plan(f"read {book}", "write"), read, "read_cells"), work]
        rest = {} if level == 2 else {"old": _places(other)}
        expected |= {path: {**rest, **value} if path == book else value for path, value in change.items()}
    prompt = rng.choice(ASKED[split]["memo"]).format(memo=f"memos/{owners[0]}.docx")
    return OfficeTask(
        "office", kind, split, level, seed, prompt, "done", tuple(steps), outcome="state", closing="no memo is left",
        books=books, documents=documents, expected=expected,
    )  # fmt: skip


def _work(
    rng: random.Random, sort: str, owner: str, sheet: str, table: list[list[Cell]]
) -> tuple[str, Step, dict[str, Any]]:
    """What a memo says, the call that does it, and what the file is then."""
    book, places = f"books/{owner}.xlsx", _places(table)
    if sort == "correct":
        row = rng.randrange(2, len(table) + 1)
        item, value = table[row - 1][0], rng.randint(1000, 9999)
        args: dict[str, Any] = {"path": book, "sheet": sheet, "start": f"B{row}", "rows": [[value]]}
        said = f"the amount of {item} is wrong, it should be {value}."
        return said, Step(plan(f"correct {item}"), args, "write_cells"), {book: {sheet: {**places, f"B{row}": value}}}
    if sort == "total":
        last = len(table) + 1
        args = {"path": book, "sheet": sheet, "start": f"A{last}", "rows": [["total", f"=SUM(B2:B{last - 1})"]]}
        said = "below the last row, write total in column A and the sum of the amounts in column B."
        wanted = {**places, f"A{last}": "total", f"B{last}": _sum(table)}
        return said, Step(plan("add the total"), args, "write_cells"), {book: {sheet: wanted}}
    bound = sorted(int(row[1] or 0) for row in table[1:])[len(table) // 2 - 1] + 1
    rows = [f"{item} | {amount}" for item, amount in table[1:] if int(amount or 0) > bound]
    path = f"lists/{owner}.docx"
    args = {"path": path, "blocks": [{"heading": owner}, *({"row": row} for row in rows)]}
    said = (
        f"make a document {path} with the heading {owner} and a table of the items whose amount is above {bound}, a "
        "row each in the order of the sheet: the item, then the amount."
    )
    step = Step(plan(f"write {path}"), args, "write_document")
    return said, step, {path: [("Heading 1", owner), ("Table", "\n".join(rows))]}
