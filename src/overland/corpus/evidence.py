"""Which licence a document is under, and what says so. Evidence that disagrees is no evidence: the document is dropped.

Nearest first: SPDX lines in the file's header, a page's own licence link, the record's metadata, a `.license` file
beside it, its DEP-5 stanza, the recipe's word for the source, package metadata, the nearest licence file above it.
What is nearer wins only if it does not contradict what is farther: a file that says CC0 in a folder that says GPL may
have been copied from anywhere. Two places may differ without a conflict: a licence file in an inner folder speaks for
that folder, and a DEP-5 stanza for its files.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, BinaryIO

from overland.licences import (
    BadExpression,
    copyright_holders,
    creative_commons_urls,
    from_statement,
    keys_of,
    normalise,
    recognise_licence,
    restriction_in,
    spdx_copyrights,
    spdx_lines,
)

_LICENCE_FILES = frozenset(("licence", "license", "copying", "unlicense", "unlicence"))
_METADATA = frozenset(("package.json", "pyproject.toml", "cargo.toml", "pkg-info", "metadata"))
_NOT_TEXTS = (".py", ".c", ".h", ".js", ".ts", ".go", ".rs", ".json", ".jsonl", ".parquet", ".png", ".svg")
_LICENCE_LINK = re.compile(r"<(?:link|a)\b[^>]{0,300}\brel=[\"']?license\b[^>]{0,300}>", re.IGNORECASE)
_HREF = re.compile(r"\bhref=[\"']?([^\"'\s>]{4,200})", re.IGNORECASE)


@dataclass(frozen=True)
class Evidence:
    """`expression` and `where` are "" where nothing is known; `conflict` says why the document must be dropped."""

    expression: str = ""
    where: str = ""
    conflict: str = ""
    attribution: str = ""


@dataclass
class FolderEvidence:
    """What the files of a source say about its other files; paths are relative to the source's root."""

    texts: dict[str, str | None] = field(default_factory=dict)
    """Licence file -> its SPDX key, or None where its text is of no known licence."""
    beside: dict[str, str] = field(default_factory=dict)
    """File -> the expression in the `.license` file beside it (REUSE)."""
    metadata: dict[str, str | None] = field(default_factory=dict)
    """Package metadata at the root -> what it declares."""
    dep5: dict[str, str] = field(default_factory=dict)
    """Machine-readable copyright file -> its text."""
    holders: dict[str, str] = field(default_factory=dict)
    """Licence file -> the copyright holders it names; file -> those in the `.license` file beside it."""


def is_evidence_file(path: str) -> bool:
    """Whether a file speaks about others: a licence text, a REUSE or DEP-5 file, package metadata at the root."""
    name = path.rsplit("/", 1)[-1].lower()
    if name.endswith(".license") or path.endswith((".reuse/dep5", "debian/copyright")) or name == "copyright":
        return True
    if "/" not in path and name in _METADATA:
        return True
    return name.split(".")[0].split("-")[0] in _LICENCE_FILES and not name.endswith(_NOT_TEXTS)


def read_folder_evidence(open_file: Callable[[str], BinaryIO], paths: Iterable[str]) -> FolderEvidence:
    """Read the files that speak about others. One that cannot be read counts as a licence that is not known."""
    found = FolderEvidence()
    for path in sorted(paths):
        try:
            with open_file(path) as file:
                text = file.read(400_000).decode("utf-8", "replace")
        except OSError:
            text = ""
        name = path.rsplit("/", 1)[-1].lower()
        if name.endswith(".license"):
            stated = spdx_lines(text)
            if len(stated) == 1 and (key := from_statement(stated[0])):
                found.beside[path[: -len(".license")]] = key
            if holders := spdx_copyrights(text):
                found.holders[path[: -len(".license")]] = holders
            continue
        if (name == "copyright" or path.endswith(".reuse/dep5")) and re.search(r"^Format:", text, re.MULTILINE):
            found.dep5[path] = text
            continue
        if name in _METADATA:
            if statement := _metadata_licence(name, text):
                found.metadata[path] = from_statement(statement)
            continue
        found.texts[path] = recognise_licence(text)
        if holders := copyright_holders(text):
            found.holders[path] = holders
    return found


