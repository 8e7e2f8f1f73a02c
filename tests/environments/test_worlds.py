"""The worlds are real and fenced: SQLite that only reads, pages parsed from HTML, a tree that is read without trust."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from overland.environments import load_environment
from overland.environments.files_world import FilesWorld
from overland.environments.site_world import SiteWorld, page_text
from overland.environments.sql_world import ROWS, SqlWorld
from overland.environments.world import OBSERVATION_LIMIT, clip

FIRMS = (("mira", "tolan", "tolan", "tolan", "mira", "oslo"), ("tolan", "mira", "mira", "mira", "tolan", "bern"))
FACTS = (("mira", "q1", 100, 200, 300), ("mira", "q2", 110, 190, 310), ("tolan", "q1", 500, 600, 700))


@pytest.fixture
def sql() -> Iterator[SqlWorld]:
    world = SqlWorld(FIRMS, FACTS)
    with world:
        yield world


@pytest.mark.parametrize(
    "query, result",
    [
        ("select sales from facts where firm='mira' and quarter='q2'", "sales 110"),
        (
            "select quarter, debt from facts where firm='mira' order by sales desc",
            "quarter q2 | debt 310\nquarter q1 | debt 300",
        ),
        ("select max(sales), count(*), avg(debt) from facts", "max(sales) 500 | count(*) 3 | avg(debt) 436.667"),
        ("select owner from firms where name = 'nobody'", "no rows"),
        ("select null", "null null"),
        ("select wages from firms", "error: no such column: wages"),
        ("", "no rows"),
    ],
)
def test_sql_answers_in_plain_values(sql: SqlWorld, query: str, result: str) -> None:
    assert sql.call_now({"query": query}) == result


@pytest.mark.parametrize(
    "query",
    [
        "insert into firms values ('a','b','c')",
        "update facts set sales = 1",
        "delete from firms",
        "drop table firms",
        "create table t(x)",
        "create temp table t(x)",
        "attach database '/tmp/other.sqlite' as other",
        "attach ':memory:' as m",
        "vacuum into '/tmp/copy.sqlite'",
        "pragma query_only=off",
        "pragma table_info(firms)",
        "begin immediate",
        "select load_extension('x')",
        "select readfile('/etc/passwd')",
        "select writefile('/tmp/x', 'y')",
        "select hex(randomblob(1000))",
        "select zeroblob(1000000000)",
        "select printf('%1000000s', 'x')",
        "select * from sqlite_master",
        "select * from pragma_database_list",
        "select * from dbstat",
        "select 1; select 2",
        "with recursive c(x) as (select 1 union all select x+1 from c) select count(*) from c",
        "select 'a\x00b",
        "select '\ud800'",
        "select " + "(" * 200 + "1" + ")" * 200,
        "select '" + "x" * 5000 + "'",
        "select ?",
    ],
)
def test_sql_refuses_what_is_not_a_plain_query(sql: SqlWorld, query: str) -> None:
    before = sql.call_now({"query": "select count(*) from firms"})
    assert sql.call_now({"query": query}).startswith("error: ")
    assert sql.call_now({"query": "select count(*) from firms"}) == before == "count(*) 2"


def test_sql_stops_a_query_that_takes_too_long(sql: SqlWorld) -> None:
    facts = ", ".join(f"facts f{i}" for i in range(20))
    started = time.monotonic()
    assert sql.call_now({"query": f"select count(*) from {facts}"}) == "error: too slow"
    assert time.monotonic() - started < 5.0
    assert sql.call_now({"query": "select count(*) from facts"}) == "count(*) 3"


def test_sql_shows_few_rows_and_short_text(sql: SqlWorld) -> None:
    shown = sql.call_now({"query": "select a.firm, b.firm from facts a, facts b"})
    assert shown.count("\n") == ROWS
    assert shown.endswith("...")
    wide = sql.call_now({"query": "select " + ", ".join(["'abcdefghijklmnopqrst'"] * 30)})
    assert len(wide) < OBSERVATION_LIMIT + 40


@pytest.mark.parametrize("arguments", [{}, {"query": 3}, {"query": None}, {"sql": "select 1"}])
def test_a_missing_argument_is_an_observation(sql: SqlWorld, arguments: dict[str, object]) -> None:
    assert sql.call_now(arguments) == "error: query must be a string"


@pytest.mark.parametrize(
    "html, text",
    [
        (
            "<h1>mira</h1><p>town <b>oslo</b></p><p>boss <a href='tolan.html'>tolan</a></p>",
            "mira: town oslo; boss tolan",
        ),
        ("<h1>mira</h1><dl><dt>town</dt><dd>oslo</dd><dt>pet</dt><dd>rilu</dd></dl>", "mira: town oslo; pet rilu"),
        ("<h1>mira</h1><ul><li>town&nbsp;oslo<li>pet rilu</ul>", "mira: town oslo; pet rilu"),
        ("<table><tr><th>town</th>\n<td>oslo</td></tr></table>", "town oslo"),
        ("<nav><p>home</p></nav><h1>a &amp; b</h1><footer>x</footer><script>'<p>no</p>'</script>", "a & b"),
        ("<nav><div><p>deep</p></div><p>still</p></nav><p>shown</p>", "shown"),
        ("<p>broken <b>markup", "broken markup"),
        ("<!-- nothing -->", "empty page"),
    ],
)
def test_a_page_is_read_like_a_reader_would(html: str, text: str) -> None:
    assert page_text(html) == text


def test_pages_show_their_fields_in_every_markup() -> None:
    task = load_environment("web").task("train", 2, 3)
    looks = set()
    with task.world() as world:
        for name, fields in task.people.items():  # type: ignore[attr-defined]
            looks.add(task.look[name])  # type: ignore[attr-defined]
            assert world.call_now({"page": name}) == f"{name}: " + "; ".join(" ".join(field) for field in fields)
    assert len(looks) > 2


def test_a_fragment_shows_the_page_from_that_place_on() -> None:
    html = "<h1>mira</h1><p id='town'>town <b>oslo</b></p><p id='boss'>boss tolan</p><p>pet rilu</p>"
    with SiteWorld({"mira": html}) as world:
        assert world.call_now({"page": "mira#boss"}) == "boss tolan; pet rilu"
        assert world.call_now({"page": "mira#town"}) == "town oslo; boss tolan; pet rilu"
        assert world.call_now({"page": "mira#nowhere"}) == world.call_now({"page": "mira"})
        assert world.call_now({"page": "mira#"}) == "404 not found"


@pytest.mark.parametrize(
    "page", ["nobody", "../secret", "/etc/passwd", "", "mira.html/../../x", "MIRA", "mira\x00", "\ud800"]
)
def test_a_page_that_is_not_there_is_404(page: str) -> None:
    with SiteWorld({"mira": "<h1>mira</h1>"}) as world:
        assert world.call_now({"page": page}) == "404 not found"
        assert world.call_now({"page": "mira.html"}) == world.call_now({"page": " mira "}) == "mira"


def tree_of(world: FilesWorld) -> Path:
    assert world.workdir is not None
    return world.workdir.path


def test_any_other_change_of_the_tree_is_seen(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("word mira\n")
    files = {"box/a.txt": "word mira\n", "bag/b.txt": "word tolan\n"}

    def damage_of(what: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        world = FilesWorld(files, files, frozenset())
        with world:
            base = tree_of(world)
            assert world.changes().as_expected
            assert not world.changes().touched
            match what:
                case "edit":
                    (base / "box/a.txt").write_text("word mira")
                case "new folder":
                    (base / "new").mkdir()
                case "gone":
                    (base / "box/a.txt").unlink()
                case "link":
                    (base / "box/a.txt").unlink()
                    os.symlink(secret, base / "box/a.txt")
                case "pipe":
                    os.mkfifo(base / "pipe")
            changes = world.changes()
            assert changes.touched
            assert not changes.as_expected
            return changes.missing, changes.unexpected, changes.altered

    assert damage_of("edit") == ((), (), ("box/a.txt",))
    assert damage_of("new folder") == ((), ("new/",), ())
    assert damage_of("gone") == (("box/a.txt",), (), ())
    assert damage_of("link") == ((), (), ("box/a.txt",))
    assert damage_of("pipe") == ((), ("pipe",), ())


def test_a_closed_world_leaves_nothing_behind() -> None:
    world = load_environment("terminal").task("train", 1, 0).world()
    with world:
        path = tree_of(world)  # type: ignore[arg-type]
        assert path.exists()
    assert not path.exists()


def test_long_observations_say_what_was_left_out() -> None:
    assert clip("x" * 300, 100) == "x" * 100 + " ... (200 more characters)"
    assert clip(" a\ud800b ") == "a?b"
