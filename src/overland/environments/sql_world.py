"""Company figures in a real SQLite file, opened read-only and fenced: whatever is asked, the answer is short and soon.

The fence (SQLite's own means): the URI's mode=ro, an authorizer that allows SELECT on the two tables and a list of
functions, limits on lengths and operations, a progress handler that counts steps, caps on rows and on the observation.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from overland.environments.world import World, clip, one_string, tool_spec

if TYPE_CHECKING:
    from overland.agent.sandbox.workdir import Workdir

SQL_SPEC = tool_spec(
    "sql",
    "query tables firms(name,owner,partner,lender,client,town) and facts(firm,quarter,sales,profit,debt)",
    "query",
)

METRICS = ("sales", "profit", "debt")
SCHEMA = (
    "create table firms(name text primary key, owner text, partner text, lender text, client text, town text) "
    "without rowid;"
    "create table facts(firm text, quarter text, sales integer, profit integer, debt integer, "
    "primary key(firm, quarter)) without rowid;"
)

ROWS = 8
STRIDE = 1_000
STRIDES = 2_000
"""A query ends after STRIDE x STRIDES steps of SQLite's machine: the same query ends alike on every machine."""
SECONDS = 2.0
"""And by the clock, in case single steps are slow."""
FUNCTIONS = frozenset(
    {"count", "sum", "total", "avg", "min", "max", "abs", "round", "upper", "lower", "length", "substr", "trim"}
    | {"coalesce", "ifnull", "nullif", "like", "instr"}
)

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 32,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 4,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 5_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

Firm = tuple[str, str, str, str, str, str]
Fact = tuple[str, str, int, int, int]


def _authorize(action: int, first: str | None, second: str | None, database: str | None, inner: str | None) -> int:
    if action == sqlite3.SQLITE_SELECT:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and first in ("firms", "facts"):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and second in FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


class SqlWorld(World):
    """`firms` and `facts` are the rows. The file lives while the world is open."""

    spec = SQL_SPEC

    def __init__(self, firms: Sequence[Firm], facts: Sequence[Fact]) -> None:
        self.firms, self.facts = firms, facts
        self._workdir: Workdir | None = None
        self._db: sqlite3.Connection | None = None
        self._deadline = 0.0
        self._strides = 0

    def open(self) -> None:
        from overland.agent.sandbox.workdir import Workdir

        self._workdir = Workdir({"figures.sqlite": _database(self.firms, self.facts)})
        uri = f"{(self._workdir.path / 'figures.sqlite').as_uri()}?mode=ro&immutable=1"
        # Handed from the event loop to a worker by some callers, never used by two at once.
        db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        db.execute("pragma temp_store=memory")
        db.execute("pragma query_only=on")
        db.execute("select 1 from firms limit 1")  # the schema is read before the authorizer could forbid it
        for limit, value in _LIMITS.items():
            db.setlimit(limit, value)
        db.set_progress_handler(self._out_of_time, STRIDE)
        db.set_authorizer(_authorize)
        self._db = db

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._workdir is not None:
            self._workdir.close()
            self._workdir = None

    def _out_of_time(self) -> bool:
        self._strides += 1
        return self._strides > STRIDES or time.monotonic() > self._deadline

    def call_now(self, args: Mapping[str, object]) -> str:
        query = one_string(args, "query")
        if query is None:
            return "error: query must be a string"
        assert self._db is not None
        self._deadline, self._strides = time.monotonic() + SECONDS, 0
        try:
            cursor = self._db.execute(query)
            try:
                rows = cursor.fetchmany(ROWS + 1)
                names = [column[0] for column in cursor.description or ()]
            finally:
                cursor.close()
        except sqlite3.OperationalError as error:
            return "error: too slow" if str(error) == "interrupted" else clip(f"error: {error}")
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            return clip(f"error: {error}")
        if not rows:
            return "no rows"
        lines = [" | ".join(f"{n} {_cell(v)}" for n, v in zip(names, row, strict=True)) for row in rows[:ROWS]]
        return clip("\n".join(lines + ["..."] * (len(rows) > ROWS)))


def _database(firms: Sequence[Firm], facts: Sequence[Fact]) -> bytes:
    """The bytes of a database file with these rows."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        db.executescript(SCHEMA)
        db.execute("begin")
        db.executemany("insert into firms values (?,?,?,?,?,?)", firms)
        db.executemany("insert into facts values (?,?,?,?,?)", facts)
        db.execute("commit")
        return db.serialize()
    finally:
        db.close()


def _cell(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.hex() if isinstance(value, bytes) else str(value)