def _metadata_licence(name: str, text: str) -> str:
    """The licence that package metadata declares, as it is written there; "" where it declares none."""
    try:
        if name == "package.json":
            value: Any = json.loads(text).get("license", "")
        elif name.endswith(".toml"):
            data = tomllib.loads(text)
            value = data.get("project", data.get("package", {})).get("license", "")
        else:
            fields = dict(re.findall(r"^(License-Expression|License): *(\S[^\n]*)$", text, re.MULTILINE))
            value = fields.get("License-Expression") or fields.get("License", "")
    except (ValueError, AttributeError, TypeError):
        return ""
    if isinstance(value, dict):
        value = value.get("type") or value.get("text") or ""
    return value if isinstance(value, str) else ""


def find_evidence(
    folder: FolderEvidence,
    path: str,
    text: str,
    *,
    declared: str | None = None,
    declared_by: str = "",
    stated: str | None = None,
    attribution: str = "",
    page: bool = False,
) -> Evidence:
    """All that is said about the licence of one document, weighed. `stated`: what its record's metadata says."""
    around = _around(folder, path, declared, declared_by)
    near: list[tuple[str, str]] = []
    lines = spdx_lines(text)
    normal = list(dict.fromkeys(_normal(line) for line in lines))
    if len(normal) > 1:
        return Evidence(conflict=f"conflicting licences: its header says {' and '.join(lines[:3])}")
    if normal:
        near.append((normal[0], "SPDX line in the file"))
    if page and "license" in text:
        links = {key for link in _LICENCE_LINK.findall(text[:200_000]) for key in _link_keys(link)}
        if len(links) > 1:
            return Evidence(conflict=f"conflicting licences: the page links {' and '.join(sorted(links))}")
        near += [(key, "licence link of the page") for key in links]
    if stated:
        key = from_statement(stated)
        if key is None:
            return Evidence(conflict=f"licence: its metadata says '{stated[:80]}', which is no known licence")
        near.append((key, f"metadata '{stated[:80]}'"))
    if beside := folder.beside.get(path):
        near.append((beside, f"{path.rsplit('/', 1)[-1]}.license"))
    for one, other in itertools.pairwise(near):
        if not _agree(one[0], other[0]):
            return Evidence(conflict=f"conflicting licences: {one[1]} says {one[0]}, {other[1]} says {other[0]}")
    if near:
        expression, where = near[0]
        if around.conflict:
            return Evidence(conflict=around.conflict)
        if around.expression and not _agree(expression, around.expression):
            said = "its header" if where.startswith("SPDX") else where
            return Evidence(
                conflict=f"conflicting licences: {said} says {expression}, {around.where} says {around.expression}"
            )
        around = Evidence(expression, where, "", around.attribution)
    if not around.conflict and around.expression and (words := restriction_in(text, around.expression)):
        return Evidence(conflict=f"conflicting licences: {around.where} says {around.expression}, its text '{words}'")
    # The holders that the file itself names, and whom its record or its source wants named; else the folder's.
    named = dict.fromkeys((spdx_copyrights(text), folder.holders.get(path, ""), attribution))
    holders = "; ".join(name for name in named if name)
    return Evidence(around.expression, around.where, around.conflict, holders or around.attribution)


def _link_keys(link: str) -> set[str]:
    href = _HREF.search(link)
    return creative_commons_urls(href[1]) if href else set()


