"""A folder of workbooks and documents, read and written through tools; what counts is what opens again at the end."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from overland.environments.tool_world import Folder, Refused, ToolWorld
from overland.environments.world import Changes

Cell = str | int | float | None
Sheets = Mapping[str, Sequence[Sequence[Cell]]]
"""Sheet name -> rows of cells."""
Block = tuple[str, str]
"""(style, text) of a document's paragraph: "Heading 1" or "Normal"; a table is ("Table", rows with | between cells)."""

MOST_CELLS = 2_000
_RANGE = re.compile(r"([A-Z]{1,2})([1-9][0-9]{0,3})(?::([A-Z]{1,2})([1-9][0-9]{0,3}))?")
_FORMULA = re.compile(
    r"=\s*(SUM|AVERAGE|MIN|MAX|COUNT)\s*\(\s*([A-Z]{1,2}[1-9][0-9]{0,3}:[A-Z]{1,2}[1-9][0-9]{0,3})\s*\)", re.I
)


class OfficeWorld(ToolWorld):
    """`books` and `documents` by path at first; the tools never run what is in them."""

    tools = ("ls", "sheets", "read_cells", "write_cells", "add_sheet", "read_document", "write_document")

    def __init__(self, books: Mapping[str, Sheets], documents: Mapping[str, Sequence[Block]]) -> None:
        self.books, self.documents = books, documents
        self.folder = Folder({})

    def open(self) -> None:
        frozen = {
            path: tuple((name, tuple(map(tuple, rows))) for name, rows in book.items())
            for path, book in self.books.items()
        }
        self.folder.files = {path: workbook(sheets) for path, sheets in frozen.items()}
        self.folder.files |= {path: document(tuple(blocks)) for path, blocks in self.documents.items()}
        self.folder.open()

    def close(self) -> None:
        self.folder.close()

    def ls(self) -> str:
        """List the files."""
        return "\n".join(sorted(self.folder.read_all()))

    def sheets(self, path: str) -> str:
        """Name the sheets of a workbook, with their sizes.

        Args:
            path: an .xlsx file
        """
        book = _opened_book(self.folder.read(path), path)
        return "\n".join(f"{sheet.title}: {sheet.dimensions}" for sheet in book.worksheets)

    def read_cells(self, path: str, sheet: str, cells: str) -> str:
        """Show cells, a row a line; formulas are shown as they are written.

        Args:
            path: an .xlsx file
            sheet: the sheet's name
            cells: such as B2 or A1:D9
        """
        rows = _select(_sheet(_opened_book(self.folder.read(path), path), sheet), cells)
        return "\n".join(" | ".join(_shown(cell.value) for cell in row) for row in rows)

    def write_cells(self, path: str, sheet: str, start: str, rows: list[list[str | int | float | None]]) -> str:
        """Write rows of cells into a workbook; a text that begins with = is a formula.

        Args:
            path: an .xlsx file, which is made if it does not exist
            sheet: the sheet's name
            start: the first cell, such as B2
            rows: the rows, each a list of cells
        """
        place = _RANGE.fullmatch(start.strip())
        if place is None or place[3]:
            raise Refused(f"{start!r} is not a cell")
        if sum(map(len, rows)) > MOST_CELLS:
            raise Refused(f"at most {MOST_CELLS} cells at once")
        if not path.endswith(".xlsx"):
            raise Refused("the name of a workbook ends in .xlsx")
        book = self._book(path, sheet)
        table = _sheet(book, sheet)
        first = table[start.strip()]
        for down, row in enumerate(rows):
            for right, value in enumerate(row):
                _set(table.cell(first.row + down, first.column + right), value)
        self._save(path, book)
        return f"{sum(map(len, rows))} cells written"

    def add_sheet(self, path: str, sheet: str) -> str:
        """Add an empty sheet to a workbook.

        Args:
            path: an .xlsx file
            sheet: the new sheet's name
        """
        book = _opened_book(self.folder.read(path), path)
        if sheet in book.sheetnames or not re.fullmatch(r"[A-Za-z0-9 _-]{1,31}", sheet):
            raise Refused(f"a sheet cannot be named {sheet!r}")
        book.create_sheet(sheet)
        self._save(path, book)
        return "added"

    def read_document(self, path: str) -> str:
        """Show a document, a paragraph a line; headings begin with #, rows of tables are shown with | between cells.

        Args:
            path: a .docx file
        """
        lines = {"Heading 1": "# {}", "Heading 2": "## {}"}
        found = blocks_of(_opened_document(self.folder.read(path), path))
        return "\n".join(lines.get(style, "{}").format(text) for style, text in found) or "(empty)"

    def write_document(self, path: str, blocks: list[dict[Literal["heading", "text", "row"], str]]) -> str:
        """Write a document anew.

        Args:
            path: a .docx file; one that exists is replaced
            blocks: in order; each is {"heading": "..."}, {"text": "..."} or {"row": "cell | cell"}, a row of a table
        """
        if not path.endswith(".docx"):
            raise Refused("the name of a document ends in .docx")
        kinds = {"heading": "Heading 1", "text": "Normal", "row": "Table"}
        plain: list[Block] = []
        for block in blocks:
            if len(block) != 1 or next(iter(block)) not in kinds:
                raise Refused("each block has one of heading, text and row")
            (kind, text), *_ = block.items()
            text = " ".join(str(text).split())
            if kind == "row" and plain and plain[-1][0] == "Table":
                plain[-1] = ("Table", f"{plain[-1][1]}\n{text}")
            else:
                plain.append((kinds[kind], text))
        try:
            self.folder.write(path, document(tuple(plain)))
        except ValueError as error:  # a control character: XML has no place for it
            raise Refused(str(error)) from None
        return f"{len(blocks)} blocks written"

    def _book(self, path: str, sheet: str) -> Any:
        """The workbook to write to, with an empty sheet of that name where there is no workbook yet."""
        from openpyxl import Workbook

        try:
            return _opened_book(self.folder.read(path), path)
        except Refused as refused:
            if "there is no file" not in str(refused):
                raise
        if not re.fullmatch(r"[A-Za-z0-9 _-]{1,31}", sheet):
            raise Refused(f"a sheet cannot be named {sheet!r}")
        book = Workbook()
        book.active.title = sheet
        return book

    def _save(self, path: str, book: Any) -> None:
        buffer = io.BytesIO()
        book.save(buffer)
        self.folder.write(path, buffer.getvalue())

    def put(self, files: Mapping[str, str]) -> bool:
        for path, text in files.items():
            self.folder.write(path, text)
        return True

    def content(self) -> dict[str, Any]:
        """What the files say: cells by sheet and place, or blocks. None for what does not open."""
        found: dict[str, Any] = {}
        for path, data in self.folder.read_all().items():
            found[path] = _content(path.rsplit(".", 1)[-1], data)
        return found


