"""A page's main text: Resiliparse's extraction, without navigation, scripts and footers.

A page of which the extraction leaves nothing (an unclosed `<title>` hides the rest from a browser too) gives its plain
words instead.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser


def page_text(page: str) -> str:
    """The main text of a page, a line a block, `pre` kept as it is."""
    from resiliparse.extract.html2text import extract_plain_text

    text = extract_plain_text(page, main_content=True, alt_texts=False, links=False, comments=False)
    return text.strip() + "\n" if text.strip() else html_text(page)


class _PageText(HTMLParser):
    _SILENT = frozenset(("script", "style", "head", "template", "noscript", "svg"))
    _BLOCK = frozenset(
        ("p", "div", "section", "article", "li", "ul", "ol", "table", "tr", "br", "pre", "blockquote", "dd", "dt", "hr")
    ) | frozenset(f"h{level}" for level in range(1, 7))

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.silent = 0
        self.verbatim = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.silent += tag in self._SILENT
        self.verbatim += tag == "pre"
        if tag == "body":
            self.silent = 0  # an unclosed <head> must not swallow the page
        if tag in self._BLOCK:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._SILENT:
            self.silent = max(0, self.silent - 1)
        if tag == "pre":
            self.verbatim = max(0, self.verbatim - 1)
        if tag in self._BLOCK:
            self.pieces.append("\n\n" if tag in ("p", "pre", "table", "ul", "ol") else "\n")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.pieces.append(data if self.verbatim else re.sub(r"\s+", " ", data))


def html_text(page: str) -> str:
    """The words of a page, a line a block, without scripts, styles and its head."""
    parser = _PageText()
    parser.feed(page)
    parser.close()
    lines = (line.rstrip() if line.startswith("  ") else line.strip() for line in "".join(parser.pieces).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