def _around(folder: FolderEvidence, path: str, declared: str | None, declared_by: str) -> Evidence:
    """What is said farther away: the DEP-5 stanza, the recipe, package metadata, the nearest licence files."""
    for place, content in folder.dep5.items():
        stanza = _stanza(place, content, path)
        if stanza is not None:
            if declared and stanza.expression and not _agree(declared, stanza.expression):
                return Evidence(
                    conflict=f"conflicting licences: {declared_by} says {declared}, "
                    f"{stanza.where} says {stanza.expression}"
                )
            return stanza
    texts = _nearest(folder, path)
    holders = "; ".join(dict.fromkeys(folder.holders[name] for name in texts if name in folder.holders))
    known = {name: key for name, key in texts.items() if key}
    said = [(declared, declared_by)] if declared else []
    for name, key in folder.metadata.items():
        if key is None and not declared:
            return Evidence()  # it declares something that is no known licence
        if key is not None:
            said.append((key, name))
    for one, by in said[1:]:
        if not _agree(one, said[0][0]):
            return Evidence(conflict=f"conflicting licences: {said[0][1]} says {said[0][0]}, {by} says {one}")
    if said:
        expression, where = said[0]
        for name, key in known.items():
            if not _agree(expression, key):
                return Evidence(conflict=f"conflicting licences: {where} says {expression}, {name} says {key}")
        if not declared and any(key is None for key in texts.values()):
            unknown = next(name for name, key in texts.items() if key is None)
            return Evidence(where=f"{unknown} is of no known licence")
        return Evidence(expression, where, "", holders)
    unknown_names = [name for name, key in texts.items() if not key]
    if unknown_names or not known:
        return Evidence(where=f"{unknown_names[0]} is of no known licence" if unknown_names else "")
    if len(set(known.values())) > 1:
        return Evidence(
            conflict="conflicting licences: " + ", ".join(f"{name} says {key}" for name, key in known.items())
        )
    name, key = next(iter(known.items()))
    return Evidence(key, name, "", holders)


def _nearest(folder: FolderEvidence, path: str) -> dict[str, str | None]:
    """The licence files of the innermost folder above `path` that has any."""
    here = path
    while True:
        here = here.rpartition("/")[0]
        found = {name: key for name, key in folder.texts.items() if name.rpartition("/")[0] == here}
        if found or not here:
            return found


@lru_cache(maxsize=64)
def _copyright(content: str) -> Any:
    try:
        from debian.copyright import Copyright
    except ImportError:
        return None
    try:
        return Copyright(content.splitlines(keepends=True), strict=False)
    except Exception:  # whatever the parser makes of a broken file, nothing is then known
        return None


@lru_cache(maxsize=65_536)
def _stanza(place: str, content: str, path: str) -> Evidence | None:
    """What a DEP-5 file says about one file: None where it says nothing about it.

    `debian/copyright` and `.reuse/dep5` name files of their own tree. A bare `copyright` (as packages install it) names
    files of a tree that is not here, so it counts only where all its stanzas agree.
    """
    parsed = _copyright(content)
    if parsed is None:
        return Evidence(where=f"{place} cannot be read (python-debian is not installed, or it is broken)")
    base = place.removesuffix("debian/copyright").removesuffix(".reuse/dep5")
    if base != place:
        if not path.startswith(base):
            return None
        paragraph = parsed.find_files_paragraph(path[len(base) :])
        paragraphs = [paragraph] if paragraph is not None else []
    else:
        folder = place.rpartition("/")[0]
        if folder and not path.startswith(folder + "/"):
            return None
        paragraphs = [p for p in parsed.all_files_paragraphs() if tuple(p.files) != ("debian/*",)]
    statements = {paragraph.license.synopsis if paragraph.license else "" for paragraph in paragraphs}
    if not statements:
        return None
    if len(statements) > 1:
        return Evidence(where=f"{place} names several licences for files that are not here")
    statement = statements.pop()
    key = from_statement(statement)
    holders = "; ".join(dict.fromkeys(" ".join(str(p.copyright).split()) for p in paragraphs if p.copyright))[:400]
    where = f"{place}, stanza '{' '.join(paragraphs[0].files)[:80]}'"
    return Evidence(key or "", where if key else f"{where} says '{statement}'", "", holders)


def _agree(a: str, b: str) -> bool:
    try:
        return bool(set(keys_of(a)) & set(keys_of(b)))
    except BadExpression:
        return False


@lru_cache(maxsize=4096)
def _normal(expression: str) -> str:
    try:
        return normalise(expression)
    except BadExpression:
        return expression