class ExpectedOffice(OfficeWorld):
    """An OfficeWorld whose end is known: `expected` is what is new or different, in the form of `content`."""

    def __init__(
        self, books: Mapping[str, Sheets], documents: Mapping[str, Sequence[Block]], expected: Mapping[str, Any]
    ) -> None:
        super().__init__(books, documents)
        self.before: dict[str, Any] = {path: places_of(sheets) for path, sheets in books.items()}
        self.before |= {path: list(blocks) for path, blocks in documents.items()}
        self.after = {**self.before, **expected}

    def changes(self) -> Changes:
        """Contents against the expected ones; a formula counts as the number that it gives."""
        found, after = self.content(), self.after
        return Changes(
            missing=tuple(sorted(after.keys() - found.keys())),
            unexpected=tuple(sorted(found.keys() - after.keys())),
            altered=tuple(sorted(path for path in after.keys() & found.keys() if not _alike(after[path], found[path]))),
            touched=found != self.before,
        )


@functools.lru_cache(maxsize=256)
def workbook(sheets: tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]) -> bytes:
    """The bytes of a workbook of (name, rows)."""
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.active)
    for name, rows in sheets:
        table = book.create_sheet(name)
        for row in rows:
            table.append(list(row))
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


@functools.lru_cache(maxsize=256)
def document(blocks: tuple[Block, ...]) -> bytes:
    """The bytes of a document. Raises ValueError for a text that XML cannot hold."""
    import docx

    made = docx.Document()
    for style, text in blocks:
        if style != "Table":
            made.add_paragraph(text, style=style)
            continue
        rows = [[cell.strip() for cell in line.split("|")] for line in text.split("\n")]
        table = made.add_table(0, max(map(len, rows)))
        for row in rows:
            for cell, words in zip(table.add_row().cells, row, strict=False):
                cell.text = words
    buffer = io.BytesIO()
    made.save(buffer)
    return buffer.getvalue()


