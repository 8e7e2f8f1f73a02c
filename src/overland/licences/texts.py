"""Licence evidence in text: SPDX header lines, and the well-known licence texts by what only they say.

A LICENSE file is recognised only when exactly one known text fits; everything else stays unknown, so denied.
"""

from __future__ import annotations

import re

_HOLDER = re.compile(
    r"^[\s#/*;.-]*Copyright\s*(?:\(c\)|\u00a9)?\s*(?:\d{4}[\d,\s\u2013-]*)?(?:by\s+)?(?P<who>[^\n]{2,120})",
    re.IGNORECASE | re.MULTILINE,
)
_RESTRICTIONS = re.compile(
    r"\b(?:for |solely for |limited to )?non-?commercial (?:use|purposes?|research)(?: only)?\b"
    r"|\bnot (?:be used )?for commercial (?:use|purposes?)\b"
    r"|\bfor (?:academic|research|educational|personal)(?: and \w+)? (?:use|purposes?) only\b"
    r"|\bno part of this \w+ may be (?:reproduced|copied)\b|\bcommons clause\b"
    r"|\b(?:proprietary and )?confidential(?: and proprietary)? (?:information of|property of|- do not)\b"
    r"|\bmay not be (?:re)?distributed\b|\bdo not (?:re)?distribute\b"
    r"|\bmay not be used (?:to train|for training)\b",
    re.IGNORECASE,
)
# Without one of these none of the above fits: looking for them is many times cheaper.
_SIGNS = (
    *("commercial", "use only", "purpose only", "purposes only", "no part of this", "commons clause", "confidential"),
    *("may not be ", "do not distribute", "do not redistribute"),
)
_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*([^\n\r]{1,200})")
_SPDX_COPYRIGHT = re.compile(r"SPDX-FileCopyrightText:[ \t]*([^\n\r]{1,200})")
_BEFORE_HOLDER = re.compile(r"^(?:\s|copyright\b|\(c\)|©|\d{4}|present\b|[-–,])+", re.IGNORECASE)
_TRAILING = re.compile(r"\s*(\*/|-->|\"\"\"|'''|#\}|%>)\s*$")

# The order matters inside a family only: a text is tried against every pattern and must fit one family alone.
_TEXTS: tuple[tuple[str, str], ...] = (
    ("CC0-1.0", r"\bCC0 1\.0 Universal\b|publicdomain/zero/1\.0"),
    ("CC-PDM-1.0", r"publicdomain/mark/1\.0|\bPublic Domain Mark 1\.0\b"),
    ("CC-BY-NC-ND-{v}", r"\bAttribution-NonCommercial-NoDerivat\w* (?P<v>\d\.\d)|licenses/by-nc-nd/(?P<w>\d\.\d)"),
    ("CC-BY-NC-SA-{v}", r"\bAttribution-NonCommercial-ShareAlike (?P<v>\d\.\d)|licenses/by-nc-sa/(?P<w>\d\.\d)"),
    ("CC-BY-NC-{v}", r"\bAttribution-NonCommercial (?P<v>\d\.\d)|licenses/by-nc/(?P<w>\d\.\d)"),
    ("CC-BY-ND-{v}", r"\bAttribution-NoDerivat\w* (?P<v>\d\.\d)|licenses/by-nd/(?P<w>\d\.\d)"),
    ("CC-BY-SA-{v}", r"\bAttribution-ShareAlike (?P<v>\d\.\d)|licenses/by-sa/(?P<w>\d\.\d)"),
    ("CC-BY-{v}", r"\bAttribution (?P<v>\d\.\d)|licenses/by/(?P<w>\d\.\d)"),
    ("MIT", r"Permission is hereby granted, free of charge, to any person obtaining a copy of this software and"),
    ("Apache-2.0", r"\bApache License,? Version 2\.0\b"),
    ("GPL-2.0-only", r"(?<!Affero )(?<!Lesser )\bGeneral Public License,? Version 2\b"),
    ("GPL-3.0-only", r"(?<!Affero )(?<!Lesser )\bGeneral Public License,? Version 3\b"),
    ("LGPL-3.0-only", r"\bLesser General Public License,? Version 3\b"),
    ("LGPL-2.1-only", r"\bLesser General Public License,? Version 2\.1\b"),
    ("AGPL-3.0-only", r"\bAffero General Public License,? Version 3\b"),
    ("MPL-2.0", r"\bMozilla Public License,? Version 2\.0\b"),
    ("Unlicense", r"\bfree and unencumbered software released into the public domain\b"),
    ("PSF-2.0", r"\bPYTHON SOFTWARE FOUNDATION LICENSE VERSION 2\b"),
    ("ISC", r"Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"),
    ("BSD-3-Clause", r"Redistribution and use in source and binary forms.{0,2000}Neither the name of"),
    ("BSD-2-Clause", r"Redistribution and use in source and binary forms(?!.{0,2000}Neither the name of)"),
)
_COMPILED = tuple((key, re.compile(pattern, re.IGNORECASE)) for key, pattern in _TEXTS)


