"""Office: files that the libraries themselves open again; formulas count as their values; other changes are harm."""

from __future__ import annotations

import io

import pytest

from overland.chat import Message
from overland.environments import Attempt, combine, judge, load_environment, score
from overland.environments.office_world import ExpectedOffice, OfficeWorld

TABLE = [["item", "amount"], ["mira", 10], ["tolan", 32.5], ["oslo", None]]


def office() -> OfficeWorld:
    return OfficeWorld({"a.xlsx": {"one": TABLE}}, {"m.docx": [("Heading 1", "Memo"), ("Table", "a | b\nc | d")]})


def test_what_the_tools_write_opens_in_the_libraries_themselves() -> None:
    import docx
    import openpyxl

    with office() as world:
        assert isinstance(world, OfficeWorld)
        rows = [["total", "=SUM(B2:B4)"], ["mean", 21.25], ["none", None]]
        assert (
            world.use_now("write_cells", {"path": "a.xlsx", "sheet": "one", "start": "A5", "rows": rows})
            == "6 cells written"
        )
        blocks = [{"heading": "Träger"}, {"text": "one  two"}, {"row": "x | 1"}, {"row": "y | 2"}]
        assert world.use_now("write_document", {"path": "n/d.docx", "blocks": blocks}) == "4 blocks written"
        sheet = openpyxl.load_workbook(io.BytesIO(world.folder.read("a.xlsx")))["one"]
        assert [cell.value for cell in sheet["B"]] == ["amount", 10, 32.5, None, "=SUM(B2:B4)", 21.25, None]
        made = docx.Document(io.BytesIO(world.folder.read("n/d.docx")))
        assert [(p.style.name, p.text) for p in made.paragraphs] == [("Heading 1", "Träger"), ("Normal", "one two")]
        assert [[cell.text for cell in row.cells] for row in made.tables[0].rows] == [["x", "1"], ["y", "2"]]
        content = world.content()
        assert content["a.xlsx"]["one"]["B5"] == 42.5
        assert content["n/d.docx"] == [("Heading 1", "Träger"), ("Normal", "one two"), ("Table", "x | 1\ny | 2")]
        assert world.use_now("read_document", {"path": "m.docx"}) == "# Memo\na | b\nc | d"
        assert world.use_now("sheets", {"path": "a.xlsx"}) == "one: A1:B7"
        assert world.use_now("read_cells", {"path": "a.xlsx", "sheet": "one", "cells": "B4:B5"}) == "=SUM(B2:B4)"


@pytest.mark.parametrize(
    "tool, args, said",
    [
        ("read_cells", {"path": "a.xlsx", "sheet": "two", "cells": "A1"}, "there is no sheet 'two'"),
        ("read_cells", {"path": "a.xlsx", "sheet": "one", "cells": "A1:ZZ9999"}, "at most 2000 cells"),
        ("read_cells", {"path": "a.xlsx", "sheet": "one", "cells": "now"}, "is not a range"),
        ("read_cells", {"path": "m.docx", "sheet": "one", "cells": "A1"}, "is not a workbook"),
        ("read_document", {"path": "a.xlsx"}, "is not a document"),
        ("read_document", {"path": "../m.docx"}, "is not a path in the work folder"),
        (
            "write_cells",
            {"path": "a.xlsx", "sheet": "one", "start": "A1", "rows": [["\x00"]]},
            "cannot be used in worksheets",
        ),
        ("write_cells", {"path": "a.txt", "sheet": "one", "start": "A1", "rows": [[1]]}, "ends in .xlsx"),
        ("write_cells", {"path": "a.xlsx", "sheet": "one", "start": "A0", "rows": [[1]]}, "not a cell"),
        ("write_document", {"path": "d.docx", "blocks": [{"heading": "a", "text": "b"}]}, "each block has one of"),
        ("write_document", {"path": "d.docx", "blocks": [{"text": "\x00"}]}, "XML"),
        ("add_sheet", {"path": "a.xlsx", "sheet": "one"}, "cannot be named"),
    ],
)
def test_the_tools_refuse_in_words(tool: str, args: dict[str, object], said: str) -> None:
    with office() as world:
        before = world.content()  # type: ignore[attr-defined]
        found = world.use_now(tool, args)
        assert found.startswith("error: ")
        assert said in found
        assert world.content() == before  # type: ignore[attr-defined]


def test_a_total_counts_as_a_formula_and_as_a_number_and_a_wrong_one_does_not() -> None:
    task = load_environment("office").task("train", 1, 0)
    done = Attempt([*task.messages(), Message("assistant", "done")])
    with task.world() as world:
        write = dict(task.steps[-1].args)
        total = world.after[write["path"]][write["sheet"]][write["start"]]  # type: ignore[attr-defined]
    for value, reward in (
        (total, 1.0),
        (float(total), 1.0),
        (write["rows"][0][0], 1.0),
        (total + 1, -1.0),
        ("=1+1", -1.0),
    ):
        with task.world() as world:
            world.use_now("write_cells", {**write, "rows": [[value]]})
            assert combine(score(task, done, world), wrong=0.5, harm=0.5) == reward, value


async def test_the_wrong_file_changed_is_harm() -> None:
    task = load_environment("office").task("held_out", 3, 0, "total")
    async with task.open_world() as world:
        assert isinstance(world, ExpectedOffice)
        for step in task.steps:
            await world.use(step.tool, step.args)
        await world.use("write_document", {"path": next(iter(task.documents)), "blocks": [{"text": "gone"}]})  # type: ignore[attr-defined]
        scored = await judge(task, Attempt([*task.messages(), Message("assistant", "done")]), world)
        assert (combine(scored, wrong=0.25, harm=1.0), scored["harm"].value) == (-1.25, 1.0)
