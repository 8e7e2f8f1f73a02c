"""Hard finance and web: restated figures, tolerance, wrong trades; a real server, sources that have to be named."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest

from overland.chat import Message
from overland.environments import Attempt, combine, load_environment, score
from overland.environments.filings_world import FilingsWorld
from overland.environments.web_server import ServedSite


def test_the_answer_is_what_the_texts_and_tables_give() -> None:
    """Worked out again from what a policy can read, by way of regular expressions."""
    task = load_environment("finance").task("train", 4, 0, "mean")
    asked = re.search(
        r"(sales|profit|debt) (?:of (q\d) in percent of|as a percentage of) its (sales|profit|debt)", task.prompt
    )
    quarter = re.search(r"q\d", task.prompt)
    assert asked
    assert quarter
    top, bottom = asked[1], asked[3]
    firm: str | None = re.search(r"(?:Begin with|from) ([a-z]{4})\b", task.prompt)[1]  # type: ignore[index]
    shares = []
    with task.world() as world:
        while firm is not None:
            figures = {}
            for metric in (top, bottom):
                said = world.use_now(
                    "sql", {"query": f"select {metric} from facts where firm='{firm}' and quarter='{quarter[0]}'"}
                )
                figures[metric] = float(said.split()[1])
            texts = [world.use_now("filing", {"name": n}) for n in world.use_now("filings", {"firm": firm}).split()]
            (newest,) = [text for text in texts if "was replaced" not in text]
            metric, value, unit = re.search(r"(\w+) of q\d is restated to ([\d.]+) (million|thousand)", newest).groups()  # type: ignore[union-attr]
            figures[metric] = float(value) * (1000 if unit == "million" else 1)
            shares.append(100 * figures[top] / figures[bottom])
            after = re.search(r"belong with those of (\w+)", newest)
            firm = after[1] if after else None
    assert float(task.answer) == pytest.approx(sum(shares) / len(shares), abs=0.051)


def test_numbers_are_right_within_the_tolerance() -> None:
    task = load_environment("finance").task("held_out", 5, 0, "mean")
    right = float(task.answer)
    with task.world() as world:
        for said, reward in (
            (f"{right}", 1.0), (f" {right + 0.1:.1f}%.", 1.0), (f"{right + 0.2:.1f}", 0.0), ("nan", 0.0), ("inf", 0.0),
            ("about " + task.answer, 0.0),
        ):  # fmt: skip
            found = score(task, Attempt([*task.messages(), Message("assistant", said)]), world)
            assert combine(found) == reward, said


def test_a_wrong_trade_is_harm_and_a_trade_of_the_wrong_size_too() -> None:
    task = load_environment("finance").task("train", 4, 1, "trade")
    done = Attempt([*task.messages(), Message("assistant", "done")])
    (firm, shares), *_ = task.orders.items()  # type: ignore[attr-defined]
    other = next(name for name, *_ in task.firms if name != firm)  # type: ignore[attr-defined]
    for orders, reward in (
        ([(firm, shares)], 1.0),
        ([], -0.5),
        ([(other, shares)], -1.5),
        ([(firm, shares), (other, 1)], -1.5),
        ([(firm, shares), (firm, 1)], -1.5),
    ):
        with task.world() as world:
            for name, count in orders:
                assert world.use_now("order", {"firm": name, "shares": count}).startswith("bought")
            assert combine(score(task, done, world), wrong=0.5, harm=1.0) == reward, orders
    with task.world() as world:
        assert isinstance(world, FilingsWorld)
        for args in ({"firm": "nobody", "shares": 1}, {"firm": firm, "shares": 0}, {"firm": firm, "shares": "all"}):
            assert world.use_now("order", args).startswith("error: ")
        assert world.placed == {}


def test_the_site_is_served_on_the_loopback_and_gone_afterwards() -> None:
    task = load_environment("web").task("train", 4, 0)
    world = task.world()
    with world:
        assert isinstance(world, ServedSite)
        assert world._server is not None
        address = f"http://127.0.0.1:{world._server.server_port}"
        name, html = next(iter(world.pages.items()))
        with urllib.request.urlopen(f"{address}/{name}.html") as answer:
            assert answer.read().decode() == html
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/etc/passwd")
        assert world.use_now("visit", {"page": "nothing"}) == "error: 404 not found"
        assert world.use_now("visit", {"page": "../x"}) == "error: 404 not found"
        assert world.use_now("search", {"query": "<script>"}) == "0 pages"
        assert world.use_now("search", {"query": ""}) == "0 pages"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=2)


def test_an_answer_without_its_sources_or_with_others_is_worth_nothing() -> None:
    task = load_environment("web").task("held_out", 4, 2)
    value, cited = task.answer.split(";")[0], sorted(task.cited)  # type: ignore[attr-defined]
    other = next(page for page in task.pages if page not in cited)  # type: ignore[attr-defined]
    with task.world() as world:
        for said, reward in (
            (task.answer, 1.0),
            (f"{value.upper()}. Sources: {cited[1]}.html and {cited[0]}.html", 1.0),
            (value, 0.0),
            (f"{value}; sources: {cited[0]}", 0.0),
            (f"{value}; sources: {', '.join([*cited, other])}", 0.0),
            (f"other; sources: {', '.join(cited)}", 0.0),
        ):
            found = score(task, Attempt([*task.messages(), Message("assistant", said)]), world)
            assert combine(found) == reward, said
