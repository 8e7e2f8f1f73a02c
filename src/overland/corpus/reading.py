"""One file to documents: bytes to text, then a module to its source and its docstrings, a page to its words."""

from __future__ import annotations

import ast
import codecs
import hashlib
import inspect
import io
import os
import re
import tokenize
import warnings
from html.parser import HTMLParser

from overland.corpus.document import Document
from overland.corpus.evidence import find_evidence
from overland.corpus.sources import FileEntry, Source

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_LANGUAGES = {".py": "python"}
_ENGLISH = frozenset(("the", "of", "and", "to", "is", "in", "that", "for", "a", "with", "be", "or"))


def read_documents(source: Source, entry: FileEntry, max_bytes: int) -> list[Document]:
    """The documents of one file. One that cannot be used comes back dropped, with the reason."""
    suffix = os.path.splitext(entry.path)[1].lower()
    code = suffix == ".py"
    document = Document(source.name, entry.path, "code" if code else "prose", _LANGUAGES.get(suffix, "und"), "", "")
    if entry.size > max_bytes:
        document.drop(f"too large: {entry.size} bytes, corpus.max_file_megabytes allows {max_bytes / 1e6:g} MB")
        return [document]
    try:
        raw = (source.root / entry.path).read_bytes()
    except OSError as error:
        document.drop(f"unreadable: {error.strerror}")
        return [document]
    document.sha256_in = hashlib.sha256(raw).hexdigest()
    text = decode(raw, suffix)
    if text is None:
        document.drop("binary: NUL bytes" if b"\0" in raw else "encoding: neither UTF-8 nor what the file declares")
        return [document]
    document.licence, document.licence_evidence, conflict = find_evidence(source, text)
    if conflict:
        document.drop(conflict)
        return [document]
    if suffix == ".html":
        text = html_text(text)
    document.text = text
    if not code:
        document.language = language_of(text)
        return [document]
    documents = [document]
    prose = docstrings(text)
    if prose:
        documents.append(
            Document(
                source.name,
                entry.path,
                "prose",
                language_of(prose),
                prose,
                document.sha256_in,
                document.licence,
                document.licence_evidence,
            )
        )
    return documents


def decode(raw: bytes, suffix: str) -> str | None:
    """The text with `\\n` line ends, or None where the bytes are not text."""
    encoding = next((name for mark, name in _BOMS if raw.startswith(mark)), "utf-8")
    if suffix == ".py" and encoding == "utf-8":
        try:
            encoding = tokenize.detect_encoding(io.BytesIO(raw).readline)[0]
        except (SyntaxError, UnicodeDecodeError):
            return None
    try:
        text = raw.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        return None
    if "\0" in text:
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def docstrings(text: str) -> str:
    """All docstrings of a module in the order of its source, cleaned of indentation; empty where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    found: list[tuple[int, str]] = []
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                value = first.value.value
                if isinstance(value, str) and value.strip():
                    found.append((first.lineno, inspect.cleandoc(value)))
        # Only statements can hold definitions; expressions are most of a tree and are left alone.
        todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.excepthandler))]
        todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.match_case)]
    prose = "\n\n".join(doc for _, doc in sorted(found, key=lambda item: item[0]))
    # A docstring may hold escaped lone surrogates or NULs, which UTF-8 text and tokenizers cannot.
    return prose.encode("utf-8", "replace").decode("utf-8").replace("\0", "") + "\n" if prose else ""


def language_of(text: str) -> str:
    """`en` where English function words make up a twelfth of the words, else `und` (undetermined)."""
    words = text[:8000].lower().split()
    return "en" if words and sum(word in _ENGLISH for word in words) * 12 >= len(words) else "und"


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