def _opened_book(data: bytes, path: str) -> Any:
    from openpyxl import load_workbook

    try:
        return load_workbook(io.BytesIO(data))
    except Exception:  # whatever a broken archive makes of the library
        raise Refused(f"{path} is not a workbook") from None


def _opened_document(data: bytes, path: str) -> Any:
    import docx

    try:
        return docx.Document(io.BytesIO(data))
    except Exception:
        raise Refused(f"{path} is not a document") from None


@functools.lru_cache(maxsize=512)
def _content(kind: str, data: bytes) -> Any:
    """What a file says; None for what does not open. Kept, because most files stay as they are."""
    try:
        if kind == "xlsx":
            return cells_of(_opened_book(data, "it"))
        return blocks_of(_opened_document(data, "it")) if kind == "docx" else None
    except Refused:
        return None


def places_of(sheets: Sheets) -> dict[str, dict[str, Any]]:
    """Sheet -> place -> value, as `cells_of` gives it."""
    from openpyxl.utils import get_column_letter

    return {
        name: {
            f"{get_column_letter(c)}{r}": value
            for r, row in enumerate(rows, 1)
            for c, value in enumerate(row, 1)
            if value is not None
        }
        for name, rows in sheets.items()
    }


def cells_of(book: Any) -> dict[str, dict[str, Any]]:
    """Sheet -> place -> value, empty cells left out; simple formulas become their values."""
    found: dict[str, dict[str, Any]] = {}
    for sheet in book.worksheets:
        cells = {cell.coordinate: cell.value for row in sheet.iter_rows() for cell in row if cell.value is not None}
        found[sheet.title] = {place: _value(value, sheet) for place, value in cells.items()}
    return found


def blocks_of(made: Any) -> list[Block]:
    """Paragraphs with their styles and tables, in order; empty paragraphs left out."""
    found: list[Block] = []
    for part in made.iter_inner_content():
        if hasattr(part, "rows"):
            lines = [" | ".join(cell.text.strip() for cell in row.cells) for row in part.rows]
            found.append(("Table", "\n".join(lines)))
        elif part.text.strip():
            found.append((part.style.name if part.style is not None else "Normal", part.text.strip()))
    return found


def _value(value: Any, sheet: Any) -> Any:
    """What =SUM(B2:B9) and its like give; any other formula stays a text."""
    formula = _FORMULA.fullmatch(value.strip()) if isinstance(value, str) else None
    if formula is None:
        return value
    numbers = [
        cell.value for row in _select(sheet, formula[2].upper()) for cell in row if isinstance(cell.value, int | float)
    ]
    if not numbers:
        return 0
    total = {"SUM": sum, "MIN": min, "MAX": max, "COUNT": len, "AVERAGE": lambda n: sum(n) / len(n)}
    return total[formula[1].upper()](numbers)  # type: ignore[operator]


def _alike(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, float | int) and isinstance(found, float | int):
        return abs(wanted - found) < 1e-6
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(_alike(wanted[key], found[key]) for key in wanted)
    return bool(wanted == found)


def _set(cell: Any, value: Cell) -> None:
    from openpyxl.utils.exceptions import IllegalCharacterError

    try:
        cell.value = value
    except (IllegalCharacterError, ValueError) as error:
        raise Refused(f"a cell cannot hold that: {error}") from None


def _sheet(book: Any, name: str) -> Any:
    if name not in book.sheetnames:
        raise Refused(f"there is no sheet {name!r}: use one of {', '.join(book.sheetnames)}")
    return book[name]


def _select(sheet: Any, cells: str) -> Sequence[Sequence[Any]]:
    """The cells of a range. Raises Refused for one that is none, or too large."""
    found = _RANGE.fullmatch(cells.strip().upper())
    if found is None:
        raise Refused(f"{cells!r} is not a range of cells")
    from openpyxl.utils import range_boundaries

    left, top, right, bottom = range_boundaries(found[0])
    if right < left or bottom < top or (right - left + 1) * (bottom - top + 1) > MOST_CELLS:
        raise Refused(f"{cells} is not a range of at most {MOST_CELLS} cells")
    return list(sheet.iter_rows(top, bottom, left, right))


def _shown(value: Any) -> str:
    return "" if value is None else str(value)
