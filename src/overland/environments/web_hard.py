"""Web levels 4 and 5: a site behind a search box, served on the loopback; hops that only a search can make.

A page names the next thing by a word that no link leads to; several pages hold that word, and only the current one
counts. The answer has to name the pages that it rests on.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from overland.environments.names import draw_codes, draw_names
from overland.environments.reward import Finished, Reward, Role
from overland.environments.spoken import SpokenTask, plan
from overland.environments.task import Step
from overland.environments.verify import final_answer
from overland.environments.web_server import ServedSite
from overland.environments.world import World

KINDS = {4: ("search",), 5: ("search",)}
HOPS = {4: 6, 5: 15}
_SOURCES = re.compile(r"^(.*?)[\s;,.]*\bsources?\s*:\s*(.*)$", re.I | re.S)

ASKED: Mapping[str, tuple[str, ...]] = {
    "train": (
        "Which {field} does the chain that begins with {start} end at? Use the search; archived pages do not count. "
        "Answer in the form: VALUE; sources: PAGE, PAGE with the last two pages you relied on.",
        "Search for {start}, follow what current pages say to the end and give its {field}. Archived pages are out of "
        "date. The form is: VALUE; sources: PAGE, PAGE, naming the last two pages.",
    ),
    "held_out": (
        "Trace {start} through current entries of this site (never archived ones) until nothing follows: what {field} "
        "is given there? Reply as VALUE; sources: PAGE, PAGE and cite your final two pages.",
    ),
}


@dataclass(frozen=True)
class SearchTask(SpokenTask):
    """`pages` by name; `cited` are the pages that the answer has to name."""

    pages: dict[str, str] = field(kw_only=True)
    cited: frozenset[str] = field(kw_only=True)

    check_roles: ClassVar[Mapping[str, Role]] = {"sources": "gate"}

    def world(self) -> ServedSite:
        return ServedSite(self.pages)

    def read_answer(self, answer: str) -> str:
        found = _SOURCES.match(answer.strip())
        return found[1] if found else answer

    def checks(self, finished: Finished, world: World) -> Mapping[str, Reward]:
        """sources: exactly the pages that the answer rests on are named."""
        found = _SOURCES.match((final_answer(finished) or "").strip())
        named = set(re.findall(r"[a-z]+-[a-z]+", found[2])) if found else set()
        return {"sources": Reward(float(named == self.cited), role="gate")}


def build(rng: random.Random, split: str, level: int, seed: int, kind: str) -> SearchTask:
    """The oracle searches each word and opens the current page of what is found."""
    hops = HOPS[level]
    names = draw_names(rng, split, hops + 8)
    chain, others = names[:hops], names[hops:]
    field_name = rng.choice(("town", "pet", "colour"))
    answer = f"{others[0]}{rng.randrange(100, 1000)}"
    # A page is called by a code, so that only a search finds it.
    codes = [f"page-{code}" for code in draw_codes(rng, 2 * hops + 4)]
    current: list[str] = []
    pages: dict[str, str] = {}
    steps: list[Step] = []
    for at, word in enumerate(chain):
        after = (
            f"<p>The successor of <b>{word}</b> is called <i>{chain[at + 1]}</i>.</p>"
            if at + 1 < hops
            else f"<p>Nothing follows. Its {field_name} is <b>{answer}</b>.</p>"
        )
        false = rng.choice(others[1:])
        page, old = codes[2 * at], codes[2 * at + 1]
        current.append(page)
        pages[page] = _page(word, "current entry", after, rng)
        pages[old] = _page(word, "archived entry, out of date", f"<p>The successor is called <i>{false}</i>.</p>", rng)
        steps += [
            Step(plan(f"search {word}", "open the current page"), {"query": word}, "search"),
            Step(plan(f"open {page}", "search what it names"), {"page": page}, "visit"),
        ]
    for other, code in zip(others[1:5], codes[2 * hops :], strict=True):
        text = f"<p>Seen together with {rng.choice(chain[1:])}.</p><p>Its {field_name} is {rng.choice(others[5:])}.</p>"
        pages[code] = _page(other, "current entry", text, rng)
    cited = current[-2:]
    prompt = rng.choice(ASKED[split]).format(start=chain[0], field=field_name)
    return SearchTask(
        "web", kind, split, level, seed, prompt, f"{answer}; sources: {', '.join(cited)}", tuple(steps),
        closing=f"{field_name} {answer}", pages=dict(sorted(pages.items())), cited=frozenset(cited),
    )  # fmt: skip


def _page(word: str, kind: str, text: str, rng: random.Random) -> str:
    facts = "".join(f"<tr><th>{key}</th> <td>{rng.randrange(100)}</td></tr>" for key in ("rank", "visits"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{word} ({kind})</title></head>
<body><nav><a href="/">home</a></nav><main><h1>{word}</h1><p>{kind}</p>{text}<table>{facts}</table></main>
<footer><p>contact</p></footer></body></html>
"""
