"""Web tasks: an attribute of the person at the end of a chain of links. Level L opens L + 1 pages.

An easy task may begin halfway, "boss kato" on the path "page>friend>boss>town": its plan goes on from there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

from overland.environments import web_hard
from overland.environments.names import draw_names
from overland.environments.prompts import ask, halfway
from overland.environments.site_world import SiteWorld
from overland.environments.task import Step, Task
from overland.environments.taskset import Taskset

RELATIONS = ("boss", "friend", "tutor", "rival")
ATTRIBUTES = ("town", "age", "pet")
FIELDS = 5
"""Attributes and links on one page, so that a page stays one short line."""
AGES = [n for n in range(12, 98) if n % 11]


@dataclass(frozen=True)
class WebTask(Task):
    """`people` maps a person to (field, value) pairs in page order; `look` picks each page's markup."""

    people: dict[str, tuple[tuple[str, str], ...]] = field(kw_only=True)
    look: dict[str, int] = field(kw_only=True)

    def world(self) -> SiteWorld:
        return SiteWorld({name: page_html(name, fields, self.look[name]) for name, fields in self.people.items()})


class Web(Taskset):
    """Tool `open`; see the module."""

    name = "web"
    kinds: ClassVar[dict[int, tuple[str, ...]]] = {
        0: ("page",),
        1: ("chain",),
        2: ("chain",),
        3: ("chain",),
        **web_hard.KINDS,
    }

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> Task:
        if level >= 4:
            return web_hard.build(rng, split, level, seed, kind)
        count = rng.randint(6, 9)
        names = draw_names(rng, split, 3 * count)
        people, towns, pets = names[:count], names[count : 2 * count], names[2 * count :]
        ages = rng.sample(AGES, count)
        path = people[: level + 1]
        done = halfway(rng, level)
        words = ("page", *rng.sample(RELATIONS, done + level))
        relations = words[done + 1 :]
        attribute = rng.choice([a for a in (*ATTRIBUTES, *RELATIONS) if a not in words])

        pages: dict[str, tuple[tuple[str, str], ...]] = {}
        for index, person in enumerate(people):
            links = {r: rng.choice(people[:index] + people[index + 1 :]) for r in RELATIONS}
            if index < level:
                links[relations[index]] = path[index + 1]
            elif index == level and attribute in links:  # the answer must not stand in the prompt
                links[attribute] = rng.choice(people[level + 1 :])
            values = {**links, "town": towns[index], "age": str(ages[index]), "pet": pets[index]}
            kept = {relations[index] if index < level else attribute, attribute}
            fields = [name for name in values if name in kept]
            others = [name for name in values if name not in kept]
            fields += rng.sample(others, FIELDS - len(fields))
            rng.shuffle(fields)
            pages[person] = tuple((name, values[name]) for name in fields)
        look = {person: rng.randrange(len(_LOOKS)) for person in people}
        order = sorted(people)

        prompt = ask(rng, split, f"{words[done]} {path[0]}", (*words, attribute))
        steps = tuple(
            Step((f"{words[done + i]} {person}", *words[done + i :], attribute), {"page": f"{person}#{wanted}"})
            for i, (person, wanted) in enumerate(zip(path, (*relations, attribute), strict=True))
        )
        return WebTask(
            self.name, kind, split, level, seed, prompt, dict(pages[path[-1]])[attribute], steps,
            closing=attribute, people={person: pages[person] for person in order},
            look={person: look[person] for person in order},
        )  # fmt: skip


def _value(name: str, value: str) -> str:
    return f'<a href="{value}.html">{value}</a>' if name in RELATIONS else value


def _paragraphs(fields: tuple[tuple[str, str], ...]) -> str:
    return "\n".join(f"<p id='{name}'>{name} <b>{_value(name, value)}</b></p>" for name, value in fields)


def _definitions(fields: tuple[tuple[str, str], ...]) -> str:
    return (
        "<dl>\n"
        + "\n".join(f"<dt id='{name}'>{name}</dt><dd>{_value(name, value)}</dd>" for name, value in fields)
        + "\n</dl>"
    )


def _list(fields: tuple[tuple[str, str], ...]) -> str:
    return (
        "<ul>\n"
        + "\n".join(f"  <li id='{name}'>{name}&nbsp;{_value(name, value)}" for name, value in fields)
        + "\n</ul>"
    )


def _table(fields: tuple[tuple[str, str], ...]) -> str:
    rows = "\n".join(f"<tr id='{name}'><th>{name}</th>\n<td>{_value(name, value)}</td></tr>" for name, value in fields)
    return f"<table class='facts'>\n{rows}\n</table>"


_LOOKS = (_paragraphs, _definitions, _list, _table)


def page_html(name: str, fields: tuple[tuple[str, str], ...], look: int) -> str:
    """One person's page, with the navigation, script and footer that pages have."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name} - people</title>
<style>p {{ margin: 0 }}</style></head>
<body><nav><a href="index.html">home</a> <a href="about.html">about us</a></nav>
<main><h1>{name}</h1>
{_LOOKS[look](fields)}
</main>
<script>document.title += " <p>boss nobody</p>"</script>
<footer><p>page of {name}</p><p>contact &amp; imprint</p></footer>
</body></html>
"""
