"""One file to documents: bytes to text, a module to its source and its docstrings, a page to its words, records."""

from __future__ import annotations

import ast
import codecs
import ctypes
import hashlib
import inspect
import io
import tokenize
import warnings
from collections.abc import Iterator
from typing import Any

from overland.corpus.compiled import available, library
from overland.corpus.document import Document
from overland.corpus.evidence import find_evidence
from overland.corpus.formats import (
    Broken,
    Record,
    decompressed,
    json_records,
    parquet_records,
    warc_records,
)
from overland.corpus.page import page_text
from overland.corpus.section import SourceSection
from overland.corpus.sources import CODE, PAGES, RECORDS, FileEntry, Source, suffix_of

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_ENGLISH = frozenset(("the", "of", "and", "to", "is", "in", "that", "for", "a", "with", "be", "or"))
_LOOKED_AT = 8000  # characters by which the language is guessed
_DEFAULTS = SourceSection(name="default", path=".")


def read_documents(source: Source, entry: FileEntry, max_bytes: int) -> Iterator[Document]:
    """The documents of one file. What cannot be used comes back dropped, with the reason; nothing raises."""
    suffix = suffix_of(entry.path)
    if suffix in RECORDS:
        yield from _read_records(source, entry, suffix, max_bytes)
        return
    document = _blank(source, entry.path, suffix)
    if entry.size > max_bytes:
        document.drop(f"too large: {entry.size} bytes, corpus.max_file_megabytes allows {max_bytes / 1e6:g} MB")
        yield document
        return
    try:
        with source.open(entry.path) as file:
            raw = file.read(max_bytes + 1)
    except OSError as error:
        document.drop(f"unreadable: {error.strerror or error}")
        yield document
        return
    if len(raw) > max_bytes:  # it grew since it was listed, or its store did not know its size
        document.drop(f"too large: over {max_bytes} bytes, corpus.max_file_megabytes allows {max_bytes / 1e6:g} MB")
        yield document
        return
    yield from _documents_of(source, document, raw, suffix, suffix in PAGES, {})


def _blank(source: Source, path: str, suffix: str) -> Document:
    code = CODE.get(suffix)
    fields = source.fields or _DEFAULTS
    domain = fields.domain or ("code" if code else "prose")
    return Document(
        source.name, path, domain, code or fields.language or "und", b"", "", attribution=fields.attribution
    )


def _read_records(source: Source, entry: FileEntry, suffix: str, max_bytes: int) -> Iterator[Document]:
    fields = source.fields or _DEFAULTS
    wanted = (fields.licence_field, fields.url_field, fields.language_field, fields.domain_field, fields.author_field)
    try:
        with source.open(entry.path) as file:
            records: Iterator[Record | Broken]
            if suffix == ".parquet":
                records = parquet_records(file, entry.groups, fields.text_field, fields.id_field, wanted)
            elif suffix.startswith(".warc"):
                records = warc_records(file, entry.path, max_bytes)
            else:
                records = json_records(decompressed(file, entry.path), max_bytes, fields.text_field, fields.id_field)
            for record in records:
                document = _blank(source, f"{entry.path}#{record.name}", "")
                if isinstance(record, Broken):
                    document.drop(record.reason)
                    yield document
                elif len(record.raw) > max_bytes:
                    document.drop(
                        f"too large: {len(record.raw)} bytes, corpus.max_file_megabytes allows {max_bytes / 1e6:g} MB"
                    )
                    yield document
                else:
                    yield from _documents_of(source, document, record.raw, "", record.page, record.fields)
    except OSError as error:
        document = _blank(source, entry.path, suffix)
        document.drop(f"unreadable: {error.strerror or error}")
        yield document


def _documents_of(
    source: Source, document: Document, raw: bytes, suffix: str, page: bool, values: dict[str, Any]
) -> Iterator[Document]:
    """The document with its text, licence and language; of Python source also a second one, its docstrings."""
    fields = source.fields or _DEFAULTS
    document.sha256_in = hashlib.sha256(raw).hexdigest()
    text = decode(raw, suffix)
    if text is None:
        document.drop("binary: NUL bytes" if b"\0" in raw else "encoding: neither UTF-8 nor what the file declares")
        yield document
        return
    evidence = find_evidence(
        source.evidence,
        document.path.split("#", 1)[0] if values else document.path,
        text,
        declared=source.declared,
        declared_by=source.declared_by,
        stated=_text(values.get(fields.licence_field)),
        attribution=_text(values.get(fields.author_field)) or document.attribution,
        page=page,
    )
    document.licence, document.licence_evidence = evidence.expression, evidence.where
    document.attribution, document.url = evidence.attribution, _text(values.get(fields.url_field)) or ""
    if evidence.conflict:
        document.drop(evidence.conflict, "licence")
        yield document
        return
    if page:
        text = page_text(text)
    if page or suffix == ".py" or b"\r" in raw or any(raw.startswith(mark) for mark, _ in _BOMS):
        document.utf8 = text.encode("utf-8", "surrogatepass")
    else:
        document.set_text(raw, document.sha256_in)
    document.domain = _text(values.get(fields.domain_field)) or document.domain
    if document.domain == "code":
        if values and (named := _text(values.get(fields.language_field))):
            document.language = named
    elif document.language == "und":
        stated = _text(values.get(fields.language_field))
        document.language, document.language_stated = stated or language_of(document.utf8), bool(stated)
    else:
        document.language_stated = True
    # Made before the first is handed out: whoever takes it writes his decisions into it.
    second = _docstrings_of(document, text) if suffix == ".py" and document.domain == "code" else None
    yield document
    if second:
        yield second


def _docstrings_of(module: Document, text: str) -> Document | None:
    prose = docstrings(text)
    if not prose:
        return None
    return Document(
        module.source,
        module.path,
        "prose",
        language_of(prose.encode()),
        prose.encode(),
        module.sha256_in,
        module.licence,
        module.licence_evidence,
        module.attribution,
        module.url,
    )


def _text(value: Any) -> str:
    """A field of a record as one line of text; a list (of licences, of authors) of one or more is joined."""
    if isinstance(value, (list, tuple)):
        value = " AND ".join(str(item) for item in value if item)
    return " ".join(str(value).split())[:400] if value not in (None, "") else ""


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


def language_of(utf8: bytes) -> str:
    """`en` where English function words make up a twelfth of the first words, else `und` (undetermined)."""
    if available():
        size = ctypes.c_int64(len(utf8)), ctypes.c_int64(_LOOKED_AT)
        return "en" if library().overland_is_english(ctypes.c_char_p(utf8), *size) else "und"
    words = utf8.decode("utf-8", "surrogatepass")[:_LOOKED_AT].lower().split()
    return "en" if words and sum(map(_ENGLISH.__contains__, words)) * 12 >= len(words) else "und"
