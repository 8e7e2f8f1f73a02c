"""Files to text: encodings, docstrings held against `inspect`, pages."""

from __future__ import annotations

import inspect
import json
import textwrap
from pathlib import Path

import pytest

from overland.corpus.page import html_text, page_text
from overland.corpus.reading import decode, docstrings, language_of


@pytest.mark.parametrize(
    ("raw", "suffix", "text"),
    [
        (b"caf\xc3\xa9\r\nx\ry", ".txt", "café\nx\ny"),
        (b"\xef\xbb\xbfcaf\xc3\xa9", ".txt", "café"),
        ("é".encode("utf-16"), ".txt", "é"),
        (b"# -*- coding: latin-1 -*-\n# caf\xe9\n", ".py", "# -*- coding: latin-1 -*-\n# café\n"),
        (b"caf\xe9", ".txt", None),
        (b"a\0b", ".txt", None),
        (b"# coding: nonsense\n", ".py", None),
        (b"\xff\xfe\x00", ".txt", None),
    ],
)
def test_bytes_are_text_or_refused(raw: bytes, suffix: str, text: str | None) -> None:
    assert decode(raw, suffix) == text


@pytest.mark.parametrize("module", [json, textwrap])
def test_docstrings_are_those_that_inspect_sees(module: object) -> None:
    found = docstrings(Path(inspect.getsourcefile(module)).read_text())  # type: ignore[arg-type, type-var]
    for thing in (module, *(v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__)):  # type: ignore[attr-defined]
        doc = inspect.getdoc(thing) if getattr(thing, "__doc__", None) else None
        if doc and not isinstance(thing, (int, str)) and (inspect.isfunction(thing) or thing is module):
            assert doc in found


def test_docstrings_come_in_source_order_also_from_inner_places() -> None:
    method = '        def f(self):\n            """three\n\n            more"""\n'
    source = '"""one"""\nif True:\n    class A:\n        "two"\n' + method
    assert docstrings(source) == "one\n\ntwo\n\nthree\n\nmore\n"


@pytest.mark.parametrize("source", ["def f(:\n", "x = 1\n", "(" * 500, "\0"])
def test_source_without_docstrings_gives_no_prose(source: str) -> None:
    assert docstrings(source) == ""


def test_docstring_with_lone_surrogates_becomes_encodable() -> None:
    docstrings('"""a \\ud800 b \\x00 c"""').encode()


def test_page_gives_its_words_without_scripts() -> None:
    page = (
        "<head><title>no</title></head><body><p>One &amp; two\n three</p><script>x</script><pre>a\n  b</pre><li>c</li>"
    )
    assert html_text(page) == "One & two three\n\na\n  b\n\nc\n"


def test_unclosed_head_does_not_swallow_the_page() -> None:
    page = "<html><head><title>x<body><p>kept</p></body></html>"
    assert "kept" in html_text(page)
    assert "kept" in page_text(page)


def test_page_without_its_navigation_and_footer() -> None:
    page = (
        "<body><nav><a href='/'>Home</a> <a href='/a'>About</a></nav><main><h1>Title</h1><p>One &amp; two of the many "
        "things.</p><pre>a\n  b</pre></main><footer>All of it</footer></body>"
    )
    assert page_text(page) == "Title\n\nOne & two of the many things.\n\na\n  b\n"


def test_language_is_english_or_undetermined() -> None:
    assert language_of(b"It is the case that one of them is in a tree with a bird.") == "en"
    assert language_of(b"Die Katze sitzt auf dem Dach und schaut nach unten.") == "und"
