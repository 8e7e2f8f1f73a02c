"""A small site of real HTML files. A page is parsed and shown as "mira: town oslo; boss tolan; friend adeli".

A link with a fragment, "mira#boss", shows the page from that place on: "boss tolan; friend adeli".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from overland.environments.world import World, clip, one_string, tool_spec

if TYPE_CHECKING:
    from overland.agent.sandbox.workdir import Workdir

OPEN_SPEC = tool_spec("open", "open a page of the site at a place", "page")

_PAGE = re.compile(r"/?([a-z]{1,20})(?:\.html)?(?:#([a-z]{1,20}))?")
_DROPPED = frozenset({"head", "nav", "footer", "script", "style", "aside", "template"})
_BLOCKS = frozenset({"p", "li", "dt", "tr", "h1", "h2", "div", "ul", "dl", "table", "section", "main"})
_VOID = frozenset({"br", "hr", "img", "meta", "link", "input"})


class _Text(HTMLParser):
    """Collects the text of blocks; leaves out what a reader skips: navigation, footers, scripts, with all inside."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = [""]
        self.places: dict[str, int] = {}
        self._skipping: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            return
        if self._skipping or tag in _DROPPED:
            self._skipping.append(tag)
        elif tag in _BLOCKS:
            self.blocks.append("")
        else:
            self.blocks[-1] += " "  # dd after dt, td after td: same block, next word
        if not self._skipping and (place := dict(attrs).get("id")):
            self.places.setdefault(place, len(self.blocks) - 1)

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            if tag in self._skipping:
                del self._skipping[len(self._skipping) - 1 - self._skipping[::-1].index(tag) :]
        elif tag in _BLOCKS and tag != "dt":
            self.blocks.append("")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.blocks[-1] += data


def page_text(html: str, place: str | None = None) -> str:
    """A page's text in one line: its heading, a colon, then its blocks; from the element with id `place` on, if any."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    first = parser.places.get(place or "", 0)
    blocks = [block for block in (" ".join(block.split()) for block in parser.blocks[first:]) if block]
    if not blocks:
        return "empty page"
    if first or not blocks[1:]:
        return "; ".join(blocks)
    return f"{blocks[0]}: {'; '.join(blocks[1:])}"


class SiteWorld(World):
    """`pages` maps a page's name to its HTML; each is a file NAME.html while the world is open."""

    spec = OPEN_SPEC

    def __init__(self, pages: Mapping[str, str]) -> None:
        self.pages = pages
        self._workdir: Workdir | None = None

    def open(self) -> None:
        from overland.agent.sandbox.workdir import Workdir

        self._workdir = Workdir({f"{name}.html": html for name, html in self.pages.items()})

    def close(self) -> None:
        if self._workdir is not None:
            self._workdir.close()
            self._workdir = None

    def call_now(self, args: Mapping[str, object]) -> str:
        page = one_string(args, "page")
        if page is None:
            return "error: page must be a string"
        found = _PAGE.fullmatch(page.strip())
        assert self._workdir is not None
        # Only bare names reach the disk: a page is asked for by its link, never by a path out of the site.
        if found is None or found[1] not in self.pages:
            return "404 not found"
        return clip(page_text((self._workdir.path / f"{found[1]}.html").read_text(encoding="utf-8"), found[2]))