def spdx_lines(text: str, within: int = 4000) -> tuple[str, ...]:
    """The SPDX expressions of a file's header: its first `within` characters, in order, once each."""
    found = (_TRAILING.sub("", match.group(1)).strip() for match in _SPDX.finditer(text[:within]))
    return tuple(dict.fromkeys(expression for expression in found if expression))


def restriction_in(text: str, licence: str = "", within: int = 4000) -> str | None:
    """Words in a text's first `within` characters that take away what a free licence gives; None without any.

    "For non-commercial use only" beside an MIT file means that somebody's terms were lost on the way. A licence that
    itself is non-commercial or forbids derivatives contradicts nothing.
    """
    if "-NC" in licence or "-ND" in licence:
        return None
    head = text[:within]
    lowered = head.lower()
    if not any(sign in lowered for sign in _SIGNS):
        return None
    match = _RESTRICTIONS.search(head)
    return " ".join(match.group().split()) if match else None


def copyright_holders(text: str) -> str:
    """Whom the copyright lines of a licence file name, joined by "; "; "" where they name nobody."""
    found = (match["who"].strip(" .,;*/") for match in _HOLDER.finditer(text[:8000]))
    names = (re.sub(r"\s*All rights reserved\.?$", "", name, flags=re.IGNORECASE).strip(" .,;") for name in found)
    legal = re.compile(r"notice|licen[sc]e|holder|owner|law|\[|<|statement|and related|interest", re.IGNORECASE)
    return "; ".join(dict.fromkeys(name for name in names if name and not legal.search(name)))[:400]


def spdx_copyrights(text: str, within: int = 4000) -> str:
    """Whom the SPDX-FileCopyrightText lines of a file's header name, joined by "; ", without years and addresses."""
    head = text[:within]
    if "SPDX-FileCopyrightText:" not in head:
        return ""
    found = (_TRAILING.sub("", match[1]) for match in _SPDX_COPYRIGHT.finditer(head))
    names = (_BEFORE_HOLDER.sub("", re.sub(r"<[^<>]*>", "", name)).strip(" .,;*/") for name in found)
    return "; ".join(dict.fromkeys(name for name in names if name))[:400]


def recognise_licence(text: str) -> str | None:
    """The SPDX key of a licence file's text, or None when none or more than one known text is in it."""
    stated = spdx_lines(text)
    if stated:
        return stated[0] if len(stated) == 1 else None
    # A legal text names other licences in passing far below its title; the title stands in front.
    flat = " ".join(text[:60_000].split())
    found: dict[str, int] = {}
    for key, pattern in _COMPILED:
        match = pattern.search(flat)
        if match:
            version = next((v for v in match.groupdict().values() if v), "")
            found[key.format(v=version)] = match.start()
    titled = [key for key, start in found.items() if start < 400]
    only = titled if len(titled) == 1 else list(found)
    if len(only) != 1:
        return None
    # A clause in front of (or after) a free licence's text makes it another licence.
    restricted = not only[0].startswith("CC-") and restriction_in(flat, only[0], len(flat))
    return None if restricted else only[0]
